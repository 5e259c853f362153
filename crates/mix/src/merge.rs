//! An own expert mixed with what arrived of its row (FedMoE-DA Eq. 11): `Phi_i <- sum over j in S_i of a_ij Phi_j`.
//!
//! Sources that did not arrive are dropped and the rest is renormalised, which equals the softmax over what is there.
//! All sources are the versions *before* mixing: the caller merges every row before it replaces any own expert.

use std::sync::Arc;

use fednode_core::{ExpertId, LayoutMismatch, ParamSet, PlanRow};

use crate::rule::{Accumulator, AverageError};

/// An own expert after mixing.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// Its new parameters; the very own expert if nothing else arrived.
    pub params: Arc<ParamSet>,
    /// What was mixed, in the order of the row, with the renormalised weights.
    pub sources: Vec<(ExpertId, f64)>,
    /// What did not arrive.
    pub missing: Vec<ExpertId>,
}

impl Merged {
    /// Tells whether anything else than the own expert went in.
    pub fn is_mixed(&self, own: ExpertId) -> bool {
        self.sources.iter().any(|(expert, _)| *expert != own)
    }
}

/// Tells why a row could not be merged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The row does not begin with the own expert, or that expert is not available.
    #[error("the own expert of row {0} is not available")]
    OwnMissing(fednode_core::Slot),
    /// A source belongs to another model; screening should have refused it.
    #[error("expert {expert} does not fit: {mismatch}")]
    Layout {
        /// Whose.
        expert: ExpertId,
        /// The first difference.
        mismatch: LayoutMismatch,
    },
    /// The row holds weights that are no shares.
    #[error("row {0} holds a weight that is not a finite number of at least zero")]
    Weights(fednode_core::Slot),
}

/// Merges one row out of the sources that `available` can give.
///
/// A row's own expert is its first source: nothing is more similar than the expert itself, and it wins ties. Sources of
/// weight 0, the own expert perhaps among them, take no part; if there are no others, the own expert stays as it is.
///
/// # Errors
/// Fails if the own expert is not there, if a source has another layout and if the row's weights are no shares.
pub fn merge_row(
    row: &PlanRow,
    available: &mut dyn FnMut(ExpertId) -> Option<Arc<ParamSet>>,
) -> Result<Merged, MergeError> {
    let own = row
        .sources
        .first()
        .filter(|source| source.expert.slot == row.slot && source.weight >= 0.0);
    let own = own.ok_or(MergeError::OwnMissing(row.slot))?;
    let own_params = available(own.expert).ok_or(MergeError::OwnMissing(row.slot))?;

    let mut accumulator = Accumulator::new(own_params.layout());
    let mut merged = Merged {
        params: Arc::clone(&own_params),
        sources: Vec::new(),
        missing: Vec::new(),
    };
    for source in row.sources.iter().filter(|source| source.weight != 0.0) {
        let params = if source.expert == own.expert {
            Some(own_params.clone())
        } else {
            available(source.expert)
        };
        let Some(params) = params else {
            merged.missing.push(source.expert);
            continue;
        };
        accumulator
            .add(source.weight, &params)
            .map_err(|error| fault(error, row, source.expert))?;
        merged.sources.push((source.expert, source.weight));
    }
    let total = accumulator.total_weight();
    merged
        .sources
        .iter_mut()
        .for_each(|(_, weight)| *weight /= total);
    if merged.sources.is_empty() {
        merged.sources.push((own.expert, 1.0));
    }
    if merged.is_mixed(own.expert) {
        merged.params = Arc::new(
            accumulator
                .finish()
                .map_err(|error| fault(error, row, own.expert))?,
        );
    }
    Ok(merged)
}

