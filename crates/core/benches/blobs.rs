//! What it costs to verify a blob segment by segment, beside BLAKE3 over the same bytes on one thread.
//!
//! ```text
//! cargo bench -p fednode-core --bench blobs
//! ```
//!
//! A fetched blob is checked as it arrives: the segment list folds to its name, then each segment matches the list.
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without docs"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fednode_core::{SEGMENT_BYTES, SegmentList};

/// An expert of a large model, in segments.
const SEGMENTS: usize = 32;

fn verify(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..SEGMENTS * SEGMENT_BYTES as usize)
        .map(|index| (index % 251) as u8)
        .collect();
    let list = SegmentList::of(&bytes);
    let mut group = criterion.benchmark_group("blob");
    group
        .throughput(Throughput::Bytes(bytes.len() as u64))
        .sample_size(20);
    group.bench_function("verify", |bencher| {
        bencher.iter(|| {
            let list = SegmentList::verify(list.blob(), list.values().to_vec())
                .expect("the blob's own list");
            for (index, segment) in (0..).zip(bytes.chunks(SEGMENT_BYTES as usize)) {
                black_box(
                    list.verified(index, segment)
                        .expect("the blob's own segment"),
                );
            }
        });
    });
    group.bench_function("blake3", |bencher| {
        bencher.iter(|| blake3::hash(black_box(&bytes)))
    });
    group.finish();
}

criterion_group!(benches, verify);
criterion_main!(benches);
