//! How blobs travel: somebody who holds it is looked for, it takes its time, it may turn out corrupt.

use std::time::Duration;

use fednode_core::{BlobId, NodeId};
use fednode_engine::{Fetch, FetchKind, Input};

use super::Event;
use super::blobs::Blobs;
use super::ground::Ground;
use crate::scenario::Behaviour;
use crate::trainers::Bytes;

/// How often a blob that nobody has is looked for again.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Looks for a holder of a blob. Returns the answer to the fetch if there is one already.
pub(super) fn seek(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    fetch: Box<Fetch>,
) -> Option<Input> {
    if blobs.is_held(member, &fetch.blob.id) {
        return Some(answer(blobs, &fetch));
    }
    if ground.now() >= fetch.until {
        return Some(failed(&fetch));
    }
    let life = ground.members[member].life;
    match provider(ground, blobs, member, (&fetch.blob.id, &fetch.from)) {
        Some(provider) => {
            let size = fetch.blob.size;
            let time = ground.network.transfer_time(size, &mut ground.rng);
            ground.schedule(time, Event::Arrive(member, life, fetch, provider));
        }
        None => ground.schedule(RETRY, Event::Seek(member, life, fetch)),
    }
    None
}

/// Returns a reachable holder that has not served this member corrupt bytes before.
pub(super) fn provider(
    ground: &Ground<'_>,
    blobs: &Blobs,
    member: usize,
    (blob, from): (&BlobId, &[NodeId]),
) -> Option<usize> {
    let named = from.iter().filter_map(|node| ground.number_of(*node));
    let others = blobs.holders(blob);
    let serves = |other: &usize| {
        *other != member
            && ground.behaviour(*other) != Some(Behaviour::Withholder)
            && blobs.is_held(*other, blob)
            && ground.network.reaches(member, *other)
            && !ground.members[member].corrupt_seen.contains(other)
    };
    named.chain(others).find(serves)
}

/// A blob arrives, unless its holder was lost meanwhile or serves corrupt bytes. Returns the answer to the fetch.
pub(super) fn arrive(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    fetch: Box<Fetch>,
    from: usize,
) -> Option<Input> {
    let life = ground.members[member].life;
    if !ground.network.reaches(member, from) {
        ground.schedule(RETRY, Event::Seek(member, life, fetch));
        return None;
    }
    if ground.behaviour(from) == Some(Behaviour::CorruptServer) {
        ground.members[member].corrupt_seen.insert(from);
        let strike = (member, ground.members[from].id, "corrupt segment".into());
        ground.outcome.strikes.push(strike);
        ground.schedule(Duration::ZERO, Event::Seek(member, life, fetch));
        return None;
    }
    let blob = fetch.blob;
    if !blobs.is_held(member, &blob.id) {
        let holds = |who: usize, blob: &BlobId| blobs.is_held(who, blob);
        let both = |base: BlobId| holds(member, &base) && holds(from, &base);
        let fetches = &mut ground.outcome.fetches;
        fetches.bytes += blob.size;
        fetches.after_another += u64::from(fetch.base.is_some_and(both));
        if ground.scenario.observe {
            *fetches.by_member.entry((member, blob.id)).or_default() += 1;
        }
        count_bytes(ground, from, member, blob.size);
        blobs.hold(member, blob.id);
    }
    Some(answer(blobs, &fetch))
}

pub(super) fn count_bytes(ground: &mut Ground<'_>, from: usize, to: usize, size: u64) {
    let is_peer_to_peer = ground.is_node(from) && ground.is_node(to);
    let count = |bytes: &mut Bytes| {
        if is_peer_to_peer {
            bytes.peer_to_peer += size;
        } else {
            bytes.aggregator += size;
        }
    };
    count(&mut ground.members[from].sent);
    count(&mut ground.members[to].received);
}

fn failed(fetch: &Fetch) -> Input {
    Input::FetchFailed {
        blob: fetch.blob,
        kind: fetch.kind,
    }
}

fn answer(blobs: &mut Blobs, fetch: &Fetch) -> Input {
    let blob = fetch.blob.id;
    match fetch.kind {
        FetchKind::Proxies => match blobs.decoded_proxies(blob) {
            Some(proxies) => Input::Proxies { blob, proxies },
            None => failed(fetch),
        },
        FetchKind::Expert | FetchKind::Shared | FetchKind::Module => Input::Fetched(blob),
    }
}