fn fault(error: AverageError, row: &PlanRow, expert: ExpertId) -> MergeError {
    match error {
        AverageError::Layout(mismatch) => MergeError::Layout { expert, mismatch },
        AverageError::Weight(_)
        | AverageError::NoMembers
        | AverageError::NobodyBelieved(_)
        | AverageError::Unsuited(_)
        | AverageError::Rule(_) => MergeError::Weights(row.slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{NodeId, Slot, Source};

    fn expert(byte: u8) -> ExpertId {
        ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(0),
        }
    }

    fn row(weights: &[(u8, f64)]) -> PlanRow {
        let source = |(byte, weight): &(u8, f64)| Source {
            expert: expert(*byte),
            similarity: 0.0,
            weight: *weight,
        };
        PlanRow {
            slot: Slot(0),
            sources: weights.iter().map(source).collect(),
        }
    }

    fn params(values: &[f32]) -> Arc<ParamSet> {
        let mut params = ParamSet::new();
        params
            .insert("w", &[values.len()], values.to_vec())
            .unwrap();
        Arc::new(params)
    }

    /// Expert `b` holds the value `b`, except those that are absent.
    fn without(absent: &[u8]) -> impl FnMut(ExpertId) -> Option<Arc<ParamSet>> {
        move |id| {
            let byte = id.owner.as_bytes()[0];
            (!absent.contains(&byte)).then(|| params(&[f32::from(byte)]))
        }
    }

    #[test]
    fn mixes_by_weight() {
        let merged = merge_row(&row(&[(1, 0.5), (2, 0.25), (4, 0.25)]), &mut without(&[])).unwrap();
        assert_eq!(*merged.params, *params(&[2.0]));
        assert_eq!(merged.missing, []);
    }

    #[test]
    fn renormalises_over_what_arrived() {
        let merged =
            merge_row(&row(&[(1, 0.5), (2, 0.25), (4, 0.25)]), &mut without(&[2])).unwrap();
        assert_eq!(*merged.params, *params(&[2.0])); // (0.5 * 1 + 0.25 * 4) / 0.75
        assert_eq!(
            merged.sources,
            [(expert(1), 0.5 / 0.75), (expert(4), 0.25 / 0.75)]
        );
        assert_eq!(merged.missing, [expert(2)]);
    }

    #[test]
    fn alone_it_stays_bit_identical() {
        let own = params(&[0.1, -0.0, f32::NAN]);
        let mut available = |id| (id == expert(1)).then(|| Arc::clone(&own));
        let merged = merge_row(&row(&[(1, 0.3), (2, 0.7)]), &mut available).unwrap();
        assert!(Arc::ptr_eq(&merged.params, &own));
        assert_eq!(merged.sources, [(expert(1), 1.0)]);
    }

    #[test]
    fn sources_of_weight_zero_take_no_part() {
        let merged = merge_row(
            &row(&[(1, 0.0), (2, 0.5), (4, 0.5), (9, 0.0)]),
            &mut without(&[9]),
        )
        .unwrap();
        assert_eq!(*merged.params, *params(&[3.0]));
        assert_eq!((merged.sources.len(), merged.missing.len()), (2, 0));
        let merged = merge_row(&row(&[(1, 0.0), (2, 0.0)]), &mut without(&[])).unwrap();
        assert_eq!((*merged.params).clone(), *params(&[1.0]));
        assert_eq!(merged.sources, [(expert(1), 1.0)]);
    }

    #[test]
    fn fails_without_the_own_expert() {
        let missing = Err(MergeError::OwnMissing(Slot(0)));
        assert_eq!(
            merge_row(&row(&[(1, 0.5), (2, 0.5)]), &mut without(&[1])),
            missing
        );
        assert_eq!(merge_row(&row(&[]), &mut without(&[])), missing);
    }

    #[test]
    fn names_the_source_that_does_not_fit() {
        let mut available = |id| {
            Some(if id == expert(2) {
                params(&[1.0, 2.0])
            } else {
                params(&[1.0])
            })
        };
        let error = merge_row(&row(&[(1, 0.5), (2, 0.5)]), &mut available).unwrap_err();
        assert!(
            matches!(error, MergeError::Layout { expert: id, .. } if id == expert(2)),
            "{error}"
        );
        let error = merge_row(&row(&[(1, 0.5), (2, f64::NAN)]), &mut without(&[])).unwrap_err();
        assert_eq!(error, MergeError::Weights(Slot(0)));
    }
}
