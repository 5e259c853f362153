//! What the exchange maths costs: similarity rows and plan of one node, and the plain and the clipped mean beside the memory's own pace.
//!
//! ```text
//! cargo bench -p fednode-mix --bench exchange
//! ```
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without docs"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fednode_core::{
    BlobId, ExpertExchange, ExpertId, Matching, NodeId, ParamSet, PeersPerExpert, ProxySet, Round,
    Rule, Slot, Weighting,
};
use fednode_mix::{Part, Proxies};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A federation of the papers' size on 28x28 images: nodes, experts of each, floats of a proxy.
const NODES: u8 = 50;
const EXPERTS: u16 = 4;
const DIMENSION: usize = 4608;
/// A round of the mean: members, floats of each.
const MEMBERS: usize = 20;
const FLOATS: usize = 1_000_000;

fn plan(criterion: &mut Criterion) {
    let own = NodeId::from_bytes([1; 32]);
    let known = proxies();
    let exchange = ExpertExchange {
        peers_per_expert: PeersPerExpert::Count(5),
        refresh_every: 5,
        temperature: 1.0,
        weighting: Weighting::Uniform,
        slots_per_node: None,
        max_distance: None,
        matching: Matching::default(),
        noise: None,
    };
    let mut group = criterion.benchmark_group("plan");
    group.bench_function("similarity rows", |bencher| {
        bencher.iter(|| {
            let proxies = Proxies::collect(&known, DIMENSION);
            for slot in (0..EXPERTS).map(Slot) {
                let position = proxies
                    .position(ExpertId { owner: own, slot })
                    .expect("its own proxies are known");
                black_box(proxies.row(position));
            }
        });
    });
    group.bench_function("whole plan", |bencher| {
        bencher.iter(|| {
            fednode_mix::plan(
                own,
                Round(1),
                BlobId::of(b"lineage"),
                black_box(&known),
                &exchange,
            )
        });
    });
    group.finish();
}

fn proxies() -> BTreeMap<NodeId, Arc<ProxySet>> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut set = || {
        let values = floats(&mut random, usize::from(EXPERTS) * DIMENSION);
        Arc::new(ProxySet::new(DIMENSION, values).expect("whole proxies"))
    };
    (1..=NODES)
        .map(|node| (NodeId::from_bytes([node; 32]), set()))
        .collect()
}

fn mean(criterion: &mut Criterion) {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut member = || {
        let mut params = ParamSet::new();
        params
            .insert("w", &[FLOATS], floats(&mut random, FLOATS))
            .expect("a vector of its own length");
        Arc::new(params)
    };
    let members: Vec<Part> = (1..=MEMBERS)
        .map(|number| Part {
            weight: number as f64,
            params: member(),
        })
        .collect();
    let mut group = criterion.benchmark_group("mean");
    group
        .throughput(Throughput::Bytes(
            (MEMBERS * FLOATS * size_of::<f32>()) as u64,
        ))
        .sample_size(20);
    group.bench_function("weighted", |bencher| {
        bencher.iter(|| {
            fednode_mix::average(&Rule::default(), black_box(&members))
                .expect("members of one layout")
        });
    });
    group.bench_function("clipped", |bencher| {
        bencher.iter(|| {
            fednode_mix::average(&Rule::named("clipped"), black_box(&members))
                .expect("members of one layout")
        });
    });
    group.bench_function("memory", |bencher| {
        bencher.iter(|| black_box(&members).iter().map(read).sum::<f32>())
    });
    group.finish();
}

/// Adds up all values in as many lanes as the widest vectors have, which waits for nothing but the memory.
fn read(Part { params, .. }: &Part) -> f32 {
    const LANES: usize = 64;
    let mut sums = [0.0; LANES];
    for (_, tensor) in params.iter() {
        for chunk in tensor.values().chunks_exact(LANES) {
            sums.iter_mut()
                .zip(chunk)
                .for_each(|(sum, value)| *sum += value);
        }
    }
    sums.iter().sum()
}

fn floats(random: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| random.next_u32() as f32 / u32::MAX as f32 - 0.5)
        .collect()
}

criterion_group!(benches, plan, mean);
criterion_main!(benches);
