//! What a masked sum costs: seconds and bytes of a node, beside open sums.
//!
//! ```text
//! cargo run --release -p fednode-masked --example price [MEGABYTES]
//! ```
//!
//! A tenth of the members is lost before its vector, a tenth after it, and a tenth of the rest never says what takes its
//! masks off. All sums are compared with plain ones, bit for bit. The closer takes masks off on all cores; the rest is one thread.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::time::Instant;

use common::{Federation, holds, sum_of, vectors};
use fednode_core::NodeId;
use fednode_core::masked::{MaskOffer, Unmask};
use fednode_masked::member::Member;
use fednode_masked::opening::{Opening, Unmasking};
use fednode_masked::roster::Roster;
use fednode_masked::survivors::Survivors;

fn main() {
    let megabytes = std::env::args()
        .nth(1)
        .map_or(2.0, |text| text.parse().unwrap());
    let length = (megabytes * 1e6 / 4.0) as usize;
    println!("{length} numbers; seconds of one node");
    println!(
        "nodes  offer  open shares  mask   unmask  the sum (closer)  masks off  bytes of open"
    );
    for n in [5, 20, 64, 200] {
        measure(n, length);
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a measurement looks at the clock"
)]
/// Returns how long something took, and what came of it.
fn timed<T>(what: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = what();
    (start.elapsed().as_secs_f64(), result)
}

fn measure(n: usize, length: usize) {
    let (offering, mut federation) = timed(|| Federation::new(n, 1));
    let (opening_shares, mut held) = timed(|| federation.hold());
    let roster = Roster::new(federation.context, federation.offers.clone(), &holds(&held)).unwrap();
    let nodes = federation.nodes.clone();
    let tenth = n / 10;
    let rest = &nodes[tenth..];
    let plain = vectors(&nodes, length);
    let (mut members, mut published) = (BTreeMap::new(), BTreeMap::new());
    let (masking, ()) = timed(|| {
        for node in rest {
            let secrets = federation.secrets.remove(node).unwrap();
            let held = held.remove(node).unwrap_or_default();
            let member = Member::new(*node, secrets, held, roster.clone()).unwrap();
            let mut vector = plain[node].clone();
            members.insert(*node, member.mask(&mut vector));
            published.insert(*node, vector);
        }
    });
    let survivors = Survivors::new(&roster, rest.iter().copied().collect()).unwrap();
    let by = rest[tenth..].iter().copied().collect();
    let confirmed = survivors.confirmed(&roster, &by).unwrap();
    let speakers = &rest[2 * tenth..];
    let (speaking, said) = timed(|| {
        let say = |node: &NodeId| {
            (
                *node,
                members.remove(node).unwrap().unmask(&confirmed).unwrap(),
            )
        };
        speakers
            .iter()
            .map(say)
            .collect::<BTreeMap<NodeId, Unmask>>()
    });
    let (closing, (masks, sum)) = timed(|| {
        let mut unmasking = Unmasking::new(&roster, confirmed.survivors());
        said.iter()
            .for_each(|(node, word)| unmasking.hear(*node, word).unwrap());
        let opening = unmasking.open().unwrap();
        let mut sum = sum_of(&published, rest.iter().copied());
        clear(&opening, &mut sum);
        (opening.masks(), sum)
    });
    assert_eq!(
        sum,
        sum_of(&plain, rest.iter().copied()),
        "the sum is exact to the bit"
    );
    let bytes = 8 * (length + 1)
        + offer_bytes(&federation.offers[&nodes[n / 2]])
        + unmask_bytes(&said[&speakers[0]]);
    let ratio = bytes as f64 / (4 * length) as f64;
    let (each, masked) = (n as f64, rest.len() as f64);
    println!(
        "{n:5}  {:5.3}  {:11.3}  {:5.3}  {:6.4}  {closing:16.3}  {masks:9}  {ratio:13.3}",
        offering / each,
        opening_shares / each,
        masking / masked,
        speaking / speakers.len() as f64,
    );
}

/// Takes the masks off, a part of the sum on each core.
fn clear(opening: &Opening, sum: &mut [u64]) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let length = sum.len().div_ceil(cores);
    std::thread::scope(|scope| {
        for (place, part) in sum.chunks_mut(length).enumerate() {
            scope.spawn(move || opening.clear(0, part, place * length));
        }
    });
}

/// Bytes of an offer: keys, hash and threshold, and for each holder its name, two sealed shares and their hashes.
fn offer_bytes(offer: &MaskOffer) -> usize {
    3 * 32 + 1 + offer.holders.len() * (32 + 64 + 32 + 32)
}

/// Bytes of a word: the survivors' hash, the own seed, and each share with whose it is.
fn unmask_bytes(word: &Unmask) -> usize {
    64 + word.shares.len() * 64
}
