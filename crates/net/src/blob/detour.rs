//! The detour of a blob: while nobody who holds it is connected, a peer is asked to fetch it.
//!
//! An aggregator is asked first, since most members are connected with one; then the others, one after the other. Whoever
//! says "later" is asked again until it has the blob or takes too long. Then it is a holder like any other.
//!
//! ```text
//!   ask one ──"not held"──► ask the next ──"later"──► ask both again and again ──turn over──► ask the next ──► …
//!      └──────────────────────"here"─────────────────────────┴──► holder
//! ```
//!
//! "Later" costs a liar nothing, so it must not keep others from being asked. Each further errand costs the owner a
//! transfer, so each turn is twice as long as the last one. Who said "here" and does not hold the blob is asked last.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fednode_core::{BlobRef, NodeId, Role};
use rand::seq::SliceRandom;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::fetcher::{Job, Shared, lock};
use super::link::LinkError;
use crate::wire::Want;

/// Time for a direct connection to the owner, before anybody else is asked.
const HEAD_START: Duration = Duration::from_millis(300);
/// Shortest and longest time between two questions.
const SHORTEST_REST: Duration = Duration::from_millis(200);
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Time that a peer has for its errand, beside that for the bytes.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time for which the first peer that says "later" is alone. The next turn is twice as long, and so on.
const FIRST_TURN: Duration = Duration::from_secs(5);
/// Longest turn. Otherwise a dozen liars could hold up a large blob for hours.
const LONGEST_TURN: Duration = Duration::from_secs(60);
/// Bytes per second that are expected of it.
const SLOWEST: u64 = 64 << 10;

/// The search of one job for somebody who fetches its blob.
pub(super) struct Detour {
    shared: Arc<Shared>,
    blob: BlobRef,
    job: Arc<Job>,
    state: Mutex<State>,
    /// Wakes the job when somebody holds the blob now.
    pub(super) news: Notify,
}

#[derive(Default)]
struct State {
    /// Who fetched the blob for this node.
    couriers: Vec<NodeId>,
    /// Those of them that the schedule does not know of yet.
    fresh: Vec<NodeId>,
    /// Connected peers that said that they hold the blob, and did not.
    failed: BTreeSet<NodeId>,
    /// Who said that it fetches the blob.
    under_way: Option<NodeId>,
}

/// One way round the peers.
struct Search {
    untried: std::vec::IntoIter<NodeId>,
    /// Who said "later", and since when.
    waiting: Vec<(NodeId, Instant)>,
    /// Time until they are asked again.
    rest: Duration,
    turn: Duration,
    turn_ends: Instant,
}

