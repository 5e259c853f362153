//! The virtual network: who is up, who can talk to whom, how long a message takes.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::Rng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use crate::scenario::{Link, Scenario};

#[derive(Debug)]
pub(super) struct Network {
    link: Link,
    /// Direct connections, both ways.
    neighbours: Vec<BTreeSet<usize>>,
    up: Vec<bool>,
    n_down: usize,
    /// The members on one side of a partition.
    island: Option<BTreeSet<usize>>,
}

impl Network {
    pub(super) fn new(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Self {
        let members = scenario.nodes + usize::from(scenario.aggregator);
        let mut neighbours = vec![BTreeSet::new(); members];
        let connect = |neighbours: &mut Vec<BTreeSet<usize>>, a: usize, b: usize| {
            if a != b {
                neighbours[a].insert(b);
                neighbours[b].insert(a);
            }
        };
        let everybody = scenario.nodes <= 64;
        for a in 0..scenario.nodes {
            if everybody {
                (0..a).for_each(|b| connect(&mut neighbours, a, b));
            } else {
                index::sample(rng, scenario.nodes, scenario.degree / 2)
                    .iter()
                    .for_each(|b| connect(&mut neighbours, a, b));
            }
        }
        // Whoever was drawn by few draws more: a live node keeps looking too until it has enough connections.
        for a in 0..scenario.nodes {
            while neighbours[a].len() < scenario.degree.min(scenario.nodes - 1) {
                let b = rng.random_range(0..scenario.nodes);
                connect(&mut neighbours, a, b);
            }
        }
        if scenario.aggregator {
            (0..scenario.nodes).for_each(|node| connect(&mut neighbours, node, scenario.nodes));
        }
        let up: Vec<bool> = (0..members)
            .map(|member| !scenario.absent.contains(&member))
            .collect();
        let n_down = up.iter().filter(|up| !**up).count();
        Self {
            link: scenario.link.clone(),
            neighbours,
            up,
            n_down,
            island: None,
        }
    }

    pub(super) fn is_up(&self, member: usize) -> bool {
        self.up[member]
    }

    /// Returns how many of the first `n` members are up.
    pub(super) fn n_up(&self, n: usize) -> usize {
        self.up[..n].iter().filter(|up| **up).count()
    }

    pub(super) fn set_up(&mut self, member: usize, up: bool) {
        self.up[member] = up;
        self.n_down = self.up.iter().filter(|up| !**up).count();
    }

    /// Tells whether everybody is up and can talk to everybody.
    pub(super) fn is_whole(&self) -> bool {
        self.n_down == 0 && self.island.is_none()
    }

    /// Tells whether messages get from one member to another, directly or over others.
    pub(super) fn reaches(&self, a: usize, b: usize) -> bool {
        let same_side = self
            .island
            .as_ref()
            .is_none_or(|island| island.contains(&a) == island.contains(&b));
        self.up[a] && self.up[b] && same_side
    }

    /// Returns the direct connections that are alive.
    pub(super) fn connections(&self, member: usize) -> Vec<usize> {
        self.neighbours[member]
            .iter()
            .copied()
            .filter(|other| self.reaches(member, *other))
            .collect()
    }

    /// Splits the network, or heals it.
    pub(super) fn set_island(&mut self, island: Option<BTreeSet<usize>>) {
        self.island = island;
    }

    pub(super) fn latency(&self, rng: &mut ChaCha8Rng) -> Duration {
        let (low, high) = self.link.latency;
        rng.random_range(low..=high)
    }

    pub(super) fn transfer_time(&self, bytes: u64, rng: &mut ChaCha8Rng) -> Duration {
        2 * self.latency(rng) + Duration::from_secs_f64(bytes as f64 / self.link.bandwidth)
    }

    /// Returns how long an advert takes: a lost one comes with a later sync.
    pub(super) fn gossip_time(&self, rng: &mut ChaCha8Rng) -> Duration {
        let direct = self.latency(rng);
        let lost = self.link.loss > 0.0 && rng.random_bool(self.link.loss);
        if lost {
            direct + self.sync_time(rng)
        } else {
            direct
        }
    }

    pub(super) fn sync_time(&self, rng: &mut ChaCha8Rng) -> Duration {
        rng.random_range(Duration::from_millis(50)..=self.link.sync_every)
    }
}
