//! Slices of means: fetched from many at once, averaged, and put together.
//!
//! What they need comes over the member's own link, one after the other. Nobody begins before all of it can be had.

use std::time::Duration;

use fednode_core::{BlobId, BlobRef, NodeId, ParamSet};
use fednode_engine::{
    Input, JoinOrder, JoinPurpose, JoinReport, Purpose, SliceOrder, SliceReport, execute,
};

use super::blobs::Blobs;
use super::computing::Computing;
use super::ground::Ground;
use super::transfers::{RETRY, count_bytes, provider};
use super::{COMPUTING, Event};
use crate::history::Told;
use crate::scenario::Behaviour;

/// Slices that a member wants.
#[derive(Debug)]
pub(super) enum Wanted {
    /// One of the parts of all members, to average it.
    One(SliceOrder),
    /// All of a mean, to put them together.
    All(JoinOrder),
}

impl Wanted {
    /// Returns the blobs of which something is wanted, how much of each, and who has it.
    fn blobs(&self) -> Vec<(BlobId, u64, Vec<NodeId>)> {
        match self {
            Self::One(order) => {
                let bytes = order.slicing.len(order.slice);
                let members = order.members.iter();
                members
                    .map(|member| (member.shared.id, bytes, vec![member.node]))
                    .collect()
            }
            Self::All(order) => {
                let slices = order.slices.iter();
                let from = |authors: &[NodeId; 2]| -> Vec<NodeId> {
                    authors.iter().copied().chain(order.closer).collect()
                };
                slices
                    .map(|(authors, slice)| (slice.id, slice.size, from(authors)))
                    .collect()
            }
        }
    }
}

pub(super) fn begin(ground: &mut Ground<'_>, member: usize, wanted: Wanted) {
    let life = ground.members[member].life;
    let seek = Event::SeekSlices(member, life, Box::new(wanted));
    ground.schedule(Duration::ZERO, seek);
}

/// Looks for somebody who has each. Returns the answer if the time is up.
pub(super) fn seek(
    ground: &mut Ground<'_>,
    blobs: &Blobs,
    member: usize,
    wanted: Box<Wanted>,
) -> Option<Input> {
    let (mut lacking, mut bytes) = (Vec::new(), 0);
    for (blob, size, owners) in wanted.blobs() {
        if blobs.is_held(member, &blob) {
            continue;
        }
        match provider(ground, blobs, member, (&blob, &owners)) {
            Some(_) => bytes += size,
            None => lacking.extend(owners),
        }
    }
    let life = ground.members[member].life;
    if lacking.is_empty() {
        let time = ground.network.transfer_time(bytes, &mut ground.rng);
        ground.schedule(time, Event::HaveSlices(member, life, wanted));
        return None;
    }
    let until = match wanted.as_ref() {
        Wanted::One(order) => order.until,
        Wanted::All(order) => order.until,
    };
    if ground.now() < until {
        ground.schedule(RETRY, Event::SeekSlices(member, life, wanted));
        return None;
    }
    Some(match wanted.as_ref() {
        Wanted::One(order) => Input::Sliced(SliceReport {
            lost: lacking,
            ..SliceReport::of(order)
        }),
        Wanted::All(order) => Input::Joined(JoinReport::of(order, None)),
    })
}

/// What was wanted is here: computes what becomes of it.
pub(super) fn have(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    computing: &mut Computing<'_>,
    (member, wanted): (usize, Wanted),
) {
    for (blob, size, owners) in wanted.blobs() {
        if blobs.is_held(member, &blob) {
            continue;
        }
        // Who had it a moment ago may be gone: then it is looked for again.
        let Some(from) = provider(ground, blobs, member, (&blob, &owners)) else {
            let life = ground.members[member].life;
            let again = Event::SeekSlices(member, life, Box::new(wanted));
            return ground.schedule(RETRY, again);
        };
        count_bytes(ground, from, member, size);
        if let Wanted::All(_) = wanted {
            blobs.hold(member, blob);
        }
    }
    let answer = computing.answer(ground, blobs, member, |_, ground, blobs| {
        Ok(match &wanted {
            Wanted::One(order) => Told::Sliced(averaged(ground, blobs, member, order)),
            Wanted::All(order) => Told::Joined(joined(ground, blobs, member, order)),
        })
    });
    if let Some(answer) = answer {
        ground.input_after(COMPUTING, member, answer);
    }
}

fn averaged(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    order: &SliceOrder,
) -> SliceReport {
    let mut load = |blob: &BlobId, range: std::ops::Range<u64>| {
        let bytes = blobs.content(blob)?.to_bytes();
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        bytes.get(range).map(<[u8]>::to_vec)
    };
    let (bytes, mut report) = execute::average_slice(order, &ground.spec, &mut load);
    let Some(mut bytes) = bytes else {
        return report;
    };
    let lies = ground.behaviour(member) == Some(Behaviour::FalseMean);
    let lies = lies && order.purpose == Purpose::Close;
    if lies {
        spoil(&mut bytes);
    }
    let blob = blobs.put_bytes(member, order.round, &bytes);
    if lies {
        ground.outcome.observed.false_means.insert(blob.id);
    }
    report.mean = Some(blob);
    report
}

fn joined(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    order: &JoinOrder,
) -> JoinReport {
    let mut bytes = Vec::new();
    for (_, slice) in &order.slices {
        bytes.extend(blobs.bytes(&slice.id).unwrap_or_default());
    }
    let lies = ground.behaviour(member) == Some(Behaviour::FalseMean);
    let lies = lies && order.purpose == JoinPurpose::Close;
    if lies {
        spoil(&mut bytes);
    }
    let mean: Option<BlobRef> = ParamSet::decode(&bytes)
        .ok()
        .map(|mean| blobs.put(member, order.round, std::sync::Arc::new(mean)));
    if let Some(mean) = mean.filter(|_| lies) {
        ground.outcome.observed.false_means.insert(mean.id);
    }
    JoinReport::of(order, mean)
}

/// Changes the last number.
fn spoil(bytes: &mut [u8]) {
    if let Some(number) = bytes.last_chunk_mut::<4>() {
        *number = (f32::from_le_bytes(*number) + 0.5).to_le_bytes();
    }
}
