//! Samples in memory: images as bytes, tables as floats, texts as numbers of tokens, one label each.
//!
//! A node keeps its shard in the compact form of its file (a byte per pixel). It turns the shard into floats batch by
//! batch. 70,000 images of 784 pixels are 55 MB this way and 220 MB as floats.
//!
//! **Normalisation.** A byte `x` of an image whose brightest value is `white` becomes `(x / white - 0.5) / 0.5`, that
//! is, between -1 and 1; `white` is 255 for every image format and 16 for the embedded digits. Floats (CSV) are handed
//! out as they are, and so are the numbers of tokens, which are exact as floats.

use std::borrow::Cow;
use std::sync::Arc;

use crate::table::Treatment;
use crate::vocabulary::Vocabulary;

/// Tells why samples could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplesError {
    /// The values do not make up whole samples, one per label.
    #[error("{labels} samples of {per_sample} values need {} values, got {values}", labels * per_sample)]
    Count {
        /// Number of labels.
        labels: usize,
        /// Values of one sample.
        per_sample: usize,
        /// Values given.
        values: usize,
    },
    /// A token's number is not in the vocabulary.
    #[error("token {token} is not in a vocabulary of {entries} entries")]
    Token {
        /// The number.
        token: u32,
        /// Entries of the vocabulary.
        entries: usize,
    },
    /// A label names no class.
    #[error("sample {sample} has label {label}, but there are {classes} classes")]
    Label {
        /// Which sample.
        sample: usize,
        /// Its label.
        label: u16,
        /// Number of classes.
        classes: usize,
    },
    /// A sample's number is not finite.
    #[error("the number to predict of sample {sample} is not finite")]
    Target {
        /// Which sample.
        sample: usize,
    },
}

/// The values of all samples, sample after sample; within a sample channel by channel, row by row.
#[derive(Debug, Clone, PartialEq)]
pub enum Pixels {
    /// Image bytes, normalised when they are handed out.
    Bytes {
        /// One byte per pixel and channel.
        values: Vec<u8>,
        /// The byte that becomes 1; 0 becomes -1.
        white: u8,
    },
    /// Floats, handed out as they are.
    Floats(Vec<f32>),
    /// Numbers of a text's tokens, in its order, handed out as they are.
    Tokens {
        /// One number per place of a text, [`Vocabulary::PADDING`] after its last token.
        ids: Vec<u32>,
        /// What they mean; every number is in it.
        vocabulary: Arc<Vocabulary>,
    },
}

impl Pixels {
    /// Makes the values of images whose brightest byte is 255.
    pub(crate) fn bytes(values: Vec<u8>) -> Self {
        let white = u8::MAX;
        Self::Bytes { values, white }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes { values, .. } => values.len(),
            Self::Floats(values) => values.len(),
            Self::Tokens { ids, .. } => ids.len(),
        }
    }

    /// Tells whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Bytes { values, white } => {
                let tail = values.split_off(at);
                values.shrink_to_fit();
                Self::Bytes {
                    values: tail,
                    white: *white,
                }
            }
            Self::Floats(values) => {
                let tail = values.split_off(at);
                values.shrink_to_fit();
                Self::Floats(tail)
            }
            Self::Tokens { ids, vocabulary } => {
                let tail = ids.split_off(at);
                ids.shrink_to_fit();
                Self::Tokens {
                    ids: tail,
                    vocabulary: Arc::clone(vocabulary),
                }
            }
        }
    }
}

/// Labelled samples of one shape.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Samples {
    /// Channels, height and width of one sample; a table of `n` columns is `[1, 1, n]`.
    pub shape: [usize; 3],
    /// Number of classes; every label is below it.
    pub classes: usize,
    /// The values.
    pub pixels: Pixels,
    /// The class of each sample.
    pub labels: Vec<u16>,
    /// The classes' names, for people.
    pub class_names: Arc<[String]>,
    /// The number of each sample, where numbers are predicted; there is one class then.
    pub targets: Option<Vec<f32>>,
    /// Which domain each sample has, for example which rotation, where transforms of the partition gave it one. No model
    /// sees it; it tells afterwards whether a gate found the domains.
    pub domains: Option<Vec<u16>>,
    /// What the samples were before they drifted; nothing unless they do.
    pub(crate) drift: Option<Box<Drift>>,
}

