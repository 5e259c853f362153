//! Features of texts that nobody trained: how often a text has each of the most frequent words.
//!
//! ```text
//! z_w = ln(1 + n_w) / sqrt(n)      n_w: how often word w is in the text; n: how many of its words are in the vocabulary
//! ```
//!
//! w goes over the first 1,024 words of the vocabulary, which numbers the most frequent one first. All nodes have the same
//! vocabulary, so nodes need nothing else in common. That a word counts less than in proportion is usual for texts
//! (`sublinear_tf` of scikit-learn). Random vectors of all words were tried in place of the counts of some, and did worse
//! (experiments/README.md).

use burn::tensor::{Tensor, TensorData};
use fednode_data::Vocabulary;
use fednode_onnx::{Element, Graph, Reduction, Value};

use crate::weights;

/// Most words that are counted.
const MOST: usize = 1024;
/// Numbers below this one are no words: padding and unknown words.
const FIRST: usize = Vocabulary::UNKNOWN as usize + 1;

/// The words that are counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    counted: usize,
}

impl Words {
    /// Takes the first words of a vocabulary with so many entries.
    pub(crate) fn new(vocabulary: usize) -> Self {
        Self::first(vocabulary, MOST)
    }

    /// Takes as many of the first words of a vocabulary at most.
    pub(crate) fn first(vocabulary: usize, most: usize) -> Self {
        Self {
            counted: vocabulary.saturating_sub(FIRST).clamp(1, most),
        }
    }

    /// Returns how many numbers a text's features are.
    pub(crate) const fn width(self) -> usize {
        self.counted
    }

    /// Returns the features of a batch of texts, `[batch, words]`.
    pub(crate) fn features(self, inputs: &Tensor<2>) -> Tensor<2> {
        let [n_texts, length] = inputs.dims();
        let numbers = weights::values(inputs);
        let mut features = vec![0f32; n_texts * self.counted];
        let rows = features.chunks_exact_mut(self.counted);
        for (text, row) in numbers.chunks_exact(length).zip(rows) {
            self.count(text, row);
        }
        let features = TensorData::new(features, [n_texts, self.counted]);
        Tensor::from_data(features, &inputs.device())
    }

    /// Writes the features of one text.
    fn count(self, text: &[f32], row: &mut [f32]) {
        let words = text.iter().map(|number| *number as usize);
        let mut n_words = 0;
        for word in words.filter(|number| *number >= FIRST) {
            n_words += 1;
            if let Some(count) = row.get_mut(word - FIRST) {
                *count += 1.0;
            }
        }
        let length = (n_words.max(1) as f32).sqrt();
        for count in row {
            *count = count.ln_1p() / length;
        }
    }

    /// Writes into a graph what [`Self::features`] computes.
    pub(crate) fn emit(self, graph: &mut Graph, inputs: Value) -> Value {
        let [first, end] = [FIRST, FIRST + self.counted]
            .map(|number| graph.ints("word", vec![number as i64], &[1]));
        let is_known = graph.at_least(inputs, first);
        let is_word = graph.cast(is_known, Element::Float);
        let n_words = graph.reduce(Reduction::Sum, is_word, 1);
        let n_words = graph.clip(n_words, [1.0, f64::from(f32::MAX)]);
        let length = graph.sqrt(n_words);
        // A row of the table for each word that is counted, with a one in its place; rows of zeros for what is not counted.
        let is_rare = graph.at_least(inputs, end);
        let none = graph.ints("not_counted", vec![0], &[1]);
        let counted = graph.choose(is_rare, none, inputs);
        let counted = graph.choose(is_known, counted, none);
        let mut table = vec![0f32; (FIRST + self.counted) * self.counted];
        for word in 0..self.counted {
            table[(FIRST + word) * self.counted + word] = 1.0;
        }
        let table = graph.floats("words", table, &[FIRST + self.counted, self.counted]);
        let found = graph.look_up(table, counted);
        let counts = graph.reduce(Reduction::Sum, found, 1);
        let counts = graph.flat(counts);
        let more = graph.add_number(counts, 1.0);
        let damped = graph.log(more);
        graph.div(damped, length)
    }
}

/// In how many texts each word is.
#[derive(Debug)]
pub(crate) struct Texts(Vec<u64>);

impl Texts {
    /// Starts without any text; `width` is the number of words.
    pub(crate) fn new(width: usize) -> Self {
        Self(vec![0; width])
    }

    /// Counts a text by its features.
    pub(crate) fn count(&mut self, features: &[f32]) {
        let words = self.0.iter_mut().zip(features);
        let present = words.filter(|(_, value)| **value > 0.0);
        present.for_each(|(texts, _)| *texts += 1);
    }

    /// Marks the words that too few of the texts have. Where one text alone has a word, the products of that word with all
    /// others are the text. So they do not leave a node unless noise hides them.
    pub(crate) fn rare(self) -> Vec<bool> {
        let are_few = |texts| texts < Vocabulary::FEWEST_TEXTS;
        self.0.into_iter().map(are_few).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Nine words in all: word 0 twice, word 1 once, six beyond the four that are counted. Padding and an unknown word count
    /// nowhere. ln 3 / 3 and ln 2 / 3.
    #[test]
    fn counts_are_damped_and_divided_by_the_root_of_the_length() {
        let text = [2.0, 3.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 0.0, 0.0];
        let empty = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let texts = TensorData::new([text, empty].concat(), [2, 12]);
        let features = Words::new(6).features(&Tensor::from_data(texts, &Device::flex()));
        let values = weights::values(&features);
        let expected = [0.366_204, 0.231_049, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        crate::algorithm::testing::assert_close(&values, &expected, 1e-6);
    }

    #[test]
    fn the_most_frequent_words_are_counted() {
        assert_eq!(Words::new(98_635).width(), 1024);
        assert_eq!(Words::new(300).width(), 298);
        assert_eq!(
            Words::new(0).width(),
            1,
            "data without words have none to count"
        );
    }
}
