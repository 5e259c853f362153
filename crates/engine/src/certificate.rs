//! What makes a closed round a certificate: every member signed what it is counted with.
//!
//! A machine holds a closing against the adverts that it has heard before it follows it. An auditor holds it against those that
//! were kept, years later and without a network. Both ask here.

use fednode_core::{Accepted, Body, FederationSpec, Global, Local, Member, Round, Schedule};

use crate::closing::weights;

/// What members say of a closing that counts them.
#[derive(Debug, Clone, PartialEq)]
pub enum Confirmation {
    /// All signed what they are counted with.
    Full,
    /// The adverts of these members are not known; or all are, and most are of an earlier round.
    Lacking(Vec<Member>),
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
            lacking.push(*member);
            continue;
        };
        let Some(local) = counted_so(member, advert, global) else {
            let node = member.node.letters();
            return Confirmation::False(format!(
                "it counts {node} otherwise than that node signed"
            ));
        };
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
    if members.zip(due).any(|(member, due)| member.weight != due) {
        return Confirmation::False("it weighs its members otherwise than all must".to_owned());
    }
    Confirmation::Full
}

/// Returns a member's update if the closing counts it as its author signed it.
fn counted_so<'a>(member: &Member, advert: &'a Accepted, global: &Global) -> Option<&'a Local> {
    let Body::Local(local) = &advert.body else {
        return None;
    };
    let is_so = advert.author == member.node
        && local.shared == Some(member.shared)
        && (local.follows, local.parent) == (global.previous, global.parent);
    is_so.then_some(local)
}
