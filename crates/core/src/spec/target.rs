//! The number that a federation predicts, where it predicts no classes.
//!
//! ```text
//! target = { name = "progression", range = [25.0, 346.0] }
//! ```
//!
//! Models learn the number's place in the range, from -1 to 1, so that a step size suits targets of every unit. The range is
//! the same for everybody. Its ends are those of the rows at hand when the spec was made, gone out to one digit of the width. Numbers up
//! to some ten times outside of it are learned as well.

use serde::{Deserialize, Serialize};

/// The number that a federation predicts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the number to predict, such as { name = \"age\", range = [0, 100] }"
)]
pub struct Target {
    /// What the header of a table calls it.
    pub name: String,
    /// About the smallest and the largest number that occur.
    pub range: [f64; 2],
}

/// How large numbers may be, in widths of their range. They have 32 bits: beyond that, a thousandth of the width could not be told.
const FARTHEST: f64 = 1e4;

impl Target {
    /// Returns the place of a number in the range: -1 at its lower end, 1 at its upper one.
    pub fn place(&self, number: f32) -> f32 {
        let (middle, half) = self.middle_and_half();
        ((f64::from(number) - middle) / half) as f32
    }

    /// Returns the number at a place.
    pub fn number(&self, place: f32) -> f32 {
        let (middle, half) = self.middle_and_half();
        (f64::from(place) * half + middle) as f32
    }

    /// Returns the middle of the range and half of its width.
    pub fn middle_and_half(&self) -> (f64, f64) {
        let [low, high] = self.range;
        (low / 2.0 + high / 2.0, high / 2.0 - low / 2.0)
    }

    /// Says what is wrong with it, if anything is.
    pub fn fault(&self) -> Option<&'static str> {
        let [low, high] = self.range;
        if self.name.is_empty() {
            Some("it needs a `name`, that of a column")
        } else if !(low < high && (high - low).is_finite()) {
            Some("its `range` is the smallest and the largest number")
        } else if low.abs().max(high.abs()) > FARTHEST * (high - low) {
            Some(
                "its numbers differ by too little beside their size: subtract what all have in common from them",
            )
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FederationSpec;

    #[test]
    fn numbers_that_32_bits_cannot_tell_apart_are_at_fault() {
        let fault = |range| {
            let name = "y".into();
            Target { name, range }.fault().is_some()
        };
        assert!(!fault([2020.0, 2025.0]) && !fault([-1.0, 1.0]));
        assert!(fault([1e8, 1e8 + 100.0]) && fault([5.0, 5.0]));
    }

    #[test]
    fn the_ends_of_the_range_are_minus_one_and_one() {
        let target = Target {
            name: "y".into(),
            range: [25.0, 346.0],
        };
        assert_eq!(
            [25.0, 185.5, 346.0].map(|y| target.place(y)),
            [-1.0, 0.0, 1.0]
        );
        assert_eq!(
            [-1.0, 0.0, 2.0].map(|place| target.number(place)),
            [25.0, 185.5, 506.5]
        );
    }

    #[test]
    fn a_target_goes_with_one_class_and_needs_a_range() {
        let read = |target: &str, classes: u32| {
            let text = format!(
                "version = 2\n[data]\ntarget = {{ {target} }}\n[fingerprints]\ninput = [1, 1, 3]\nclasses = {classes}"
            );
            FederationSpec::from_toml(&text).map_err(|error| error.0)
        };
        let spec = read("name = 'y', range = [0.0, 5.0]", 1).unwrap();
        assert_eq!(FederationSpec::from_toml(&spec.to_toml()), Ok(spec.clone()));
        assert_ne!(
            spec.id(),
            read("name = 'y', range = [0.0, 6.0]", 1).unwrap().id()
        );
        for (target, classes, part) in [
            (
                "name = 'y', range = [0.0, 5.0]",
                2,
                "`fingerprints.classes`",
            ),
            ("name = 'y', range = [5.0, 5.0]", 1, "`range`"),
            ("name = '', range = [0.0, 5.0]", 1, "`name`"),
        ] {
            let error = read(target, classes).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(FederationSpec::from_toml("[fingerprints]\nclasses = 1").is_err());
    }
}