impl Samples {
    /// Takes samples; the class names also say how many classes there are.
    ///
    /// # Errors
    /// Refuses values that do not make up one sample per label, tokens that are not in the vocabulary, and labels
    /// without a class.
    pub fn new(
        shape: [usize; 3],
        pixels: Pixels,
        labels: Vec<u16>,
        class_names: Arc<[String]>,
    ) -> Result<Self, SamplesError> {
        let per_sample = shape.iter().product();
        if labels.len().checked_mul(per_sample) != Some(pixels.len()) {
            return Err(SamplesError::Count {
                labels: labels.len(),
                per_sample,
                values: pixels.len(),
            });
        }
        if let Pixels::Tokens { ids, vocabulary } = &pixels
            && let Some(token) = ids
                .iter()
                .copied()
                .find(|token| *token as usize >= vocabulary.len())
        {
            return Err(SamplesError::Token {
                token,
                entries: vocabulary.len(),
            });
        }
        let classes = class_names.len();
        if let Some(sample) = labels
            .iter()
            .position(|label| usize::from(*label) >= classes)
        {
            return Err(SamplesError::Label {
                sample,
                label: labels[sample],
                classes,
            });
        }
        Ok(Self {
            shape,
            classes,
            pixels,
            labels,
            class_names,
            targets: None,
            domains: None,
            drift: None,
        })
    }

    /// Takes samples each of which has a number; `name` is what the number is called.
    ///
    /// # Errors
    /// As [`Self::new`]; refuses numbers that are not finite, too.
    pub fn of_numbers(
        shape: [usize; 3],
        pixels: Pixels,
        targets: Vec<f32>,
        name: &str,
    ) -> Result<Self, SamplesError> {
        if let Some(sample) = targets.iter().position(|number| !number.is_finite()) {
            return Err(SamplesError::Target { sample });
        }
        let names = [name.to_owned()].into();
        let samples = Self::new(shape, pixels, vec![0; targets.len()], names)?;
        Ok(Self {
            targets: Some(targets),
            ..samples
        })
    }

    /// Returns the same samples with every number changed; nothing changes where classes are predicted.
    #[must_use]
    pub fn with_targets(mut self, change: impl Fn(f32) -> f32) -> Self {
        let targets = self.targets.iter_mut().flatten();
        targets.for_each(|number| *number = change(*number));
        self
    }

