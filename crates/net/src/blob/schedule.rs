//! The schedule of one blob: which segment is requested from which provider next. Pure; the clock is an argument.
//!
//! ```text
//!   segment:   missing ──next──► flying ──delivered──► done
//!                 ▲                 │
//!                 └──── failed ─────┘
//!   provider:  usable ──failed──► resting (1, 2, 4, 8 s) ──► usable          struck ──► never again for this blob
//! ```
//!
//! A provider starts with one segment in flight and gets one more with each delivery. So a slow one holds up little. Peers
//! that may hold the blob are asked when no known holder is usable. Near the end an idle provider gets a segment that
//! another has had for long. So the slowest provider does not set the time of the whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::NodeId;

/// Segments in flight per provider: 4 MiB.
const MAX_WINDOW: usize = 4;
/// Providers in use at once for one blob. More would only add handshakes.
const MAX_ACTIVE: usize = 8;
/// First rest after a failure.
const FIRST_REST: Duration = Duration::from_secs(1);
/// Longest rest: a provider may just be completing the blob itself.
const LONGEST_REST: Duration = Duration::from_secs(8);
/// At the end a segment is requested a second time when its first provider has had it for this long.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// The reason to ask a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// It made the blob or announced that it holds it.
    Holder,
    /// It is connected, and may hold the blob.
    Guess,
}

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The provider does not hold the blob (now).
    NotHeld,
    /// The connection failed, stalled or was refused.
    Lost,
    /// The provider sent wrong bytes.
    Corrupt,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    segments: Vec<Segment>,
    providers: BTreeMap<NodeId, Provider>,
    missing: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Missing,
    Flying { by: Vec<NodeId>, since: Instant },
    Done,
}

#[derive(Debug)]
struct Provider {
    rank: Rank,
    present: bool,
    struck: bool,
    window: usize,
    flying: usize,
    rest: Duration,
    resting_until: Option<Instant>,
    last_failure: Option<Failure>,
}

impl Schedule {
    /// Starts with the segments that are already stored.
    pub(crate) fn new(have: &[bool]) -> Self {
        let segments: Vec<Segment> = have
            .iter()
            .map(|here| {
                if *here {
                    Segment::Done
                } else {
                    Segment::Missing
                }
            })
            .collect();
        let missing = have.iter().filter(|here| !**here).count();
        Self {
            segments,
            providers: BTreeMap::new(),
            missing,
        }
    }

    /// Sets the providers that are connected right now.
    pub(crate) fn set_providers(&mut self, present: impl IntoIterator<Item = (NodeId, Rank)>) {
        self.providers
            .values_mut()
            .for_each(|provider| provider.present = false);
        for (node, rank) in present {
            // The rank anew each time: a guess becomes a holder once it announces the blob.
            let provider = self.providers.entry(node).or_insert_with(Provider::new);
            (provider.present, provider.rank) = (true, rank);
        }
        // A struck provider is remembered although it is gone: it must not come back clean with a new connection.
        self.providers
            .retain(|_, provider| provider.present || provider.struck || provider.flying > 0);
    }

