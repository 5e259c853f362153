//! The dialer: whom to dial when, with back-off for every target and one report per series of failures.
//!
//! Pure; the clock and chance are arguments. A target is a configured address (kept for ever) or a learned node (dropped
//! after some failures). After each failure the wait doubles, from a quarter of a second to half a minute. Jitter keeps a
//! federation from dialing in step when a peer comes back.
//!
//! ```text
//!   waiting ──due──► dialing ──► connected ──good hello──► (waits start again at the shortest)
//!      ▲                │             │
//!      └──── failed ◄───┴─────────────┘ refused or closed before the hello
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::Multiaddr;
use rand::Rng;

/// First wait after a failure: a peer that is just starting is there soon.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);
/// Longest wait: a peer that comes back is found within half a minute.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Wait after a refusal: nothing changes until a person edits a file.
const REFUSED_WAIT: Duration = Duration::from_secs(30);
/// A failure that may pass by itself is reported at this attempt, so that starting all nodes at once is no alarm.
const FAILURES_UNTIL_TOLD: u32 = 3;
/// A learned node is dropped after this many failures. It comes back with its next record.
const FAILURES_UNTIL_DROPPED: u32 = 6;
/// Targets that are tried. The address book is smaller, so this only guards against churn.
const MAX_TARGETS: usize = 2048;
/// Dials begun at one moment.
const MAX_BEGUN_AT_ONCE: usize = 8;
/// Of two nodes that learn of each other at the same moment, the one with the greater id waits, so that only one dials.
const COURTESY: Duration = Duration::from_secs(2);

/// A target of dials.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Any node that answers at this address, or the node that the address names.
    Address(Multiaddr),
    /// A node whose addresses are in the address book.
    Node(NodeId),
}

/// How a dial failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The cause may pass by itself.
    Passing,
    /// The cause stays until a person changes something.
    Lasting,
}

/// All targets with their state.
#[derive(Debug, Default)]
pub(crate) struct Dialer {
    targets: BTreeMap<Target, State>,
}

#[derive(Debug)]
struct State {
    /// The node that the target leads to, as far as known.
    node: Option<NodeId>,
    failures: u32,
    due: Instant,
    dialing: bool,
    told: bool,
    /// Why the last attempt failed.
    reason: String,
}

impl Dialer {
    /// Adds a configured address, due at once.
    pub(crate) fn add_address(&mut self, address: Multiaddr, node: Option<NodeId>, now: Instant) {
        let state = self
            .targets
            .entry(Target::Address(address))
            .or_insert_with(|| State::new(node, now));
        if !state.dialing {
            state.due = now;
        }
    }

    /// Adds a node that a member named, due at once.
    ///
    /// Only a newcomer learns of nodes in this way, so there is no risk that both sides dial at the same moment.
    pub(crate) fn add_told(&mut self, node: NodeId, now: Instant) {
        self.learn(node, now);
    }

    /// Adds a node that mDNS found on the local network, where both sides find each other.
    pub(crate) fn add_heard(&mut self, node: NodeId, own: NodeId, now: Instant) {
        self.learn(node, if own < node { now } else { now + COURTESY });
    }

    /// Makes every target that leads to a node due at once, because a fetch needs it.
    pub(crate) fn hurry(&mut self, node: NodeId, now: Instant) {
        self.learn(node, now);
        // A target that has failed keeps its wait: a fetch that waits must not hammer on a dead node.
        for state in self
            .leading_to(node)
            .filter(|state| !state.dialing && state.failures == 0)
        {
            state.due = state.due.min(now);
        }
    }