    /// Returns the features that a treatment makes of raw rows of a table.
    pub fn treated(&self, treatment: &Treatment) -> Self {
        let all: Vec<u32> = (0..self.len() as u32).collect();
        let mut rows = Vec::new();
        self.write_batch(&all, &mut rows);
        Self {
            shape: [1, 1, treatment.width()],
            pixels: Pixels::Floats(treatment.apply(&rows)),
            ..self.clone()
        }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Tells whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns what the numbers of texts mean; nothing unless the samples are texts.
    pub fn vocabulary(&self) -> Option<&Arc<Vocabulary>> {
        match &self.pixels {
            Pixels::Tokens { vocabulary, .. } => Some(vocabulary),
            Pixels::Bytes { .. } | Pixels::Floats(_) => None,
        }
    }

    /// Returns the number of values of one sample.
    pub fn values_per_sample(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of memory that one sample's values take, in both states if it drifts.
    pub fn bytes_per_sample(&self) -> usize {
        let bytes_per_value = match &self.pixels {
            Pixels::Bytes { .. } => size_of::<u8>(),
            Pixels::Floats(_) => size_of::<f32>(),
            Pixels::Tokens { .. } => size_of::<u32>(),
        };
        let n_states = 1 + usize::from(self.drift.is_some());
        n_states * bytes_per_value * self.values_per_sample()
    }

    /// Fills `buffer` with the normalised values of the samples at `indices`, in that order. What the buffer held is
    /// gone; its memory is used again, so one buffer serves a whole run.
    ///
    /// # Panics
    /// Panics if an index is not below [`Samples::len`].
    pub fn write_batch(&self, indices: &[u32], buffer: &mut Vec<f32>) {
        let width = self.values_per_sample();
        buffer.clear();
        buffer.reserve(indices.len() * width);
        let ranges = indices
            .iter()
            .map(|index| *index as usize * width..(*index as usize + 1) * width);
        match &self.pixels {
            Pixels::Bytes { values, white } => {
                let table = normalised(*white);
                ranges.for_each(|range| {
                    buffer.extend(values[range].iter().map(|byte| table[usize::from(*byte)]))
                });
            }
            Pixels::Floats(values) => {
                ranges.for_each(|range| buffer.extend_from_slice(&values[range]))
            }
            Pixels::Tokens { ids, .. } => {
                ranges
                    .for_each(|range| buffer.extend(ids[range].iter().map(|token| *token as f32)));
            }
        }
    }

    /// Returns what a black pixel is handed out as; of a text, the number of an empty place.
    pub fn black(&self) -> f32 {
        match &self.pixels {
            Pixels::Bytes { white, .. } => normalised(*white)[0],
            Pixels::Floats(_) => 0.0,
            Pixels::Tokens { .. } => Vocabulary::PADDING as f32,
        }
    }

    /// Returns the samples at `indices`, in that order.
    ///
    /// # Panics
    /// Panics if an index is not below [`Samples::len`].
    #[must_use]
    pub fn subset(&self, indices: &[u32]) -> Self {
        let width = self.values_per_sample();
        let range = |index: &u32| *index as usize * width..(*index as usize + 1) * width;
        let pixels = match &self.pixels {
            Pixels::Bytes { values, white } => {
                let values = indices
                    .iter()
                    .flat_map(|index| &values[range(index)])
                    .copied()
                    .collect();
                Pixels::Bytes {
                    values,
                    white: *white,
                }
            }
            Pixels::Floats(values) => Pixels::Floats(
                indices
                    .iter()
                    .flat_map(|index| &values[range(index)])
                    .copied()
                    .collect(),
            ),
            Pixels::Tokens { ids, vocabulary } => {
                let ids = indices
                    .iter()
                    .flat_map(|index| &ids[range(index)])
                    .copied()
                    .collect();
                Pixels::Tokens {
                    ids,
                    vocabulary: Arc::clone(vocabulary),
                }
            }
        };
        let of = |values: &Vec<u16>| {
            indices
                .iter()
                .map(|index| values[*index as usize])
                .collect()
        };
        let numbers = |values: &Vec<f32>| {
            let values = indices.iter().map(|index| values[*index as usize]);
            values.collect()
        };
        Self {
            shape: self.shape,
            classes: self.classes,
            pixels,
            labels: of(&self.labels),
            class_names: Arc::clone(&self.class_names),
            targets: self.targets.as_ref().map(numbers),
            domains: self.domains.as_ref().map(of),
            drift: self
                .drift
                .as_ref()
                .map(|drift| Box::new(drift.subset(indices))),
        }
    }

    /// Keeps the first `at` samples and returns the others, without holding any sample twice.
    ///
    /// # Panics
    /// Panics if `at` is beyond [`Samples::len`].
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let pixels = self.pixels.split_off(at * self.values_per_sample());
        let labels = self.labels.split_off(at);
        Self {
            shape: self.shape,
            classes: self.classes,
            pixels,
            labels,
            class_names: Arc::clone(&self.class_names),
            targets: self.targets.as_mut().map(|targets| targets.split_off(at)),
            domains: self.domains.as_mut().map(|domains| domains.split_off(at)),
            drift: self
                .drift
                .as_mut()
                .map(|drift| Box::new(drift.split_off(at))),
        }
    }

    /// Returns the samples as they are in a round of a run of so many, counted from 1. Only those differ that drift: of
    /// them a share of `(round - 1) / (rounds - 1)` has, which grows from none to all.
    pub fn in_round(&self, round: u32, rounds: u32) -> Cow<'_, Self> {
        let share = f64::from(round.saturating_sub(1)) / f64::from(rounds.saturating_sub(1).max(1));
        match &self.drift {
            Some(drift) if rounds > 1 && share < 1.0 => Cow::Owned(drift.at(share, self)),
            _ => Cow::Borrowed(self),
        }
    }