    /// Tells whether every segment is stored.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Returns how many segments are stored and how many there are.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.segments.len() - self.missing, self.segments.len())
    }

    /// Picks a provider for the segment list.
    pub(crate) fn pick(&self, now: Instant) -> Option<NodeId> {
        self.usable(now).map(|(node, _)| *node).next()
    }

    /// Picks the next request and notes it as flying.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(NodeId, u32)> {
        let active = self
            .providers
            .values()
            .filter(|provider| provider.flying > 0)
            .count();
        // A provider in use may get more; a new one only while few are in use.
        let ready: Vec<NodeId> = self
            .usable(now)
            .filter(|(_, provider)| provider.flying < provider.window)
            .filter(|(_, provider)| provider.flying > 0 || active < MAX_ACTIVE)
            .map(|(node, _)| *node)
            .collect();
        // The first provider may have had all that is left already; then the next one may still help.
        let (node, index) = ready
            .into_iter()
            .find_map(|node| Some((node, self.segment_for(node, now)?)))?;
        match &mut self.segments[index] {
            Segment::Flying { by, since } => {
                by.push(node);
                // Counted from the second request: if one of the two fails, the other still has its time.
                *since = now;
            }
            segment => {
                *segment = Segment::Flying {
                    by: vec![node],
                    since: now,
                }
            }
        }
        self.providers.get_mut(&node)?.flying += 1;
        Some((node, u32::try_from(index).ok()?))
    }

    /// Notes that a verified segment is stored. Returns false if it was stored already.
    pub(crate) fn delivered(&mut self, node: NodeId, index: u32) -> bool {
        if let Some(provider) = self.providers.get_mut(&node) {
            provider.flying = provider.flying.saturating_sub(1);
            provider.window = (provider.window + 1).min(MAX_WINDOW);
            (provider.rest, provider.last_failure) = (FIRST_REST, None);
        }
        // Two providers may have had the segment near the end; the second delivery changes nothing.
        let Some(segment) = self.segments.get_mut(index as usize) else {
            return false;
        };
        if *segment == Segment::Done {
            return false;
        }
        *segment = Segment::Done;
        self.missing -= 1;
        true
    }

    /// Notes that a provider failed to send a segment. The segment is missing again, unless another provider has it.
    pub(crate) fn failed(&mut self, node: NodeId, index: u32, failure: Failure, now: Instant) {
        if let Some(provider) = self.providers.get_mut(&node) {
            provider.flying = provider.flying.saturating_sub(1);
        }
        // Another provider may still have it; only without any is it missing again.
        if let Some(Segment::Flying { by, .. }) = self.segments.get_mut(index as usize) {
            by.retain(|other| *other != node);
            if by.is_empty() {
                self.segments[index as usize] = Segment::Missing;
            }
        }
        self.blame(node, failure, now);
    }

    /// Notes a failure of a provider, about the list or about a segment.
    pub(crate) fn blame(&mut self, node: NodeId, failure: Failure, now: Instant) {
        let Some(provider) = self.providers.get_mut(&node) else {
            return;
        };
        provider.last_failure = Some(failure);
        // From one again, so that a peer that fails again and again holds up one segment at a time.
        provider.window = 1;
        provider.struck |= failure == Failure::Corrupt;
        let rested = provider.resting_until.is_none_or(|until| until <= now);
        if rested {
            // Several requests that fail together are one failure.
            provider.resting_until = Some(now + provider.rest);
            provider.rest = (2 * provider.rest).min(LONGEST_REST);
        }
    }

    /// Ends the rest of a provider that holds the blob since now.
    pub(crate) fn forgive(&mut self, node: &NodeId) {
        if let Some(provider) = self.providers.get_mut(node) {
            (provider.rest, provider.resting_until) = (FIRST_REST, None);
            provider.last_failure = None;
        }
    }

    /// Returns when a rest ends or impatience begins, if a request may be possible then that is not possible now.
    pub(crate) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let rests = self
            .providers
            .values()
            .filter(|provider| provider.present && !provider.struck);
        let rests = rests
            .filter_map(|provider| provider.resting_until)
            .filter(|until| *until > now);
        let flights = self.segments.iter().filter_map(|segment| match segment {
            Segment::Flying { by, since } if by.len() == 1 => Some(*since + IMPATIENCE),
            _ => None,
        });
        rests.chain(flights.filter(|due| *due > now)).min()
    }

    /// Describes what each provider did, for the error of a missed deadline.
    pub(crate) fn report(&self) -> String {
        let words = |provider: &Provider| match (
            provider.struck,
            provider.last_failure,
            provider.present,
        ) {
            (true, ..) => "sent corrupt bytes",
            (_, Some(Failure::NotHeld), _) => "does not hold it",
            (_, Some(Failure::Lost), _) => "does not answer",
            (_, _, false) => "is not connected",
            _ => "was still sending",
        };
        let all = self
            .providers
            .iter()
            .filter(|(_, provider)| provider.rank == Rank::Holder || provider.flying > 0);
        let lines: Vec<String> = all
            .map(|(node, provider)| format!("{} {}", node.short(), words(provider)))
            .collect();
        if lines.is_empty() {
            "nobody who holds it is connected".to_owned()
        } else {
            lines.join(", ")
        }
    }

    /// Returns the usable providers, best reason and least busy first. Guesses come only if there is no holder.
    fn usable(&self, now: Instant) -> impl Iterator<Item = (&NodeId, &Provider)> {
        let rested =
            move |provider: &Provider| provider.resting_until.is_none_or(|until| until <= now);
        let usable = self
            .providers
            .iter()
            .filter(move |(_, provider)| provider.present && !provider.struck && rested(provider));
        let mut usable: Vec<(&NodeId, &Provider)> = usable.collect();
        if usable
            .iter()
            .any(|(_, provider)| provider.rank == Rank::Holder)
        {
            usable.retain(|(_, provider)| provider.rank == Rank::Holder);
        }
        usable.sort_by_key(|(_, provider)| (provider.rank, provider.flying));
        usable.into_iter()
    }

    fn segment_for(&self, node: NodeId, now: Instant) -> Option<usize> {
        let missing = self
            .segments
            .iter()
            .position(|segment| *segment == Segment::Missing);
        // Nothing is missing: help with a segment that one other provider has had for too long. At most two have it, so
        // that the end of a blob costs no more than one segment per slow provider.
        missing.or_else(|| {
            self.segments.iter().position(|segment| match segment {
                Segment::Flying { by, since } => {
                    by.len() == 1 && by[0] != node && *since + IMPATIENCE <= now
                }
                _ => false,
            })
        })
    }
}

