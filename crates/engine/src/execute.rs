//! The two orders that need numbers, as pure functions over whoever can load a blob.
//!
//! The daemon calls them on a worker thread with the store behind `load`; the simulator with a map. This is gate four
//! for hostile input: shape, finiteness and norm against our own model, in one place.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{BlobId, BlobRef, ExpertId, FederationSpec, Member, NodeId, ParamSet, Slot};
use fednode_mix::{average as mean, merge as mix, screen};

use crate::event::{AverageOrder, AverageReport, MergeOrder, MergeReport, Purpose};

/// Loads a held blob's parameters; `None` if it is not held or not decodable.
pub type Load<'a> = &'a mut dyn FnMut(&BlobId) -> Option<Arc<ParamSet>>;

/// Experts that changed, and the adopted shared part.
#[derive(Debug, Default)]
pub struct Adoption {
    /// The mixed experts by slot; those that nothing was mixed into are left out.
    pub experts: Vec<(Slot, Arc<ParamSet>)>,
    /// The new shared part.
    pub shared: Option<Arc<ParamSet>>,
    /// The weights that were really used, by slot, after what was missing or refused.
    pub used: Vec<(Slot, Vec<(ExpertId, f64)>)>,
}

/// Screens and mixes experts (FedMoE-DA Eq. 11) and screens the shared part.
///
/// `own_shared` is the node's own version of the shared part, against which the mean's shape and norm are judged.
pub fn merge(
    order: &MergeOrder,
    spec: &FederationSpec,
    me: NodeId,
    own_shared: Option<&ParamSet>,
    load: Load<'_>,
) -> (Adoption, MergeReport) {
    let mut adoption = Adoption::default();
    let mut report = MergeReport { round: order.round, ..MergeReport::default() };
    for row in &order.rows {
        let Some(own) = order.own.get(usize::from(row.slot.0)).and_then(|blob| load(&blob.id)) else {
            continue;
        };
        let candidates = load_row(order, row, me, load);
        let accepted = screen_row(&own, candidates, spec, &mut report);
        let own_id = ExpertId { owner: me, slot: row.slot };
        let mut available = |expert: ExpertId| match expert {
            _ if expert == own_id => Some(Arc::clone(&own)),
            _ => accepted.get(&expert).cloned(),
        };
        let Ok(merged) = mix::merge_row(row, &mut available) else { continue };
        if merged.sources.len() > 1 {
            adoption.experts.push((row.slot, merged.params));
        }
        adoption.used.push((row.slot, merged.sources));
    }
    if let (Some(blob), Some(own)) = (order.adopt, own_shared) {
        match adopt(blob, own, spec, load) {
            Ok(shared) => adoption.shared = Some(shared),
            Err(reason) => report.refused_mean = Some(reason),
        }
    }
    report.rejected.sort_by_key(|(expert, _)| *expert);
    report.rejected.dedup_by(|a, b| a.0 == b.0);
    (adoption, report)
}

fn load_row(
    order: &MergeOrder,
    row: &fednode_core::PlanRow,
    me: NodeId,
    load: Load<'_>,
) -> Vec<(ExpertId, Arc<ParamSet>)> {
    let blob_of = |expert: ExpertId| match expert.owner == me {
        true => order.own.get(usize::from(expert.slot.0)).copied(),
        false => order.sources.get(&expert).copied(),
    };
    let others = row
        .sources
        .iter()
        .map(|source| source.expert)
        .filter(|expert| *expert != ExpertId { owner: me, slot: row.slot });
    others.filter_map(|expert| Some((expert, load(&blob_of(expert)?.id)?))).collect()
}