    /// Tells whether the samples of one round are not those of another.
    pub fn drift(&self) -> bool {
        self.drift.is_some()
    }

    /// Takes the values of image `at`, its label and its domain from the same sample in another state.
    fn take_over(&mut self, other: &Self, at: usize) {
        let range = at * self.values_per_sample()..(at + 1) * self.values_per_sample();
        if let (Pixels::Bytes { values, .. }, Pixels::Bytes { values: others, .. }) =
            (&mut self.pixels, &other.pixels)
        {
            values[range.clone()].copy_from_slice(&others[range]);
        }
        self.labels[at] = other.labels[at];
        if let (Some(domains), Some(others)) = (&mut self.domains, &other.domains) {
            domains[at] = others[at];
        }
    }

    /// Returns how many samples each class has.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes];
        self.labels
            .iter()
            .for_each(|label| counts[usize::from(*label)] += 1);
        counts
    }
}

/// What drifting samples were in the beginning, and when each leaves that state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drift {
    /// The same samples as they were; they do not drift.
    early: Samples,
    /// For each sample the share of the run after which it is late, between 0 and 1.
    starts: Vec<f64>,
}

impl Drift {
    /// Takes one start for each early sample.
    pub(crate) fn new(early: Samples, starts: Vec<f64>) -> Self {
        debug_assert_eq!(early.len(), starts.len(), "a start for each sample");
        Self { early, starts }
    }

    /// Returns the samples after this share of the run; `late` are those of its end.
    fn at(&self, share: f64, late: &Samples) -> Samples {
        let mut now = self.early.clone();
        for (at, _) in (0..).zip(&self.starts).filter(|(_, start)| **start < share) {
            now.take_over(late, at);
        }
        now
    }

    fn subset(&self, indices: &[u32]) -> Self {
        let starts = indices.iter().map(|index| self.starts[*index as usize]);
        Self {
            early: self.early.subset(indices),
            starts: starts.collect(),
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        Self {
            early: self.early.split_off(at),
            starts: self.starts.split_off(at),
        }
    }
}

/// Returns what each byte becomes.
fn normalised(white: u8) -> [f32; 256] {
    std::array::from_fn(|byte| (byte as f32 / f32::from(white) - 0.5) / 0.5)
}

/// A node's samples, divided by what they may be used for.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// What it learns from.
    pub train: Samples,
    /// What it makes choices with (guards, early stopping); empty if no share is set aside.
    pub validation: Samples,
    /// What it is judged by; no choice may look at it.
    pub test: Samples,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Arc<[String]> {
        (0..n).map(|class| class.to_string()).collect()
    }

    fn three() -> Samples {
        let pixels = Pixels::Bytes {
            values: vec![0, 255, 51, 102, 153, 204],
            white: 255,
        };
        Samples::new([1, 1, 2], pixels, vec![0, 1, 1], names(2)).unwrap()
    }

    #[test]
    fn hands_out_bytes_between_minus_one_and_one() {
        let mut buffer = vec![9.0; 100];
        three().write_batch(&[2, 0], &mut buffer);
        let expected = [0.2, 0.6, -1.0, 1.0];
        assert_eq!(buffer.len(), 4);
        assert!(
            buffer
                .iter()
                .zip(expected)
                .all(|(got, want)| (got - want).abs() < 1e-6),
            "{buffer:?}"
        );
    }

    #[test]
    fn hands_out_floats_as_they_are() {
        let samples = Samples::new(
            [1, 1, 1],
            Pixels::Floats(vec![7.5, -3.0]),
            vec![0, 0],
            names(1),
        )
        .unwrap();
        let mut buffer = Vec::new();
        samples.write_batch(&[1, 1, 0], &mut buffer);
        assert_eq!(buffer, [-3.0, -3.0, 7.5]);
    }

