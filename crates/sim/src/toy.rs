//! A trainer of a few floats, so that thousands of nodes run real numbers through the real machinery.
//!
//! Nodes fall into three clusters. A node's expert `k` moves towards a point of its cluster and slot, and its proxies
//! point near there. Each node's proxies have a direction of their own that changes little from round to round, as data
//! do. So similar nodes find each other as in the paper. The shared part moves towards the cluster's point.

use std::sync::Arc;

use fednode_core::work::Update;
use fednode_core::{ParamSet, ProxySet, Round, Slot};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CLUSTERS: usize = 3;
const EXPERTS: usize = 2;
const PROXY: usize = 8;
const SAMPLES: u32 = 10;

/// How many floats the parts of a toy have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) shared: usize,
    pub(super) expert: usize,
}

impl Sizes {
    /// A few of each.
    pub(super) const SMALLEST: Self = Self {
        shared: 6,
        expert: 5,
    };
}

/// The model of one simulated node.
#[derive(Debug, Clone)]
pub struct Toy {
    seed: u64,
    member: usize,
    sizes: Sizes,
    shared: Vec<f32>,
    experts: Vec<Vec<f32>>,
}

impl Toy {
    /// Makes a node's model; all nodes of a seed start alike.
    pub(super) fn new(seed: u64, member: usize, sizes: Sizes) -> Self {
        let Sizes { shared, expert } = sizes;
        let start = point(seed, "start", 0, shared.max(expert));
        let (shared, experts) = (
            start[..shared].to_vec(),
            vec![start[..expert].to_vec(); EXPERTS],
        );
        Self {
            seed,
            member,
            sizes,
            shared,
            experts,
        }
    }

    /// Returns the shared part.
    pub fn shared(&self) -> ParamSet {
        params("embedding", &self.shared)
    }

    /// Returns what a pool takes in: the first expert.
    pub(super) fn module(&self) -> ParamSet {
        params("expert", &self.experts[0])
    }

    pub(super) fn train(&mut self, round: Round) -> Update {
        let cluster = self.member % CLUSTERS;
        let mut noise = rng(self.seed, "noise", self.member * 100_003 + round.0 as usize);
        step(
            &mut self.shared,
            &point(self.seed, "shared", cluster, self.sizes.shared),
            &mut noise,
        );
        let mut proxies = Vec::with_capacity(EXPERTS * PROXY);
        for (slot, expert) in self.experts.iter_mut().enumerate() {
            let place = cluster * EXPERTS + slot;
            step(
                expert,
                &point(self.seed, "expert", place, self.sizes.expert),
                &mut noise,
            );
            let direction = point(self.seed, "proxy", place, PROXY);
            let own = point(
                self.seed,
                "own direction",
                self.member * EXPERTS + slot,
                PROXY,
            );
            let values = direction
                .iter()
                .zip(&own)
                .map(|(cluster, own)| cluster + 0.2 * own);
            proxies.extend(values.map(|value| value + noise.random_range(-0.02..0.02)));
        }
        Update {
            shared: Some(Arc::new(self.shared())),
            experts: self
                .experts
                .iter()
                .map(|expert| (Arc::new(params("expert", expert)), SAMPLES))
                .collect(),
            proxies: Some(ProxySet::new(PROXY, proxies).expect("the constants fit")),
            n_samples: SAMPLES,
            train_loss: 0.0,
            expert_share: Vec::new(),
            steps: 0,
            multiply_adds: 0,
        }
    }

    pub(super) fn adopt(&mut self, shared: Option<&ParamSet>, experts: &[(Slot, Arc<ParamSet>)]) {
        if let Some(tensor) = shared.and_then(|shared| shared.get("embedding")) {
            self.shared = tensor.values().to_vec();
        }
        for (slot, params) in experts {
            if let Some(tensor) = params.get("expert") {
                self.experts[usize::from(slot.0)] = tensor.values().to_vec();
            }
        }
    }
}

fn step(values: &mut [f32], target: &[f32], noise: &mut ChaCha8Rng) {
    for (value, target) in values.iter_mut().zip(target) {
        *value += 0.2 * (target - *value) + noise.random_range(-0.02..0.02);
    }
}

fn params(name: &str, values: &[f32]) -> ParamSet {
    let mut params = ParamSet::new();
    params
        .insert(name, &[values.len()], values.to_vec())
        .expect("one tensor with a plain shape");
    params
}

fn point(seed: u64, purpose: &str, index: usize, dimension: usize) -> Vec<f32> {
    let mut rng = rng(seed, purpose, index);
    (0..dimension)
        .map(|_| rng.random_range(-1.0..1.0))
        .collect()
}

fn rng(seed: u64, purpose: &str, index: usize) -> ChaCha8Rng {
    let name = [
        purpose.as_bytes(),
        &seed.to_le_bytes(),
        &index.to_le_bytes(),
    ]
    .concat();
    ChaCha8Rng::from_seed(*fednode_core::BlobId::of(&name).as_bytes())
}