fn screen_row(
    own: &ParamSet,
    candidates: Vec<(ExpertId, Arc<ParamSet>)>,
    spec: &FederationSpec,
    report: &mut MergeReport,
) -> BTreeMap<ExpertId, Arc<ParamSet>> {
    let mut accepted = Vec::new();
    for (expert, params) in candidates {
        match screen::screen(&params, own, spec.limits.max_norm_ratio) {
            Ok(()) => accepted.push((expert, params)),
            Err(fault) => report.rejected.push((expert, fault.to_string())),
        }
    }
    let max_distance = spec.exchange.experts.as_ref().and_then(|experts| experts.max_distance);
    let far = max_distance.map(|multiple| screen::far_sources(own, &accepted, multiple)).unwrap_or_default();
    accepted.into_iter().filter(|(expert, _)| !far.contains(expert)).collect()
}

fn adopt(blob: BlobRef, own: &ParamSet, spec: &FederationSpec, load: Load<'_>) -> Result<Arc<ParamSet>, String> {
    let mean = load(&blob.id).ok_or("the mean cannot be read")?;
    screen::screen(&mean, own, spec.limits.max_norm_ratio).map_err(|fault| fault.to_string())?;
    Ok(mean)
}

/// Computes a mean; when closing, members that do not fit the rest are left out first.
///
/// Returns the mean's parameters beside the report, whose [`AverageReport::mean`] names their canonical bytes.
pub fn average(order: &AverageOrder, spec: &FederationSpec, load: Load<'_>) -> (Option<ParamSet>, AverageReport) {
    let mut report = AverageReport {
        round: order.round,
        purpose: order.purpose,
        mean: None,
        members: Vec::new(),
        rejected: Vec::new(),
    };
    let Some(averaging) = &spec.exchange.averaging else { return (None, report) };
    let mut parts: Vec<(Member, Arc<ParamSet>)> = Vec::new();
    for member in &order.members {
        match load(&member.shared.id) {
            Some(params) => parts.push((*member, params)),
            None => report.rejected.push((member.node, "its shared part cannot be read".into())),
        }
    }
    if order.purpose == Purpose::Close {
        parts = screen_parts(parts, spec.limits.max_norm_ratio, &mut report.rejected);
    } else if parts.len() < order.members.len() {
        return (None, report);
    }
    let weighted: Vec<(f64, Arc<ParamSet>)> = parts.iter().map(|(m, params)| (m.weight, Arc::clone(params))).collect();
    let Ok(mean) = mean::average(averaging.rule, &weighted) else { return (None, report) };
    report.members = parts.into_iter().map(|(member, _)| member).collect();
    report.mean = Some(mean.to_blob().0);
    (Some(mean), report)
}

/// Keeps the parts that have the most common layout, finite values and a norm near the median's.
fn screen_parts(
    parts: Vec<(Member, Arc<ParamSet>)>,
    max_norm_ratio: f64,
    rejected: &mut Vec<(NodeId, String)>,
) -> Vec<(Member, Arc<ParamSet>)> {
    let Some(reference) = reference_part(&parts) else { return parts };
    parts
        .into_iter()
        .filter(|(member, params)| match screen::screen(params, &reference, max_norm_ratio) {
            Ok(()) => true,
            Err(fault) => {
                rejected.push((member.node, fault.to_string()));
                false
            }
        })
        .collect()
}

/// Returns the part of median norm among those with the most common layout: what a minority of liars cannot choose.
fn reference_part(parts: &[(Member, Arc<ParamSet>)]) -> Option<Arc<ParamSet>> {
    let mut by_layout: BTreeMap<fednode_core::Layout, Vec<(f64, &Arc<ParamSet>)>> = BTreeMap::new();
    for (_, params) in parts {
        let norm = params.values().map(|value| f64::from(value).powi(2)).sum::<f64>();
        by_layout.entry(params.layout()).or_default().push((norm, params));
    }
    let mut common = by_layout.into_values().max_by_key(Vec::len)?;
    common.retain(|(norm, _)| norm.is_finite());
    common.sort_by(|a, b| a.0.total_cmp(&b.0));
    common.get(common.len() / 2).map(|(_, params)| Arc::clone(params))
}