    #[test]
    fn hands_out_tokens_as_they_are() {
        let words: Vec<String> = (0..70_000).map(|word| word.to_string()).collect();
        let vocabulary = Arc::new(
            Vocabulary::new(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap(),
        );
        let tokens = |ids| Pixels::Tokens {
            ids,
            vocabulary: Arc::clone(&vocabulary),
        };
        let mut samples = Samples::new(
            [1, 1, 2],
            tokens(vec![70_001, 0, 1, 2, 3, 4]),
            vec![0; 3],
            names(1),
        )
        .unwrap();
        let mut buffer = Vec::new();
        samples.write_batch(&[2, 0], &mut buffer);
        assert_eq!(buffer, [3.0, 4.0, 70_001.0, 0.0]);
        assert_eq!(samples.subset(&[2]).pixels, tokens(vec![3, 4]));
        let tail = samples.split_off(1);
        assert_eq!(
            (samples.pixels, tail.pixels),
            (tokens(vec![70_001, 0]), tokens(vec![1, 2, 3, 4]))
        );
        let error = Samples::new([1, 1, 1], tokens(vec![70_002]), vec![0], names(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "token 70002 is not in a vocabulary of 70002 entries"
        );
    }

    #[test]
    fn subset_and_split_off_keep_values_with_their_labels() {
        let subset = three().subset(&[2, 0]);
        assert_eq!(
            subset.pixels,
            Pixels::Bytes {
                values: vec![153, 204, 0, 255],
                white: 255
            }
        );
        assert_eq!(subset.labels, [1, 0]);
        let mut head = three();
        let tail = head.split_off(1);
        assert_eq!((head.len(), tail), (1, three().subset(&[1, 2])));
        assert_eq!(three().class_counts(), [1, 2]);
    }

    /// Four samples with starts 1/8, 3/8, 5/8, 7/8 in five rounds: 0, 1, 2, 3 and 4 of them are late.
    #[test]
    fn drifting_samples_are_late_one_after_the_other() {
        let bytes = |value: u8| Pixels::Bytes {
            values: vec![value; 4],
            white: 255,
        };
        let of = |value: u8, domain| Samples {
            domains: Some(vec![domain; 4]),
            ..Samples::new([1, 1, 1], bytes(value), vec![0, 1, 0, 1], names(2)).unwrap()
        };
        let mut samples = of(9, 1);
        assert_eq!(samples.in_round(1, 5).as_ref(), &samples);
        let starts = vec![0.125, 0.625, 0.375, 0.875];
        samples.drift = Some(Box::new(Drift::new(of(3, 0), starts)));
        let in_round = |samples: &Samples, round| {
            let now = samples.in_round(round, 5).into_owned();
            let Pixels::Bytes { values, .. } = now.pixels else {
                panic!("images stay images");
            };
            (values, now.domains.unwrap())
        };
        assert_eq!(in_round(&samples, 1), (vec![3; 4], vec![0; 4]));
        assert_eq!(in_round(&samples, 2), (vec![9, 3, 3, 3], vec![1, 0, 0, 0]));
        assert_eq!(in_round(&samples, 4), (vec![9, 9, 9, 3], vec![1, 1, 1, 0]));
        assert_eq!(in_round(&samples, 5), (vec![9; 4], vec![1; 4]));
        let part = samples.subset(&[3, 0]);
        assert_eq!(in_round(&part, 2), (vec![3, 9], vec![0, 1]));
        let tail = samples.split_off(2);
        assert_eq!(in_round(&tail, 3), (vec![9, 3], vec![1, 0]));
        assert_eq!(in_round(&samples, 3), (vec![9, 3], vec![1, 0]));
        assert_eq!(samples.in_round(1, 1).labels, [0, 1]);
    }

    #[test]
    fn refuses_ragged_values_and_labels_without_class() {
        let bytes = |n| Pixels::Bytes {
            values: vec![0; n],
            white: 255,
        };
        assert!(matches!(
            Samples::new([1, 2, 2], bytes(7), vec![0, 0], names(1)),
            Err(SamplesError::Count { .. })
        ));
        let error = Samples::new([1, 1, 1], bytes(2), vec![0, 5], names(2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sample 1 has label 5, but there are 2 classes"
        );
    }
}
