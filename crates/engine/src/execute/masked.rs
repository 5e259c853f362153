//! The mean of masked parts, of which nobody sees a single one; or their total, or that of each group.

use std::collections::BTreeMap;

use fednode_core::{Layout, Member, ParamSet, stack};
use fednode_masked::opening::Unmasking;
use fednode_masked::roster::Roster;
use fednode_masked::survivors::Survivors;
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
    let roster = sum.roster().ok_or("a sum of nobody")?;
    let (layout, mut sums) = add_up(roster, members, load, report)?;
    let survivors = sum.survivors(&order.members).ok_or("a sum of nobody")??;
    let mut unmasking = Unmasking::new(roster, &survivors);
    for (author, word) in words {
        let heard = unmasking.hear(*author, word);
        heard.map_err(|fault| format!("{}: {fault}", author.letters()))?;
    }
    let opening = unmasking.open().map_err(|still| still.to_string())?;
    // Masks come off sums alone: no single part is ever without them.
    for (group, sum) in sums.iter_mut().enumerate() {
        opening.clear(group, sum, 0);
    }
    let layout = parts::layout_of(&layout).map_err(|fault| fault.to_string())?;
    if sum.is_grouped() {
        let sums = sums.iter().enumerate();
        let sums = sums.map(|(group, sum)| opening.opens(group).then_some(sum.as_slice()));
        return totals(roster, &survivors, &layout, &sums.collect::<Vec<_>>());
    }
    let [whole] = sums.as_slice() else {
        return Err("a sum of nobody".to_owned());
    };
    if sum.is_total() {
        return total(&layout, whole, survivors.nodes().count());
    }
    let mean = parts::mean(&layout, whole).map_err(|fault| fault.to_string())?;
    Ok(mean.0)
}

/// Adds up the parts of each group. Groups of nobody have zeros.
fn add_up<'a>(
    roster: &Roster,
    members: impl Iterator<Item = &'a Member>,
    load: Load<'_>,
    report: &mut AverageReport,
) -> Result<(Layout, Vec<Vec<u64>>), String> {
    let mut all: Option<(Layout, Vec<Vec<u64>>)> = None;
    for member in members {
        let Some(part) = load(&member.shared.id) else {
            report.lost.push(member.node);
            continue;
        };
        let name = member.node.letters();
        let vector = parts::unwrap(&part).map_err(|fault| format!("{name}: {fault}"))?;
        let (layout, sums) = all.get_or_insert_with(|| {
            let zeros = vec![0; vector.len()];
            (part.layout(), vec![zeros; roster.n_groups()])
        });
        part.check_layout(layout)
            .map_err(|fault| format!("{name}: {fault}"))?;
        let group = roster.group_of(member.node);
        let sum = group.and_then(|group| sums.get_mut(group));
        fixed::add(sum.ok_or("a part of a stranger")?, &vector);
    }
    // Words are for the sum of exactly these survivors. With one part less, masks would stay on it.
    if !report.lost.is_empty() {
        return Err("parts of the sum are not here any more".to_owned());
    }
    all.ok_or_else(|| "a sum of nobody".to_owned())
}

/// Returns the total that a sum of so many members stands for. All count alike in a total. Whoever says more of itself may put
/// in larger numbers, too.
fn total(layout: &Layout, sum: &[u64], members: usize) -> Result<ParamSet, String> {
    let (total, weight) = parts::total(layout, sum).map_err(|fault| fault.to_string())?;
    let is_due = weight as usize == members;
    is_due
        .then_some(total)
        .ok_or_else(|| format!("a sum of {members} members whose weights are {weight} together"))
}

/// Returns the totals of all groups in one set. One whose masks stay on, or that stands for nothing, has zeros, as if nobody were in
/// it: a liar spoils the sum of its own group alone.
fn totals(
    roster: &Roster,
    survivors: &Survivors,
    layout: &Layout,
    sums: &[Option<&[u64]>],
) -> Result<ParamSet, String> {
    let mut zeros = ParamSet::new();
    for (name, shape) in layout {
        let values = vec![0.0; shape.iter().product()];
        let inserted = zeros.insert(name.clone(), shape, values);
        inserted.map_err(|fault| fault.to_string())?;
    }
    let group = |(at, sum): (usize, &Option<&[u64]>)| {
        let members = survivors
            .nodes()
            .filter(|node| roster.group_of(*node) == Some(at))
            .count();
        let opened = match sum {
            _ if members == 0 => Err("no members are left".to_owned()),
            None => Err("a member gave away false shares of its secret".to_owned()),
            Some(sum) => total(layout, sum, members),
        };
        opened
            .inspect_err(|reason| tracing::warn!(group = at, reason, "a group has no sum"))
            .ok()
    };
    let groups: Vec<Option<ParamSet>> = sums.iter().enumerate().map(group).collect();
    if groups.iter().all(Option::is_none) {
        return Err("no group has a sum".to_owned());
    }
    let groups = groups
        .into_iter()
        .map(|group| group.unwrap_or_else(|| zeros.clone()));
    stack::stacked(&groups.collect::<Vec<_>>()).ok_or_else(|| "too many groups".to_owned())
}