    /// Returns the targets that are due and marks them as dialing: configured ones first, at most `room` learned ones.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        room: usize,
        is_connected: impl Fn(&NodeId) -> bool,
    ) -> Vec<Target> {
        let is_idle = |state: &State| {
            let is_connected = state.node.as_ref().is_some_and(&is_connected);
            !state.dialing && state.due <= now && !is_connected
        };
        let idle = self.targets.iter_mut().filter(|(_, state)| is_idle(state));
        let mut idle: Vec<(&Target, &mut State)> = idle.collect();
        // Configured targets come first. Of the others, whoever has waited longest: ids are free to make, so by their order a
        // member could put a thousand in front of all others.
        idle.sort_by_key(|(target, state)| (matches!(target, Target::Node(_)), state.due));
        let mut begun = Vec::new();
        let mut room = room;
        for (target, state) in idle {
            // A configured address is dialed even by a full node: it may be the only way into the federation.
            let fits = matches!(target, Target::Address(_)) || room > 0;
            if fits && begun.len() < MAX_BEGUN_AT_ONCE {
                room -= usize::from(matches!(target, Target::Node(_)));
                state.dialing = true;
                begun.push(target.clone());
            }
        }
        begun
    }

    /// Returns how often a target failed in a row.
    pub(crate) fn failures(&self, target: &Target) -> u32 {
        self.targets.get(target).map_or(0, |state| state.failures)
    }

    /// Takes back a dial that was not made, without counting it.
    pub(crate) fn postpone(&mut self, target: &Target, now: Instant) {
        if let Some(state) = self.targets.get_mut(target) {
            (state.dialing, state.due) = (false, now + Duration::from_secs(1));
        }
    }

    /// Notes that a dial led to a connection.
    pub(crate) fn connected(&mut self, target: &Target, node: NodeId) {
        if let Some(state) = self.targets.get_mut(target) {
            // The failures stay until a good hello: a peer that accepts and closes at once must not be dialed without a pause.
            (state.dialing, state.node) = (false, Some(node));
        }
    }

    /// Notes a failure. Returns the number of failures in a row when they should be reported, which is once per series.
    pub(crate) fn failed<R: Rng>(
        &mut self,
        target: &Target,
        failure: Failure,
        now: Instant,
        rng: &mut R,
    ) -> Option<u32> {
        let state = self.targets.get_mut(target)?;
        (state.dialing, state.failures) = (false, state.failures.saturating_add(1));
        state.due = now + wait(state.failures, rng);
        let learned = matches!(target, Target::Node(_));
        let tell = failure == Failure::Lasting || state.failures >= FAILURES_UNTIL_TOLD;
        let attempts = state.failures;
        let told = state.told;
        state.told |= tell;
        // Learned nodes come and go, so their failures are neither kept nor reported.
        if learned && attempts >= FAILURES_UNTIL_DROPPED {
            self.targets.remove(target);
        }
        (tell && !told && !learned).then_some(attempts)
    }

    /// Notes an accepted hello: the series of failures is over.
    pub(crate) fn welcomed(&mut self, node: NodeId) {
        for state in self.leading_to(node) {
            (state.failures, state.told, state.dialing) = (0, false, false);
        }
    }

    /// Notes that the last connection to a welcome node is gone.
    pub(crate) fn lost<R: Rng>(&mut self, node: NodeId, now: Instant, rng: &mut R) {
        // The shortest wait: most lost connections are restarts, and the peer is there again at once.
        let due = now + wait(1, rng);
        self.leading_to(node)
            .for_each(|state| (state.dialing, state.due) = (false, due));
    }

    /// Notes a refusal or a ban, with a long wait.
    pub(crate) fn refused<R: Rng>(&mut self, node: NodeId, now: Instant, rng: &mut R) {
        for state in self.leading_to(node) {
            state.dialing = false;
            state.failures = state.failures.saturating_add(1);
            state.due = now + REFUSED_WAIT.mul_f64(rng.random_range(1.0..1.5));
        }
    }

    /// Returns the configured addresses that lead to a node, for reports.
    pub(crate) fn addresses_of(&self, node: &NodeId) -> Vec<Multiaddr> {
        let leads = self
            .targets
            .iter()
            .filter(|(_, state)| state.node.as_ref() == Some(node));
        leads
            .filter_map(|(target, _)| match target {
                Target::Address(address) => Some(address.clone()),
                Target::Node(_) => None,
            })
            .collect()
    }

    /// Visits the nodes that the targets lead to, as far as known.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.targets.values().filter_map(|state| state.node)
    }

    /// Notes why an attempt failed, for reports.
    pub(crate) fn note_reason(&mut self, target: &Target, reason: &str) {
        if let Some(state) = self.targets.get_mut(target) {
            reason.clone_into(&mut state.reason);
        }
    }

    /// Returns why the last attempt to connect with a node failed.
    pub(crate) fn last_failure(&self, node: &NodeId) -> Option<&str> {
        let mut leads = self.targets.values().filter(|it| it.node == Some(*node));
        let failed = leads.find(|it| it.failures > 0 && !it.reason.is_empty());
        failed.map(|state| state.reason.as_str())
    }

    /// Forgets a target, such as this node's own address.
    pub(crate) fn forget(&mut self, target: &Target) {
        self.targets.remove(target);
    }

    fn learn(&mut self, node: NodeId, due: Instant) {
        let target = Target::Node(node);
        // A known target keeps its wait: a repeated record must not undo the back-off.
        if self.targets.len() < MAX_TARGETS || self.targets.contains_key(&target) {
            self.targets
                .entry(target)
                .or_insert_with(|| State::new(Some(node), due));
        }
    }

    fn leading_to(&mut self, node: NodeId) -> impl Iterator<Item = &mut State> {
        self.targets
            .values_mut()
            .filter(move |state| state.node == Some(node))
    }
}

impl State {
    fn new(node: Option<NodeId>, due: Instant) -> Self {
        Self {
            node,
            failures: 0,
            due,
            dialing: false,
            told: false,
            reason: String::new(),
        }
    }
}