impl Detour {
    pub(super) fn new(shared: Arc<Shared>, blob: BlobRef, job: Arc<Job>) -> Self {
        Self {
            shared,
            blob,
            job,
            state: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Asks around for as long as the job runs.
    pub(super) async fn run(&self) -> Infallible {
        sleep(HEAD_START).await;
        let mut rest = SHORTEST_REST;
        loop {
            if self.is_needed() && self.ask_around().await {
                // A courier may lose the blob, or go, before all of it is here. Then it is searched for again at once.
                rest = SHORTEST_REST;
            }
            sleep(rest).await;
            rest = (2 * rest).min(LONGEST_REST);
        }
    }

    /// Returns who holds the blob only since now, each once.
    pub(super) fn take_fresh(&self) -> Vec<NodeId> {
        std::mem::take(&mut lock(&self.state).fresh)
    }

    /// A peer does not hold the blob. If it fetched the blob before, it has lost it meanwhile.
    pub(super) fn on_not_held(&self, node: NodeId) {
        let mut state = lock(&self.state);
        if state.couriers.contains(&node) {
            state.couriers.retain(|courier| *courier != node);
            state.failed.insert(node);
            lock(&self.job.providers).remove(&node);
        }
    }

    /// Says who is fetching the blob for this node, for the error of a missed deadline.
    pub(super) fn report(&self) -> Option<String> {
        let node = lock(&self.state).under_way?;
        Some(format!("{} is fetching it for this node", node.short()))
    }

    /// Tells whether nobody is connected who made the blob or holds it.
    fn is_needed(&self) -> bool {
        let named = lock(&self.job.providers).clone();
        let connected = self.shared.roster.candidates(&self.blob.id);
        let holds = |(node, holds): &(NodeId, bool)| *holds || named.contains(node);
        self.job.may_detour() && !connected.iter().any(holds)
    }

    /// Asks all peers, one after the other. Tells whether the blob need not be searched any longer.
    async fn ask_around(&self) -> bool {
        let mut search = Search::among(self.peers());
        loop {
            // Who waits is asked first. If one has the blob by now, no further errand costs the owner a transfer.
            if self.ask_again(&mut search).await || self.ask_others(&mut search).await {
                return true;
            }
            let Some((newest, _)) = search.waiting.last() else {
                return false;
            };
            lock(&self.state).under_way = Some(*newest);
            sleep(search.rest).await;
            lock(&self.state).under_way = None;
            search.rest = (search.rest * 3 / 2).min(LONGEST_REST);
        }
    }

    /// Asks those who said "later" once more, and gives up on who takes too long.
    async fn ask_again(&self, search: &mut Search) -> bool {
        let patience = PATIENCE + Duration::from_secs(self.blob.size / SLOWEST);
        for (node, since) in std::mem::take(&mut search.waiting) {
            match self.ask(node).await {
                Ok(()) => return self.note_holder(node),
                Err(LinkError::Later) if since.elapsed() < patience => {
                    search.waiting.push((node, since));
                }
                Err(_) => {}
            }
        }
        !self.is_needed() && self.welcome_holders()
    }

    /// Asks further peers until one says "later". Its turn begins then.
    async fn ask_others(&self, search: &mut Search) -> bool {
        while search.is_turn_over() {
            let Some(node) = search.untried.next() else {
                return false;
            };
            match self.ask(node).await {
                Ok(()) => return self.note_holder(node),
                Err(LinkError::Later) => search.wait_for(node),
                Err(_) => {}
            }
            if !self.is_needed() {
                return self.welcome_holders();
            }
        }
        false
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "nobody need repeat which of equals is asked first"
    )]
    fn peers(&self) -> Vec<NodeId> {
        let mut peers = self.shared.roster.candidates(&self.blob.id);
        peers.shuffle(&mut rand::rng());
        let mut state = lock(&self.state);
        let connected: BTreeSet<NodeId> = peers.iter().map(|(node, _)| *node).collect();
        state.failed.retain(|node| connected.contains(node));
        let is_aggregator = |node: &NodeId| self.shared.roster.role(node) == Some(Role::Aggregator);
        // Stable, so those of one role stay shuffled.
        peers.sort_by_key(|(node, _)| (state.failed.contains(node), !is_aggregator(node)));
        peers.into_iter().map(|(node, _)| node).collect()
    }

    /// A peer has the blob now. Returns true: the search is over.
    fn note_holder(&self, node: NodeId) -> bool {
        lock(&self.job.providers).insert(node);
        let mut state = lock(&self.state);
        state.couriers.push(node);
        state.fresh.push(node);
        drop(state);
        self.news.notify_one();
        true
    }

    async fn ask(&self, node: NodeId) -> Result<(), LinkError> {
        let want = Want::Bring {
            size: self.blob.size,
        };
        let link = self.shared.link(node)?;
        // An honest "here" has no bytes. A peer that sends some is no courier.
        link.ask(self.blob.id, want, 0).await.map(|_| ())
    }

    /// Somebody announced meanwhile that it holds the blob: the schedule must not leave it in peace any longer. Returns true.
    fn welcome_holders(&self) -> bool {
        let connected = self.shared.roster.candidates(&self.blob.id);
        let holders = connected.into_iter().filter(|(_, holds)| *holds);
        lock(&self.state)
            .fresh
            .extend(holders.map(|(node, _)| node));
        self.news.notify_one();
        true
    }
}

impl Search {
    fn among(peers: Vec<NodeId>) -> Self {
        Self {
            untried: peers.into_iter(),
            waiting: Vec::new(),
            rest: SHORTEST_REST,
            turn: FIRST_TURN,
            turn_ends: Instant::now(),
        }
    }

    fn is_turn_over(&self) -> bool {
        self.waiting.is_empty() || self.turn_ends <= Instant::now()
    }

    fn wait_for(&mut self, node: NodeId) {
        let now = Instant::now();
        self.waiting.push((node, now));
        self.turn_ends = now + self.turn;
        self.turn = (2 * self.turn).min(LONGEST_TURN);
        // The newcomer may be quick, so the rest that grew with the others starts anew.
        self.rest = SHORTEST_REST;
    }
}
