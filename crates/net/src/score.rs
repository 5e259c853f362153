//! Standing: the sum of the evidence against each peer. Pure; time is an argument.
//!
//! A strike is evidence that a peer did something that an honest peer does not: it sent a corrupt segment, a forged advert
//! or a message that breaks the protocol. Strikes fade with a half-life, so a single disk error is forgiven. When enough
//! come together, the peer is banned for a while. Each ban is longer than the last, and none is for ever, because an
//! address or a key may change hands.
//!
//! ```text
//!   score(t) = Σ weight · 2^(-(t - tᵢ) / half-life)          score ≥ 3  →  banned, score starts again at 0
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use fednode_core::{NodeId, Timestamp};

/// After this time a strike counts half: long enough to catch a peer that misbehaves once a minute.
const HALF_LIFE: Duration = Duration::from_secs(600);
/// Strikes that together lead to a ban. One may be an accident of disk or memory; three within minutes are not.
const BAN_AT: f64 = 3.0;
/// Length of the first ban. Each further ban is twice as long.
const FIRST_BAN: Duration = Duration::from_secs(300);
/// Length of the longest ban.
const LONGEST_BAN: Duration = Duration::from_secs(3600);
/// Peers remembered. The peer with the least evidence against it is forgotten first.
const MAX_REMEMBERED: usize = 4096;

/// The standing of all peers against which there is evidence.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    accounts: BTreeMap<NodeId, Account>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    score: f64,
    as_of: Timestamp,
    bans: u32,
    banned_until: Option<Timestamp>,
}

impl Account {
    fn score_at(&self, now: Timestamp) -> f64 {
        let half_lives = now.since(self.as_of).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.score * (-half_lives).exp2()
    }

    /// Bans for a while, and returns how long the ban lasts. A ban is never cut short by another one.
    fn ban_for(&mut self, length: Duration, now: Timestamp) -> Duration {
        let until = now + length.min(LONGEST_BAN);
        let until = self.banned_until.map_or(until, |other| other.max(until));
        self.banned_until = Some(until);
        until.since(now)
    }
}

impl Standing {
    /// Adds a strike. If it leads to a ban, it returns how long the peer is banned from now on.
    pub(crate) fn strike(&mut self, node: NodeId, now: Timestamp) -> Option<Duration> {
        let account = self.accounts.entry(node).or_default();
        (account.score, account.as_of) = (account.score_at(now) + 1.0, now);
        let banned = (account.score >= BAN_AT).then(|| {
            // Sixteen doublings are far beyond the longest ban, and do not overflow.
            let length = FIRST_BAN * 2_u32.saturating_pow(account.bans.min(16));
            // The score starts again at 0, since the strikes are served; the number of bans stays and makes the next longer.
            (account.score, account.bans) = (0.0, account.bans + 1);
            account.ban_for(length, now)
        });
        self.enforce_bound(now);
        banned
    }

    /// Bans a peer for a while, whatever its score.
    pub(crate) fn ban(&mut self, node: NodeId, length: Duration, now: Timestamp) {
        let account = self.accounts.entry(node).or_default();
        account.ban_for(length, now);
        self.enforce_bound(now);
    }

    /// Lifts the bans that are over and returns their peers.
    pub(crate) fn lift(&mut self, now: Timestamp) -> Vec<NodeId> {
        let over = |account: &Account| account.banned_until.is_some_and(|until| until <= now);
        let lifted: Vec<NodeId> = self
            .accounts
            .iter()
            .filter(|(_, account)| over(account))
            .map(|(node, _)| *node)
            .collect();
        for node in &lifted {
            if let Some(account) = self.accounts.get_mut(node) {
                account.banned_until = None;
            }
        }
        lifted
    }

    /// Tells whether a peer is banned.
    pub(crate) fn is_banned(&self, node: &NodeId) -> bool {
        // Until the ban is lifted, whatever the clock says: the swarm blocks the peer for just as long.
        self.accounts
            .get(node)
            .is_some_and(|account| account.banned_until.is_some())
    }

