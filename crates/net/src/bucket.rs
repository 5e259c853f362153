//! A token bucket: how many bytes of answers one peer may cause. Pure; the clock is an argument.

use std::time::Instant;

/// A bucket that fills at a steady rate up to a limit.
#[derive(Debug)]
pub(crate) struct Bucket {
    tokens: f64,
    limit: f64,
    per_second: f64,
    as_of: Instant,
}

impl Bucket {
    /// Starts full.
    pub(crate) fn new(limit: f64, per_second: f64, now: Instant) -> Self {
        Self {
            tokens: limit,
            limit,
            per_second,
            as_of: now,
        }
    }

    /// Tells whether anything is left.
    pub(crate) fn has_any(&mut self, now: Instant) -> bool {
        // Filled when somebody looks, so that an idle peer costs no timer.
        let filled = now.saturating_duration_since(self.as_of).as_secs_f64() * self.per_second;
        (self.tokens, self.as_of) = ((self.tokens + filled).min(self.limit), now);
        self.tokens > 0.0
    }

    /// Tells whether nothing is missing.
    pub(crate) fn is_full(&mut self, now: Instant) -> bool {
        self.has_any(now) && self.tokens >= self.limit
    }

    /// Takes `tokens`, on credit if need be: the size of an answer is known only when it is made.
    pub(crate) fn take(&mut self, tokens: f64) {
        self.tokens -= tokens;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fills_steadily_up_to_the_limit() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10.0, 2.0, start);
        assert!(bucket.has_any(start));
        bucket.take(14.0);
        assert!(!bucket.has_any(start) && !bucket.is_full(start));
        assert!(!bucket.has_any(start + Duration::from_secs(2)));
        assert!(bucket.has_any(start + Duration::from_secs(3)));
        assert!(!bucket.is_full(start + Duration::from_secs(6)));
        assert!(bucket.is_full(start + Duration::from_secs(7)));
        assert!(bucket.has_any(start + Duration::from_secs(999)));
        bucket.take(10.0);
        assert!(
            !bucket.has_any(start + Duration::from_secs(999)),
            "no more than the limit was saved up"
        );
    }
}
