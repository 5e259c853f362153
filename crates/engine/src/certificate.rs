//! What makes a closed round a certificate: every member signed what it is counted with.
//!
//! A machine holds a closing against the adverts that it has heard before it follows it. An auditor holds it against those that
//! were kept, years later and without a network. Both ask here.

use fednode_core::masked::{Bytes32, Unmask};
use fednode_core::{
    Accepted, AdvertId, BlobRef, Body, FederationSpec, Global, Local, Member, NodeId, Round,
    Schedule,
};

use crate::closing::weights;
use crate::masks::Sum;
use crate::slices::{Line, Turn, proposal_of, slicing_of};

/// What members say of a closing that counts them.
#[derive(Debug, Clone, PartialEq)]
pub enum Confirmation {
    /// All signed what they are counted with.
    Full,
    /// These adverts of these members are not known; or all are, and most are of an earlier round.
    Lacking(Vec<(NodeId, AdvertId)>),
    /// A member signed otherwise, or weighs otherwise than it must.
    False(String),
}

/// Holds every member of a closing against the advert that it signed. `signed` returns the advert that a member is counted
/// with, if it is known.
pub fn confirm<'a>(
    spec: &FederationSpec,
    schedule: &Schedule,
    (round, global): (Round, &Global),
    signed: impl Fn(&Member) -> Option<&'a Accepted>,
) -> Confirmation {
    let (mut lacking, mut samples, mut in_round) = (Vec::new(), Vec::new(), 0);
    for member in &global.members {
        let Some(advert) = signed(member) else {
            lacking.push((member.node, member.advert));
            continue;
        };
        let Some(local) = counted_so(member, advert, global) else {
            // Whatever is lacking cannot make it true, so nothing else is waited for.
            let node = member.node.letters();
            return Confirmation::False(format!(
                "it counts {node} otherwise than that node signed"
            ));
        };
        // Masks are of one round, and cancel in no other.
        if schedule.masks() && advert.round != round {
            return Confirmation::False("it counts parts of another round".to_owned());
        }
        samples.push(local.n_samples);
        in_round += usize::from(advert.round >= round);
    }
    // The round of an honest closing is the median of its members', so most are of that round or of a later one.
    if !lacking.is_empty() || 2 * in_round <= global.members.len() {
        return Confirmation::Lacking(lacking);
    }
    let weighting = schedule.weighting(round, &spec.exchange);
    let due = weights(&samples, weighting, spec.round.max_weight);
    let members = global.members.iter();
    // Compared to the bit: all work weights out from the same signed samples in the same way.
    if members.zip(due).any(|(member, due)| member.weight != due) {
        return Confirmation::False("it weighs its members otherwise than all must".to_owned());
    }
    Confirmation::Full
}

/// Holds a closing of a masked sum against the sum's roster and the words that took its masks off. `said` returns an advert
/// of a node by its name, if it is known.
pub fn confirm_masks<'a>(
    sum: &Sum,
    (round, global): (Round, &Global),
    said: impl Fn(NodeId, AdvertId) -> Option<&'a Accepted>,
) -> Confirmation {
    let is_false = |why: &str| Confirmation::False(why.to_owned());
    let mut members = global.members.iter();
    if !members.all(|member| sum.admits(member.node, member.shared.id, global.parent)) {
        return is_false("it counts parts that are not of its sum");
    }
    let survivors = match sum.survivors(&global.members) {
        // Nothing was added up, so nothing has changed.
        None if global.mean.id == global.parent => return Confirmation::Full,
        None => return is_false("it has a mean, and nobody's part was to be added up"),
        Some(Err(why)) => return Confirmation::False(why),
        Some(Ok(survivors)) => survivors,
    };
    let (mut words, mut lacking) = (Vec::new(), Vec::new());
    for (node, advert) in &global.unmasked {
        match said(*node, *advert).map(|said| word_of(said, *node, round)) {
            Some(Some(word)) => words.push((*node, word)),
            Some(None) => return is_false("it names words that are none"),
            None => lacking.push((*node, *advert)),
        }
    }
    // A word that is not here may take the last masks off, so the others alone convict nobody.
    if !lacking.is_empty() {
        return Confirmation::Lacking(lacking);
    }
    match sum.opens(&survivors, &words) {
        Ok(()) => Confirmation::Full,
        Err(why) => Confirmation::False(why.to_string()),
    }
}

