//! What liars make of the numbers that they are about to publish.
//!
//! ```text
//! times f    w ↦ f w
//! step f     w ↦ b + f (w − b)       b what the liar was given; without one, or of another shape, w ↦ f w
//! ```
//!
//! A step of −1 goes back as far as training went on: sign flipping (Li, Xu, Chen, Giannakis and Ling, AAAI 2019). A large
//! one replaces the mean by the liar's own part: model replacement (Bagdasaryan et al., AISTATS 2020).

use std::sync::Arc;

use fednode_core::ParamSet;

use crate::scenario::Behaviour;

/// What becomes of one thing that a member made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spoiling {
    /// All numbers are multiplied.
    Times(f32),
    /// The way from what it was given is multiplied.
    Step(f32),
}

/// How much longer than its own a liar's step is that takes over the mean.
const LONG: f32 = 100.0;

/// Returns what becomes of a member's shared part.
pub(super) fn of_part(behaviour: Option<Behaviour>) -> Option<Spoiling> {
    match behaviour? {
        Behaviour::HugePart | Behaviour::Unscreened => Some(Spoiling::Times(1e3)),
        behaviour => of_step(behaviour),
    }
}

/// Returns what becomes of a member's experts.
pub(super) fn of_experts(behaviour: Option<Behaviour>) -> Option<Spoiling> {
    match behaviour? {
        Behaviour::NanExperts => Some(Spoiling::Times(f32::NAN)),
        Behaviour::HugeExperts => Some(Spoiling::Times(1e3)),
        Behaviour::Copied => Some(Spoiling::Step(-1.0)),
        behaviour => of_step(behaviour),
    }
}

/// Returns what becomes of a member's private module.
pub(super) fn of_module(behaviour: Option<Behaviour>) -> Option<Spoiling> {
    match behaviour? {
        Behaviour::NanExperts => Some(Spoiling::Times(f32::NAN)),
        behaviour => of_step(behaviour),
    }
}

fn of_step(behaviour: Behaviour) -> Option<Spoiling> {
    match behaviour {
        Behaviour::LongStep => Some(Spoiling::Step(LONG)),
        Behaviour::StepBack => Some(Spoiling::Step(-1.0)),
        _ => None,
    }
}

/// Tells whether nobody may use what such a member makes of its experts and modules.
pub(super) fn is_invalid(behaviour: Option<Behaviour>) -> bool {
    matches!(
        behaviour,
        Some(Behaviour::NanExperts | Behaviour::HugeExperts)
    )
}

impl Spoiling {
    /// Spoils parameters; `base` is what the member was given.
    pub(super) fn apply(self, mut params: Arc<ParamSet>, base: Option<&ParamSet>) -> Arc<ParamSet> {
        let (factor, base) = match self {
            Self::Times(factor) => (factor, None),
            Self::Step(factor) => (factor, base),
        };
        let base = base.filter(|base| params.check_layout(&base.layout()).is_ok());
        let tensors = Arc::make_mut(&mut params).iter_mut();
        for (name, tensor) in tensors {
            let from = base.and_then(|base| base.get(name));
            let mut from = from.map(|tensor| tensor.values().iter());
            for value in tensor.values_mut() {
                let start = from.as_mut().and_then(Iterator::next).copied();
                let start = start.unwrap_or_default();
                *value = start + factor * (*value - start);
            }
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(values: &[f32]) -> Arc<ParamSet> {
        let mut params = ParamSet::new();
        let shape = [values.len()];
        params.insert("w", &shape, values.to_vec()).unwrap();
        Arc::new(params)
    }

    fn spoilt(spoiling: Spoiling, base: Option<&ParamSet>) -> Vec<f32> {
        let spoilt = spoiling.apply(params(&[1.0, 3.0]), base);
        spoilt.values().collect()
    }

    #[test]
    fn a_step_begins_where_training_began() {
        let base = params(&[2.0, 2.0]);
        assert_eq!(spoilt(Spoiling::Step(-1.0), Some(&base)), [3.0, 1.0]);
        assert_eq!(spoilt(Spoiling::Step(100.0), Some(&base)), [-98.0, 102.0]);
        assert_eq!(spoilt(Spoiling::Times(10.0), Some(&base)), [10.0, 30.0]);
        assert_eq!(spoilt(Spoiling::Step(-1.0), None), [-1.0, -3.0]);
        let other = params(&[2.0]);
        assert_eq!(spoilt(Spoiling::Step(-1.0), Some(&other)), [-1.0, -3.0]);
    }
}
