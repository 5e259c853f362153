//! The embedding of texts: a row of numbers per word, and the mean of a text's rows (fastText: Joulin et al., arXiv 1607.01759).
//!
//! ```text
//! input   [batch, length]   numbers of tokens as floats: 0 padding, 1 an unknown word, 2 and more the vocabulary
//! table   [vocabulary, width]
//! output  [batch, width]    sum of the rows of a text's known words, over their number, or over `length`
//! ```
//!
//! Padding and unknown words have no row of their own: they add nothing and get no gradient, and the first two rows of
//! the table are zeros for ever. A text without known words gives zeros. No one-hot matrix and no `[batch, length,
//! width]` exists on the CPU: forward and backward walk along the tokens and touch a row each. The gradient itself is as
//! large as the table, since all that receives it is made for flat tensors.

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::Tensor;
use fednode_onnx::{Element, Graph, Reduction, Value};

use super::cpu::{Operand, record, register, slice, tensor};
use super::layer::{Initial, Layer, Parameter, Run};
use crate::weights;

/// Numbers below this one are no words: padding and unknown words.
pub(super) const FIRST_WORD: usize = 2;

/// What a text's sum is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mean {
    /// The number of its known words.
    Words,
    /// The number of places, padding included: what PM-MoE's and PFLlib's code does, so that a text of 40 words gives a
    /// fifth of what it says.
    Places,
}

/// A table of rows, one per word, and their mean over a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedding {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Places of a text.
    pub length: usize,
    /// Rows: entries of the vocabulary.
    pub vocabulary: usize,
    /// Numbers of a row.
    pub width: usize,
    /// What the sum is divided by.
    pub mean: Mean,
}

impl Layer for Embedding {
    fn parameters(&self) -> Vec<Parameter> {
        // PyTorch draws N(0, 1).
        let initial = Initial::Rows {
            zeros: FIRST_WORD * self.width,
        };
        let shape = [self.vocabulary, self.width];
        vec![Parameter::new(
            format!("{}.weight", self.name),
            &shape,
            initial,
        )]
    }

    fn n_inputs(&self) -> usize {
        self.length
    }

    fn n_outputs(&self) -> usize {
        self.width
    }

    fn reads_words(&self) -> bool {
        true
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let table = run.next();
        self.walk(&input, &table)
            .unwrap_or_else(|| self.compose(input, table))
    }

    /// The input is a row of whole numbers here, and what is no word has a row of zeros.
    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let mut rows = weights::values(&run.next());
        rows[..FIRST_WORD * self.width].fill(0.0);
        let shape = [self.vocabulary, self.width];
        let table = graph.floats(&format!("{}.weight", self.name), rows, &shape);
        let found = graph.look_up(table, input);
        let sum = graph.reduce(Reduction::Sum, found, 1);
        let sum = graph.flat(sum);
        match self.mean {
            Mean::Words => {
                let first = graph.ints("first_word", vec![FIRST_WORD as i64], &[1]);
                let is_word = graph.at_least(input, first);
                let is_word = graph.cast(is_word, Element::Float);
                let words = graph.reduce(Reduction::Sum, is_word, 1);
                let words = graph.clip(words, [1.0, self.length as f64]);
                graph.div(sum, words)
            }
            Mean::Places => graph.mul_number(sum, 1.0 / self.length as f64),
        }
    }
}