    /// Returns the faded sum of a peer's strikes; 0 is a clean record.
    pub(crate) fn score(&self, node: &NodeId, now: Timestamp) -> f64 {
        self.accounts
            .get(node)
            .map_or(0.0, |account| account.score_at(now))
    }

    fn enforce_bound(&mut self, now: Timestamp) {
        if self.accounts.len() <= MAX_REMEMBERED {
            return;
        }
        // Banned peers go last: to forget a ban would lift it, and fresh keys that misbehave once cost nothing.
        let rank = |account: &Account| (account.banned_until.is_some(), account.score_at(now));
        let least = self.accounts.iter().min_by(|a, b| {
            let ((a_banned, a_score), (b_banned, b_score)) = (rank(a.1), rank(b.1));
            a_banned.cmp(&b_banned).then(a_score.total_cmp(&b_score))
        });
        if let Some(node) = least.map(|(node, _)| *node) {
            self.accounts.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: NodeId = NodeId::from_bytes([1; 32]);

    fn minutes(n: u64) -> Timestamp {
        Timestamp(n * 60_000)
    }

    #[test]
    fn strikes_fade_by_half_in_ten_minutes() {
        let mut standing = Standing::default();
        assert_eq!(standing.strike(ANN, minutes(0)), None);
        assert!((standing.score(&ANN, minutes(10)) - 0.5).abs() < 1e-12);
        assert_eq!(standing.strike(ANN, minutes(10)), None);
        assert!((standing.score(&ANN, minutes(20)) - 0.75).abs() < 1e-12);
        // One strike every ten minutes stays below 2 for ever.
        for n in 2..200 {
            assert_eq!(standing.strike(ANN, minutes(10 * n)), None);
        }
    }

    #[test]
    fn three_together_ban_for_ever_longer_but_never_for_ever() {
        let mut standing = Standing::default();
        let mut lengths = Vec::new();
        for n in 0..6 {
            let now = minutes(1000 * n);
            assert_eq!(
                (standing.strike(ANN, now), standing.strike(ANN, now)),
                (None, None)
            );
            lengths.push(standing.strike(ANN, now).unwrap().as_secs() / 60);
            assert!(standing.is_banned(&ANN));
            assert!(
                standing
                    .lift(minutes(1000 * n + lengths[usize::try_from(n).unwrap()] - 1))
                    .is_empty()
            );
            assert_eq!(standing.lift(minutes(1000 * n + 60)), [ANN]);
            assert!(!standing.is_banned(&ANN));
        }
        assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn a_shorter_ban_does_not_end_a_longer_one() {
        let mut standing = Standing::default();
        standing.ban(ANN, Duration::from_secs(1200), minutes(0));
        standing.ban(ANN, Duration::from_secs(60), minutes(0));
        assert!(standing.lift(minutes(19)).is_empty());
        assert_eq!(standing.lift(minutes(20)), [ANN]);
    }

    #[test]
    fn strikes_of_a_banned_peer_do_not_shorten_its_ban() {
        let mut standing = Standing::default();
        standing.ban(ANN, Duration::from_secs(1200), minutes(0));
        assert_eq!(standing.strike(ANN, minutes(1)), None);
        assert_eq!(standing.strike(ANN, minutes(1)), None);
        // Alone, the third strike would ban for 5 minutes; 19 are left.
        let left = standing.strike(ANN, minutes(1));
        assert_eq!(left, Some(Duration::from_secs(19 * 60)));
        assert!(standing.lift(minutes(19)).is_empty());
        assert_eq!(standing.lift(minutes(20)), [ANN]);
    }

    #[test]
    fn the_memory_is_bounded_and_keeps_the_worst() {
        let mut standing = Standing::default();
        standing.ban(ANN, Duration::from_secs(60), minutes(0));
        for n in 0..u16::try_from(MAX_REMEMBERED + 10).unwrap() {
            let mut bytes = [2; 32];
            bytes[..2].copy_from_slice(&n.to_be_bytes());
            standing.strike(NodeId::from_bytes(bytes), minutes(0));
        }
        assert_eq!(standing.accounts.len(), MAX_REMEMBERED);
        assert!(standing.is_banned(&ANN));
    }
}
