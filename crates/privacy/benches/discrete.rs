//! What noise costs: one draw of a discrete Gaussian of a million grid units.
//!
//! ```text
//! cargo bench -p fednode-privacy --bench discrete
//! ```
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without docs"
)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fednode_privacy::discrete::{DiscreteGaussian, Variance};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

fn draws(criterion: &mut Criterion) {
    let variance = Variance::at_least(1e12).expect("a million grid units, squared");
    let noise = DiscreteGaussian::new(variance);
    let mut random = ChaCha20Rng::seed_from_u64(1);
    criterion.bench_function("discrete gaussian of 1e6 grid units", |bencher| {
        bencher.iter(|| black_box(noise.sample(&mut random)));
    });
}

criterion_group!(benches, draws);
criterion_main!(benches);
