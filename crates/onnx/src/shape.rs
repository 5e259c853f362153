//! Kinds and shapes of values, and how they go together.

/// What a value is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floats.
    Float,
    /// 64-bit integers.
    Int,
    /// Truth values.
    Truth,
}

impl Element {
    /// Returns its number in the format.
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Float => 1,
            Self::Int => 7,
            Self::Truth => 9,
        }
    }
}

/// One size of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// The number of samples, which is not known.
    Samples,
    /// This number.
    Is(usize),
}

pub(crate) type Shape = Vec<Size>;

/// Makes the shape of what samples have, so many numbers each.
pub(crate) fn of_samples(sizes: &[usize]) -> Shape {
    std::iter::once(Size::Samples)
        .chain(sizes.iter().copied().map(Size::Is))
        .collect()
}

/// Makes a shape that is known as a whole.
pub(crate) fn known(sizes: &[usize]) -> Shape {
    sizes.iter().copied().map(Size::Is).collect()
}

/// Returns the sizes of one sample; nothing of what is no samples' value.
pub(crate) fn per_sample(shape: &[Size]) -> Option<Vec<usize>> {
    match shape.split_first() {
        Some((Size::Samples, rest)) => all_known(rest),
        _ => None,
    }
}

/// Returns the sizes of a shape that is known as a whole.
pub(crate) fn all_known(shape: &[Size]) -> Option<Vec<usize>> {
    let number = |size: &Size| match size {
        Size::Is(number) => Some(*number),
        Size::Samples => None,
    };
    shape.iter().map(number).collect()
}

/// Returns the shape of an operator that goes element by element; sizes of 1 are stretched.
pub(crate) fn broadcast(a: &[Size], b: &[Size]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let size = |shape: &[Size], at: usize| {
        let missing = rank - shape.len();
        at.checked_sub(missing).map_or(Size::Is(1), |at| shape[at])
    };
    let both = |at: usize| match (size(a, at), size(b, at)) {
        (one, other) if one == other => Some(one),
        (Size::Is(1), other) => Some(other),
        (one, Size::Is(1)) => Some(one),
        _ => None,
    };
    (0..rank).map(both).collect()
}

/// Writes a shape for people.
pub(crate) fn shown(shape: &[Size]) -> String {
    let one = |size: &Size| match size {
        Size::Samples => "N".to_owned(),
        Size::Is(number) => number.to_string(),
    };
    let sizes: Vec<String> = shape.iter().map(one).collect();
    format!("[{}]", sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_one_are_stretched_and_others_must_be_equal() {
        let samples = of_samples(&[3, 4]);
        assert_eq!(broadcast(&samples, &known(&[4])), Some(samples.clone()));
        assert_eq!(
            broadcast(&known(&[1, 3, 1]), &samples),
            Some(samples.clone())
        );
        assert_eq!(broadcast(&samples, &[]), Some(samples.clone()));
        assert_eq!(broadcast(&samples, &known(&[3])), None);
        assert_eq!(
            broadcast(&samples, &known(&[2, 3, 4])),
            None,
            "samples are of any number"
        );
        assert_eq!(shown(&samples), "[N, 3, 4]");
    }
}
