//! The detour of a blob: while nobody who holds it is connected, a peer is asked to fetch it.
//!
//! An aggregator is asked first, since most members are connected with one; then the others, one after the other. Whoever
//! says "later" is asked again until it has the blob or takes too long. Then it is a holder like any other.

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
    /// Who said that it fetches the blob.
    under_way: Option<NodeId>,
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
        let couriers = &mut lock(&self.state).couriers;
        if couriers.contains(&node) {
            couriers.retain(|courier| *courier != node);
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

    /// Asks all peers, one after the other. Tells whether one of them has the blob now.
    async fn ask_around(&self) -> bool {
        for node in self.peers() {
            if self.send(node).await {
                return true;
            }
            if !self.is_needed() {
                return self.welcome_holders();
            }
        }
        false
    }

    fn peers(&self) -> Vec<NodeId> {
        let mut peers = self.shared.roster.candidates(&self.blob.id);
        peers.shuffle(&mut rand::rng());
        // Stable, so those of one role stay shuffled.
        peers.sort_by_key(|(node, _)| self.shared.roster.role(node) != Some(Role::Aggregator));
        peers.into_iter().map(|(node, _)| node).collect()
    }

    /// Sends one peer for the blob, and waits until it has the blob, refuses or takes too long.
    async fn send(&self, node: NodeId) -> bool {
        let started = Instant::now();
        let patience = PATIENCE + Duration::from_secs(self.blob.size / SLOWEST);
        let mut rest = SHORTEST_REST;
        let is_here = loop {
            match self.ask(node).await {
                Ok(()) => break true,
                Err(LinkError::Later) if started.elapsed() < patience && self.is_needed() => {
                    lock(&self.state).under_way = Some(node);
                    sleep(rest).await;
                    rest = (rest * 3 / 2).min(LONGEST_REST);
                }
                Err(_) => break false,
            }
        };
        lock(&self.state).under_way = None;
        if is_here {
            lock(&self.job.providers).insert(node);
            let mut state = lock(&self.state);
            state.couriers.push(node);
            state.fresh.push(node);
            drop(state);
            self.news.notify_one();
        }
        is_here
    }

    async fn ask(&self, node: NodeId) -> Result<(), LinkError> {
        let want = Want::Bring {
            size: self.blob.size,
        };
        let link = self.shared.link(node)?;
        link.ask(self.blob.id, want, 0).await.map(|_| ())
    }

    /// Somebody announced meanwhile that it holds the blob: the schedule must not leave it in peace any longer.
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
