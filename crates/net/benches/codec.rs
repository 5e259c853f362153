//! What an advert costs on its way: encoding, signing, and at the receiver decoding with the check of its signature.
//!
//! ```text
//! cargo bench -p fednode-net --bench codec
//! ```
//!
//! It is the usual largest one: a local update of four experts, with proxies up to what may ride inside.
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without docs"
)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fednode_core::{
    ADVERT_LIFE, Advert, BlobId, BlobRef, Body, ExpertOffer, FederationId, InlineProxies, Local,
    MAX_INLINE_PROXY_BYTES, NodeId, ProxyOffer, Round, Sequence, Timestamp,
};
use fednode_net::{Identity, encoded_len, verify};

fn advert(author: NodeId) -> Advert {
    let blob = |name: &[u8]| BlobRef {
        id: BlobId::of(name),
        size: 2_300_000,
    };
    let expert = |slot: u8| ExpertOffer {
        blob: blob(&[slot]),
        samples_routed: 500,
    };
    let local = Local {
        shared: Some(blob(b"shared")),
        experts: (0..4).map(expert).collect(),
        proxies: Some(ProxyOffer::Inline(InlineProxies::new(
            (0..MAX_INLINE_PROXY_BYTES)
                .map(|at| (at % 251) as u8)
                .collect(),
        ))),
        ..Local::new(BlobId::of(b"lineage"), 500)
    };
    Advert {
        federation: FederationId::from_bytes([1; 32]),
        author,
        sequence: Sequence {
            incarnation: 1,
            counter: 2,
        },
        round: Round(3),
        issued_at: Timestamp(1_700_000_000_000),
        expires_at: Timestamp(1_700_000_000_000 + ADVERT_LIFE.as_millis() as u64),
        body: Body::Local(local),
    }
}

fn adverts(criterion: &mut Criterion) {
    let identity = Identity::generate();
    let advert = advert(identity.node_id());
    let signed = identity.seal(&advert);
    let mut group = criterion.benchmark_group("advert");
    group.throughput(Throughput::Bytes(signed.payload.len() as u64));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| encoded_len(black_box(&advert)))
    });
    group.bench_function("encode and sign", |bencher| {
        bencher.iter(|| identity.seal(black_box(&advert)))
    });
    group.bench_function("decode and verify", |bencher| {
        bencher.iter(|| verify(black_box(&signed)).expect("its own signature"));
    });
    group.finish();
}

criterion_group!(benches, adverts);
criterion_main!(benches);