impl Embedding {
    /// Runs it on the CPU; returns nothing if the tensors are elsewhere.
    fn walk(&self, input: &Tensor<2>, table: &Tensor<1>) -> Option<Tensor<2>> {
        let (input, table) = (Operand::of(input)?, Operand::of(table)?);
        let n_samples = input.values.layout().shape()[0];
        let texts = self.texts(slice(&input.values));
        let rows = slice(&table.values);
        let mut output = vec![0.0; n_samples * self.width];
        for (words, sum) in texts.iter().zip(output.chunks_mut(self.width)) {
            for word in words {
                let row = &rows[*word as usize * self.width..][..self.width];
                sum.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
            let share = self.share(words.len());
            sum.iter_mut().for_each(|sum| *sum *= share);
        }
        let output = tensor(output, &[n_samples, self.width]);
        Some(record(
            [table],
            EmbeddingStep,
            EmbeddingState {
                embedding: *self,
                texts,
            },
            output,
        ))
    }

    /// Returns the known words of each text.
    fn texts(&self, input: &[f32]) -> Vec<Vec<u32>> {
        let is_word = |token: &u32| *token as usize >= FIRST_WORD;
        input
            .chunks(self.length)
            .map(|text| {
                text.iter()
                    .map(|token| *token as u32)
                    .filter(is_word)
                    .collect()
            })
            .collect()
    }

    /// Returns what each of so many words counts.
    fn share(&self, words: usize) -> f32 {
        let divisor = match self.mean {
            Mean::Words => words.max(1),
            Mean::Places => self.length,
        };
        1.0 / divisor as f32
    }

    /// Composes the layer of the tensor library's operations; what GPUs run.
    pub(super) fn compose(&self, input: Tensor<2>, table: Tensor<1>) -> Tensor<2> {
        let n_samples = input.dims()[0];
        let is_word = input.clone().greater_equal_elem(FIRST_WORD as f32).float();
        let tokens = input.reshape([n_samples * self.length]).int();
        let rows = table
            .reshape([self.vocabulary, self.width])
            .select(0, tokens);
        let rows = rows.reshape([n_samples, self.length, self.width]);
        let sum = (rows * is_word.clone().unsqueeze_dim(2))
            .sum_dim(1)
            .reshape([n_samples, self.width]);
        match self.mean {
            Mean::Words => sum / is_word.sum_dim(1).clamp_min(1.0),
            Mean::Places => sum.div_scalar(self.length as f32),
        }
    }
}

#[derive(Debug)]
struct EmbeddingStep;

#[derive(Debug, Clone)]
struct EmbeddingState {
    embedding: Embedding,
    /// The known words of each text.
    texts: Vec<Vec<u32>>,
}

impl Backward<Flex, 1> for EmbeddingStep {
    type State = EmbeddingState;

