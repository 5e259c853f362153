//! One line for each input of a machine, and one for each output, for whoever listens at level `trace`.
//!
//! The lines are data that go out, like outputs; nothing comes back in. Names of nodes and blobs are shortened to the
//! beginnings that logs show, and contents are left out.

use std::fmt;

use fednode_core::{Advert, Body, Round};
use tracing::trace;

use crate::event::{Input, Output};
use crate::state::Phase;

/// Tells of an input that a machine is given, and where the machine stands.
pub(crate) fn input(role: &str, phase: Phase, round: Round, input: &Input) {
    let phase = phase.name();
    trace!(target: "fednode::machine", role, phase, %round, input = %Brief(input));
}

/// Tells of what the machine answers, and where it stands now.
pub(crate) fn outputs(role: &str, phase: Phase, round: Round, outputs: &[Output]) {
    let phase = phase.name();
    for output in outputs {
        trace!(target: "fednode::machine", role, phase, %round, output = %Brief(output));
    }
}

impl Input {
    /// Returns the text that trace lines show of it.
    pub fn brief(&self) -> impl fmt::Display {
        Brief(self)
    }
}

impl Output {
    /// Returns the text that trace lines show of it.
    pub fn brief(&self) -> impl fmt::Display {
        Brief(self)
    }
}

/// A value on one short line.
struct Brief<'a, T>(&'a T);

impl fmt::Display for Brief<'_, Input> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Input::Start => f.write_str("start"),
            Input::PeerUp { node, role } => write!(f, "peer up: {} ({role:?})", node.short()),
            Input::PeerDown { node } => write!(f, "peer down: {}", node.short()),
            Input::Synced => f.write_str("synced"),
            Input::Advert(advert) => write!(f, "advert: {}", Brief(&advert.advert)),
            Input::Equivocated { node } => write!(f, "equivocated: {}", node.short()),
            Input::Revoked { node } => write!(f, "revoked: {}", node.short()),
            Input::Fetched(blob) => write!(f, "fetched: {}", blob.short()),
            Input::Proxies { blob, .. } => write!(f, "proxies: {}", blob.short()),
            Input::FetchFailed { blob, .. } => write!(f, "fetch failed: {}", blob.id.short()),
            Input::Trained(report) => write!(f, "trained: round {}", report.round),
            Input::Merged(report) => write!(f, "merged: round {}", report.round),
            Input::Averaged(report) => write!(
                f,
                "averaged: {:?}, {} members",
                report.purpose,
                report.members.len()
            ),
            Input::Unmasked { round, word } => {
                write!(f, "unmasked: round {round}, {}", word.is_some())
            }
            Input::Module(module) => write!(f, "module: {}", module.is_some()),
            Input::Pooled(report) => write!(f, "pooled: {} refused", report.refused.len()),
            Input::Timer(timer) => write!(f, "timer: {timer:?}"),
            Input::Leave => f.write_str("leave"),
            Input::Sliced(report) => write!(
                f,
                "sliced: {:?}, slice {}, {}",
                report.purpose,
                report.slice,
                report.mean.is_some()
            ),
            Input::Joined(report) => {
                write!(f, "joined: {:?}, {}", report.purpose, report.mean.is_some())
            }
        }
    }
}

impl fmt::Display for Brief<'_, Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Output::Publish { round, body } => {
                write!(f, "publish: {} of round {round}", Brief(body))
            }
            Output::Ask(adverts) => write!(f, "ask: {} adverts", adverts.len()),
            Output::Fetch(fetch) => write!(f, "fetch: {:?} {}", fetch.kind, fetch.blob.id.short()),
            Output::Train { round, .. } => write!(f, "train: round {round}"),
            Output::Unmask(order) => write!(f, "unmask: round {}", order.sum.round()),
            Output::Merge(order) => write!(
                f,
                "merge: round {}, {} sources, mean: {}",
                order.round,
                order.sources.len(),
                order.adopt.is_some()
            ),
            Output::Average(order) => write!(
                f,
                "average: {:?}, {} members",
                order.purpose,
                order.members.len()
            ),
            Output::Module { round } => write!(f, "make module: round {round}"),
            Output::Pool(order) => write!(f, "pool: {} members", order.members.len()),
            Output::Save => f.write_str("save"),
            Output::SetTimer { timer, at } => write!(f, "set timer: {timer:?} at {} ms", at.0),
            Output::Follow(nodes) => write!(f, "follow: {} nodes", nodes.len()),
            Output::Strike { node, reason } => write!(f, "strike: {}, {reason}", node.short()),
            Output::Ban { node, reason } => write!(f, "ban: {}, {reason}", node.short()),
            Output::Forget(blobs) => write!(f, "forget: {} blobs", blobs.len()),
            Output::Note(note) => write!(f, "note: {note:?}"),
            Output::Slice(order) => write!(
                f,
                "slice: {:?}, slice {} of {} members",
                order.purpose,
                order.slice,
                order.members.len()
            ),
            Output::Join(order) => {
                write!(
                    f,
                    "join: {:?}, {} slices",
                    order.purpose,
                    order.slices.len()
                )
            }
        }
    }
}

impl fmt::Display for Brief<'_, Advert> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advert = self.0;
        let (author, round) = (advert.author.short(), advert.round);
        write!(f, "{} of {author} for round {round}", Brief(&advert.body))
    }
}

impl fmt::Display for Brief<'_, Body> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Body::Local(_) => "local update",
            Body::Global(_) => "closed round",
            Body::Withdraw(_) => "withdrawal",
            Body::Fault(_) => "accusation",
            Body::Leave => "farewell",
            Body::Pool(_) => "module offer",
            Body::Propose(_) => "proposal",
            Body::Agree(_) => "agreement",
            Body::Unmask(_) => "word that takes masks off",
            Body::Removed(_) => "answer to withdrawals",
            Body::Slices(_) => "slices of a mean",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timer;
    use fednode_core::{BlobId, BlobRef, Global, NodeId};

    #[test]
    fn input_and_output_are_one_short_line_each() {
        let timer = Input::Timer(Timer::Act(Round(3)));
        assert_eq!(Brief(&timer).to_string(), "timer: Act(Round(3))");
        let members = Vec::new();
        let mean = BlobRef::of(b"mean");
        let parent = BlobId::of(b"parent");
        let global = Global {
            members,
            mean,
            parent,
            previous: None,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        let publish = Output::Publish {
            round: Round(3),
            body: Body::from(global),
        };
        assert_eq!(
            Brief(&publish).to_string(),
            "publish: closed round of round 3"
        );
        let strike = Output::Strike {
            node: NodeId::from_bytes([1; 32]),
            reason: "late".into(),
        };
        let short = NodeId::from_bytes([1; 32]).short().to_string();
        assert_eq!(Brief(&strike).to_string(), format!("strike: {short}, late"));
    }
}
