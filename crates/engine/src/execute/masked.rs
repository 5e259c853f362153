//! The mean of masked parts: of which nobody sees a single one.

use std::collections::BTreeMap;

use fednode_core::{Layout, Member, ParamSet};
use fednode_masked::opening::Unmasking;
use fednode_masked::{fixed, parts};

use super::Load;
use crate::event::{AverageOrder, AverageReport};
use crate::masks::Masked;

/// Looks at the parts, or adds them up and takes the masks off.
pub(super) fn average(
    order: &AverageOrder,
    masked: &Masked,
    load: Load<'_>,
) -> (Option<ParamSet>, AverageReport) {
    let mut report = AverageReport::of(order);
    let summed = masked.sum().summed(&order.members);
    let members: Vec<Member> = order.members.clone();
    let is_summed = |member: &&Member| summed.contains(&member.node);
    let result = match masked {
        Masked::Look(_) => {
            look(members.iter().filter(is_summed), load, &mut report);
            return (None, report);
        }
        // Nobody's part is added up: all started from the same mean, and go on from it.
        Masked::Open { .. } if summed.is_empty() => {
            let mean = members.first().and_then(|member| load(&member.shared.id));
            mean.map(|mean| (*mean).clone())
                .ok_or_else(|| "the mean that all started from is not here".to_owned())
        }
        Masked::Open { .. } => {
            let members = members.iter().filter(is_summed);
            open(order, masked, members, load, &mut report)
        }
    };
    match result {
        Ok(mean) => {
            report.members = members;
            (Some(mean), report)
        }
        Err(reason) => {
            report.impossible = Some(reason);
            (None, report)
        }
    }
}

/// Reports whose parts are gone, and whose have another layout than most.
fn look<'a>(members: impl Iterator<Item = &'a Member>, load: Load<'_>, report: &mut AverageReport) {
    let mut by_layout: BTreeMap<Layout, Vec<Member>> = BTreeMap::new();
    for member in members {
        let Some(part) = load(&member.shared.id) else {
            report.lost.push(member.node);
            continue;
        };
        let layout = part.layout();
        match parts::layout_of(&layout) {
            Ok(_) => by_layout.entry(layout).or_default().push(*member),
            Err(fault) => report.rejected.push((member.node, fault.to_string())),
        }
    }
    // Of two layouts that equally many have, the first by name counts, so that all find the same.
    let common = by_layout
        .iter()
        .rev()
        .max_by_key(|(_, members)| members.len());
    let common = common.map(|(layout, _)| layout.clone());
    for (layout, members) in by_layout {
        if Some(&layout) != common.as_ref() {
            let fault = parts::PartFault::Layout.to_string();
            let strangers = members.iter().map(|member| (member.node, fault.clone()));
            report.rejected.extend(strangers);
        }
    }
}

fn open<'a>(
    order: &AverageOrder,
    masked: &Masked,
    members: impl Iterator<Item = &'a Member>,
    load: Load<'_>,
    report: &mut AverageReport,
) -> Result<ParamSet, String> {
    let Masked::Open { sum, words } = masked else {
        return Err("no words that take masks off".to_owned());
    };
    let mut total: Option<(Layout, Vec<u64>)> = None;
    for member in members {
        let Some(part) = load(&member.shared.id) else {
            report.lost.push(member.node);
            continue;
        };
        let name = member.node.letters();
        let vector = parts::unwrap(&part).map_err(|fault| format!("{name}: {fault}"))?;
        match &mut total {
            None => total = Some((part.layout(), vector)),
            Some((layout, total)) => {
                part.check_layout(layout)
                    .map_err(|fault| format!("{name}: {fault}"))?;
                fixed::add(total, &vector);
            }
        }
    }
    if !report.lost.is_empty() {
        return Err("parts of the sum are not here any more".to_owned());
    }
    let (layout, mut total) = total.ok_or("a sum of nobody")?;
    let roster = sum.roster().ok_or("a sum of nobody")?;
    let survivors = sum.survivors(&order.members).ok_or("a sum of nobody")??;
    let mut unmasking = Unmasking::new(roster, &survivors);
    for (author, word) in words {
        let heard = unmasking.hear(*author, word);
        heard.map_err(|fault| format!("{}: {fault}", author.letters()))?;
    }
    let opening = unmasking.open().map_err(|still| still.to_string())?;
    opening.clear(&mut total, 0);
    let layout = parts::layout_of(&layout).map_err(|fault| fault.to_string())?;
    if !masked.sum().is_total() {
        let mean = parts::mean(&layout, &total).map_err(|fault| fault.to_string())?;
        return Ok(mean.0);
    }
    let (total, weight) = parts::total(&layout, &total).map_err(|fault| fault.to_string())?;
    // All count alike in a total. Whoever says more of itself may put in larger numbers, too.
    let n = survivors.nodes().count();
    let is_due = weight as usize == n;
    is_due
        .then_some(total)
        .ok_or_else(|| format!("a sum of {n} members whose weights are {weight} together"))
}