    fn backward(
        self,
        ops: Ops<EmbeddingState, 1>,
        gradients: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let [table] = ops.parents.map(|parent| parent.map(|node| node.id));
        let EmbeddingState { embedding, texts } = ops.state;
        let n_values = embedding.vocabulary * embedding.width;
        let mut found = vec![0.0; n_values];
        for (words, to_text) in texts.iter().zip(slice(&gradient).chunks(embedding.width)) {
            let share = embedding.share(words.len());
            let scaled: Vec<f32> = to_text.iter().map(|value| value * share).collect();
            for word in words {
                let row = &mut found[*word as usize * embedding.width..][..embedding.width];
                row.iter_mut()
                    .zip(&scaled)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
        register(gradients, table, Some(found), &[n_values]);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::weights::values;

    const EMBEDDING: Embedding = Embedding {
        name: "e",
        length: 4,
        vocabulary: 5,
        width: 2,
        mean: Mean::Words,
    };
    /// A text of three known words, one of them twice, with an unknown one between; none known; one.
    const TEXTS: [[f32; 4]; 3] = [
        [3.0, 1.0, 2.0, 3.0],
        [1.0, 0.0, 0.0, 0.0],
        [4.0, 0.0, 0.0, 0.0],
    ];
    const TABLE: [f32; 10] = [7.0, 7.0, 9.0, 9.0, 1.0, 2.0, 3.0, -4.0, 0.5, 0.25];
    /// The loss is the sum of all outputs, each with its own weight.
    const FACTORS: [[f32; 2]; 3] = [[3.0, -6.0], [5.0, 5.0], [1.0, 2.0]];

    type Forward = fn(&Embedding, Tensor<2>, Tensor<1>) -> Tensor<2>;
    const WAYS: [Forward; 2] = [
        |e, input, table| e.walk(&input, &table).unwrap(),
        Embedding::compose,
    ];

    fn run(embedding: &Embedding, table: [f32; 10], forward: Forward) -> [Vec<f32>; 3] {
        let device = Device::flex();
        let table = Tensor::<1>::from_floats(table, &device)
            .autodiff()
            .require_grad();
        let output = forward(
            embedding,
            Tensor::from_floats(TEXTS, &device),
            table.clone(),
        );
        let loss = (output.clone() * Tensor::from_floats(FACTORS, &device)).sum();
        let gradients = loss.backward();
        [
            values(&output),
            values(&table.grad(&gradients).unwrap()),
            values(&loss),
        ]
    }

    #[track_caller]
    fn assert_close(got: &[f32], expected: &[f32]) {
        assert_eq!(got.len(), expected.len());
        assert!(
            got.iter()
                .zip(expected)
                .all(|(got, expected)| (got - expected).abs() < 1e-5),
            "{got:?}"
        );
    }

    /// Text 0: rows 3, 2, 3 sum to (7, -6), over 3 words (7/3, -2), over 4 places (1.75, -1.5). Its gradient (3, -6) is
    /// shared by three words, (1, -2) each, or four places, (0.75, -1.5) each; word 3 gets it twice.
    #[test]
    fn agrees_with_a_worked_example() {
        for forward in WAYS {
            let [output, gradient, _] = run(&EMBEDDING, TABLE, forward);
            assert_close(&output, &[7.0 / 3.0, -2.0, 0.0, 0.0, 0.5, 0.25]);
            assert_close(
                &gradient,
                &[0.0, 0.0, 0.0, 0.0, 1.0, -2.0, 2.0, -4.0, 1.0, 2.0],
            );
            let places = Embedding {
                mean: Mean::Places,
                ..EMBEDDING
            };
            let [output, gradient, _] = run(&places, TABLE, forward);
            assert_close(&output, &[1.75, -1.5, 0.0, 0.0, 0.125, 0.0625]);
            assert_close(
                &gradient,
                &[0.0, 0.0, 0.0, 0.0, 0.75, -1.5, 1.5, -3.0, 0.25, 0.5],
            );
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        const STEP: f32 = 0.25; // The loss is linear in the table, so a long step is as right and less rounded.
        for mean in [Mean::Words, Mean::Places] {
            let embedding = Embedding { mean, ..EMBEDDING };
            let [_, gradient, _] = run(&embedding, TABLE, WAYS[0]);
            let difference = |at: usize| {
                let loss = |step: f32| {
                    let mut table = TABLE;
                    table[at] += step;
                    run(&embedding, table, WAYS[0])[2][0]
                };
                (loss(STEP) - loss(-STEP)) / (2.0 * STEP)
            };
            assert_close(
                &gradient,
                &(0..TABLE.len()).map(difference).collect::<Vec<_>>(),
            );
        }
    }

    #[test]
    fn both_ways_agree_on_long_texts() {
        let (embedding, device) = (
            Embedding {
                length: 200,
                vocabulary: 50,
                width: 32,
                ..EMBEDDING
            },
            Device::flex(),
        );
        let mut rng = crate::random::stream(crate::random::Purpose::Initial, [1, 2, 3]);
        let tokens: Vec<f32> = crate::random::uniform(&mut rng, 25.0, 7 * 200)
            .into_iter()
            .map(|value| (value + 25.0).floor().min(49.0))
            .collect();
        let input = Tensor::<2>::from_data(TensorData::new(tokens, [7, 200]), &device);
        let table = Tensor::<1>::from_floats(
            crate::random::uniform(&mut rng, 1.0, 50 * 32).as_slice(),
            &device,
        );
        let [walked, composed] = WAYS.map(|forward| {
            let table = table.clone().autodiff().require_grad();
            let output = forward(&embedding, input.clone(), table.clone());
            let gradients = (output.clone() * output.clone()).sum().backward();
            [values(&output), values(&table.grad(&gradients).unwrap())]
        });
        walked
            .iter()
            .zip(&composed)
            .for_each(|(walked, composed)| assert_close(walked, composed));
    }
}