/// Holds a closing against the words that name the slices of its mean, if it was averaged in slices. `said` returns an advert of a
/// node by its name, if it is known.
pub fn confirm_slices<'a>(
    spec: &FederationSpec,
    schedule: &Schedule,
    (round, global): (Round, &Global),
    said: impl Fn(NodeId, AdvertId) -> Option<&'a Accepted>,
) -> Confirmation {
    let is_false = |why: &str| Confirmation::False(why.to_owned());
    if global.slices.is_empty() {
        return Confirmation::Full;
    }
    let Some(slicing) = slicing_of(spec, schedule, round, &global.members) else {
        return is_false("it names slices of a mean that is not divided");
    };
    let n_words = 2 * slicing.n_slices() as usize;
    if global.slices.len() != n_words || global.mean.size != slicing.size() {
        return is_false("its slices are not those of its mean");
    }
    let of = proposal_of(global).id(round);
    let line = Line::of(spec.draw_seed(), round, &global.members);
    let mut lacking = Vec::new();
    for (slice, pair) in (0..).zip(global.slices.chunks_exact(2)) {
        let has_turn =
            |(node, _): &(NodeId, AdvertId)| line.turn(*node, slice, slicing) != Turn::Never;
        // One alone could say any mean, and so could two who choose each other. So a draw says whose turn it is.
        if pair[0].0 == pair[1].0 || !pair.iter().all(has_turn) {
            return is_false("a slice of its mean is not of two whose turn it was");
        }
        let mut means = Vec::new();
        for (node, advert) in pair {
            match said(*node, *advert) {
                Some(word) => means.push(slice_of(word, *node, (round, of, slice))),
                None => lacking.push((*node, *advert)),
            }
        }
        let fits = |mean: &Option<BlobRef>| mean.is_some_and(|it| it.size == slicing.len(slice));
        if !means.iter().all(|mean| fits(mean) && *mean == means[0]) {
            return is_false("it names words that are of none of its slices");
        }
    }
    if lacking.is_empty() {
        Confirmation::Full
    } else {
        Confirmation::Lacking(lacking)
    }
}

/// Returns the slices of a closing's mean, and which two averaged each. `None` if it is not divided, or if a word is not known.
pub fn slices_of<'a>(
    (round, global): (Round, &Global),
    said: impl Fn(NodeId, AdvertId) -> Option<&'a Accepted>,
) -> Option<Vec<([NodeId; 2], BlobRef)>> {
    if global.slices.is_empty() {
        return None;
    }
    let of = proposal_of(global).id(round);
    let pairs = (0..).zip(global.slices.chunks_exact(2));
    let slices = pairs.map(|(slice, pair)| {
        // A closing is confirmed only if both say the same slice, so the word of one is enough.
        let [(node, advert), (other, _)] = [pair[0], pair[1]];
        let mean = slice_of(said(node, advert)?, node, (round, of, slice))?;
        Some(([node, other], mean))
    });
    slices.collect()
}

/// Returns a slice of a proposal, if this node said there that it has averaged it.
fn slice_of(
    said: &Accepted,
    node: NodeId,
    (round, of, slice): (Round, Bytes32, u32),
) -> Option<BlobRef> {
    match &said.body {
        Body::Slices(slices) if (said.author, said.round) == (node, round) && slices.of == of => {
            let mut means = slices.means.iter();
            means.find(|mean| mean.slice == slice).map(|mean| mean.mean)
        }
        _ => None,
    }
}

/// Returns the word that takes masks off in a round, if this node said that there.
fn word_of(said: &Accepted, node: NodeId, round: Round) -> Option<&Unmask> {
    match &said.body {
        Body::Unmask(word) if (said.author, said.round) == (node, round) => Some(word),
        _ => None,
    }
}

/// Returns a member's update if the closing counts it as its author signed it.
fn counted_so<'a>(member: &Member, advert: &'a Accepted, global: &Global) -> Option<&'a Local> {
    let Body::Local(local) = &advert.body else {
        return None;
    };
    // An update counts after the closing that it was trained from. Else old ones could be counted again.
    let is_so = advert.author == member.node
        && local.shared == Some(member.shared)
        && (local.follows, local.parent) == (global.previous, global.parent);
    is_so.then_some(local)
}