impl Provider {
    fn new() -> Self {
        Self {
            rank: Rank::Guess,
            present: true,
            struck: false,
            window: 1,
            flying: 0,
            rest: FIRST_REST,
            resting_until: None,
            last_failure: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: NodeId = NodeId::from_bytes([1; 32]);
    const BOB: NodeId = NodeId::from_bytes([2; 32]);
    const CAT: NodeId = NodeId::from_bytes([3; 32]);

    fn schedule(segments: usize, providers: &[(NodeId, Rank)]) -> (Schedule, Instant) {
        let mut schedule = Schedule::new(&vec![false; segments]);
        schedule.set_providers(providers.iter().copied());
        (schedule, Instant::now())
    }

    fn after(now: Instant, seconds: f64) -> Instant {
        now + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn windows_grow_with_deliveries_and_work_is_shared() {
        let (mut schedule, now) = schedule(20, &[(ANN, Rank::Holder), (BOB, Rank::Holder)]);
        assert_eq!(schedule.next(now), Some((ANN, 0)));
        assert_eq!(schedule.next(now), Some((BOB, 1)));
        assert_eq!(schedule.next(now), None, "one each to begin with");
        assert!(schedule.delivered(ANN, 0));
        assert_eq!(schedule.next(now), Some((ANN, 2)));
        assert_eq!(schedule.next(now), Some((ANN, 3)));
        assert_eq!(schedule.next(now), None);
        for index in 2..14 {
            if schedule.segments[index] != Segment::Done {
                schedule.delivered(ANN, u32::try_from(index).unwrap());
                while schedule.next(now).is_some() {}
            }
        }
        assert_eq!(schedule.providers[&ANN].flying, MAX_WINDOW);
    }

    #[test]
    fn completes_when_every_segment_is_here_once() {
        let mut schedule = Schedule::new(&[true, false, true]);
        schedule.set_providers([(ANN, Rank::Holder)]);
        let now = Instant::now();
        assert_eq!(
            (schedule.progress(), schedule.next(now)),
            ((2, 3), Some((ANN, 1)))
        );
        assert!(schedule.delivered(ANN, 1));
        assert!(
            !schedule.delivered(ANN, 1),
            "a second copy counts for nothing"
        );
        assert!(!schedule.delivered(ANN, 99));
        assert!(schedule.is_complete());
    }

    #[test]
    fn a_liar_is_never_asked_again_and_its_segment_goes_elsewhere() {
        let (mut schedule, now) = schedule(2, &[(ANN, Rank::Holder), (BOB, Rank::Holder)]);
        let (node, index) = schedule.next(now).unwrap();
        schedule.failed(node, index, Failure::Corrupt, now);
        schedule.set_providers([(ANN, Rank::Holder), (BOB, Rank::Holder)]);
        let later = after(now, 1000.0);
        assert_eq!(schedule.next(later), Some((BOB, index)));
        schedule.delivered(BOB, index);
        assert_eq!(schedule.next(later), Some((BOB, 1)));
        assert_eq!(schedule.next(later), None);
        assert!(
            schedule.report().contains("sent corrupt bytes"),
            "{}",
            schedule.report()
        );
    }

    #[test]
    fn failures_rest_a_provider_for_ever_longer() {
        let (mut schedule, mut now) = schedule(3, &[(ANN, Rank::Holder)]);
        for rest in [1.0, 2.0, 4.0, 8.0, 8.0] {
            let (node, index) = schedule.next(now).unwrap();
            schedule.failed(node, index, Failure::Lost, now);
            assert_eq!(schedule.next(after(now, rest - 0.01)), None);
            assert_eq!(schedule.wakes_at(now), Some(after(now, rest)));
            now = after(now, rest);
        }
    }

    #[test]
    fn guesses_are_asked_only_when_nobody_better_is_usable() {
        let (mut schedule, now) = schedule(5, &[(ANN, Rank::Guess), (BOB, Rank::Holder)]);
        assert_eq!(schedule.next(now), Some((BOB, 0)));
        assert_eq!(schedule.next(now), None);
        schedule.failed(BOB, 0, Failure::NotHeld, now);
        assert_eq!(schedule.next(now), Some((ANN, 0)));
    }

    #[test]
    fn at_the_end_an_idle_provider_takes_over_from_a_slow_one() {
        let (mut schedule, now) = schedule(
            2,
            &[
                (ANN, Rank::Holder),
                (BOB, Rank::Holder),
                (CAT, Rank::Holder),
            ],
        );
        assert_eq!(
            (schedule.next(now), schedule.next(now)),
            (Some((ANN, 0)), Some((BOB, 1)))
        );
        schedule.delivered(BOB, 1);
        assert_eq!(schedule.next(after(now, 0.9)), None);
        assert_eq!(schedule.wakes_at(after(now, 0.9)), Some(after(now, 1.0)));
        let second = schedule.next(after(now, 1.0));
        assert!(matches!(second, Some((BOB | CAT, 0))), "{second:?}");
        assert_eq!(schedule.next(after(now, 5.0)), None, "twice is enough");
        schedule.failed(ANN, 0, Failure::Lost, after(now, 5.0));
        assert!(schedule.delivered(second.unwrap().0, 0));
        assert!(schedule.is_complete());
    }

    #[test]
    fn absent_providers_are_not_asked() {
        let (mut schedule, now) = schedule(2, &[(ANN, Rank::Holder)]);
        schedule.set_providers([]);
        assert_eq!(schedule.next(now), None);
        assert!(schedule.report().contains("nobody"));
        schedule.set_providers([(ANN, Rank::Holder)]);
        assert!(schedule.next(now).is_some());
    }
}