/// Returns the wait after this many failures in a row, with a quarter of jitter either way.
fn wait<R: Rng>(failures: u32, rng: &mut R) -> Duration {
    // Sixteen doublings are far beyond the longest wait, and do not overflow.
    let doubled = SHORTEST_WAIT * 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
    doubled
        .min(LONGEST_WAIT)
        .mul_f64(rng.random_range(0.75..1.25))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const ANN: NodeId = NodeId::from_bytes([1; 32]);
    const OWN: NodeId = NodeId::from_bytes([9; 32]);

    fn address() -> Target {
        Target::Address("/ip4/10.0.0.1/tcp/1".parse().unwrap())
    }

    /// Who makes ids may make low ones.
    #[test]
    fn who_has_waited_longest_is_dialed_first() {
        let (mut dialer, now, _) = setup();
        dialer.add_told(OWN, now - Duration::from_secs(1));
        for n in 0..100 {
            let mut id = [0; 32];
            id[31] = n;
            dialer.add_told(NodeId::from_bytes(id), now);
        }
        let begun = dialer.begin(now, 100, |_| false);
        assert_eq!(begun[..2], [address(), Target::Node(OWN)]);
    }

    fn setup() -> (Dialer, Instant, StdRng) {
        let mut dialer = Dialer::default();
        let now = Instant::now();
        let Target::Address(configured) = address() else {
            unreachable!()
        };
        dialer.add_address(configured, None, now);
        (dialer, now, StdRng::seed_from_u64(3))
    }

    fn nobody(_: &NodeId) -> bool {
        false
    }

    #[test]
    fn waits_double_to_half_a_minute_and_failure_is_told_once() {
        let (mut dialer, mut now, mut rng) = setup();
        let (mut told, mut waits) = (Vec::new(), Vec::new());
        for attempt in 1..=12 {
            assert_eq!(dialer.begin(now, 0, nobody), [address()]);
            assert!(
                dialer.begin(now, 0, nobody).is_empty(),
                "one dial at a time"
            );
            told.extend(
                dialer
                    .failed(&address(), Failure::Passing, now, &mut rng)
                    .map(|attempts| (attempt, attempts)),
            );
            let due = dialer.targets[&address()].due;
            waits.push(due - now);
            now = due;
        }
        assert_eq!(told, [(3, 3)]);
        for (n, wait) in waits.iter().enumerate() {
            let middle = 0.25 * f64::from(1 << n.min(7)).min(120.0);
            assert!(
                (0.75 * middle..1.25 * middle).contains(&wait.as_secs_f64()),
                "wait {n}: {wait:?}"
            );
        }
    }

    #[test]
    fn a_lasting_failure_is_told_at_once_and_again_after_success() {
        let (mut dialer, now, mut rng) = setup();
        let mut fail =
            |dialer: &mut Dialer| dialer.failed(&address(), Failure::Lasting, now, &mut rng);
        assert_eq!((fail(&mut dialer), fail(&mut dialer)), (Some(1), None));
        dialer.connected(&address(), ANN);
        dialer.welcomed(ANN);
        assert_eq!(fail(&mut dialer), Some(1));
    }

    #[test]
    fn a_connected_node_is_not_dialed_and_a_lost_one_is_soon() {
        let (mut dialer, now, mut rng) = setup();
        dialer.begin(now, 0, nobody);
        dialer.connected(&address(), ANN);
        dialer.welcomed(ANN);
        assert!(
            dialer
                .begin(now + LONGEST_WAIT, 9, |node| *node == ANN)
                .is_empty()
        );
        dialer.lost(ANN, now, &mut rng);
        assert!(
            dialer
                .begin(now + Duration::from_millis(100), 9, nobody)
                .is_empty()
        );
        assert_eq!(
            dialer.begin(now + Duration::from_millis(320), 9, nobody),
            [address()]
        );
    }

    #[test]
    fn a_refused_node_is_left_alone_for_half_a_minute() {
        let (mut dialer, now, mut rng) = setup();
        dialer.begin(now, 0, nobody);
        dialer.connected(&address(), ANN);
        dialer.refused(ANN, now, &mut rng);
        assert!(
            dialer
                .begin(now + Duration::from_secs(29), 9, nobody)
                .is_empty()
        );
        assert_eq!(
            dialer.begin(now + Duration::from_secs(46), 9, nobody),
            [address()]
        );
    }

    #[test]
    fn learned_nodes_need_room_and_courtesy_and_are_given_up() {
        let (mut dialer, now, mut rng) =
            (Dialer::default(), Instant::now(), StdRng::seed_from_u64(3));
        let greater = NodeId::from_bytes([10; 32]);
        dialer.add_heard(ANN, OWN, now);
        dialer.add_heard(greater, OWN, now);
        assert!(dialer.begin(now, 0, nobody).is_empty());
        assert_eq!(
            dialer.begin(now, 9, nobody),
            [Target::Node(greater)],
            "the smaller id dials first"
        );
        assert_eq!(dialer.begin(now + COURTESY, 9, nobody), [Target::Node(ANN)]);
        for _ in 0..FAILURES_UNTIL_DROPPED {
            assert_eq!(
                dialer.failed(&Target::Node(ANN), Failure::Passing, now, &mut rng),
                None
            );
        }
        assert!(!dialer.targets.contains_key(&Target::Node(ANN)));
    }
}
