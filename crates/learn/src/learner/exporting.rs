//! The model that a learner serves, as one graph in the format of ONNX.
//!
//! ```text
//! raw columns ─► treatment ─► features ─┐
//! images, rows of numbers ──────────────┼─► own model or pool ─► statistics ─► softmax ─► probabilities [N, classes]
//! numbers of tokens ────────────────────┘                                  └─► in the unit of the data ─► numbers [N, 1]
//! ```
//!
//! Every `emit` stands beside the `forward` whose computation it writes down.

use fednode_onnx::{Element, Graph, Reduction, Value};

use super::Learner;
use crate::error::LearnError;

/// The name of the output: a probability of each class.
const PROBABILITIES: &str = "probabilities";
/// The name of the output where a number is predicted.
const NUMBERS: &str = "numbers";

/// What becomes of an image before the graph.
const OF_IMAGES: &str = "outside the graph: a pixel of 0 to 255 becomes (pixel / 255 - 0.5) / 0.5, channel by channel, \
                         row by row; the built-in digits end at 16 in place of 255";
/// What becomes of a row of a raw table.
const OF_COLUMNS: &str = "inside the graph: filling, scaling and levels of columns; a gap is NaN, a truth 0 or 1, a level \
                          its number in `columns`, any other word the number after the last level";
/// What becomes of what a backbone hands out.
const OF_FEATURES: &str = "inside the graph: signed square roots, then rows whose squares have mean 1; images go through the \
                           backbone first, which `backbone` describes";
/// Keeps a row of zeros from being divided by 0.
const LEAST: f64 = 1e-30;
/// What becomes of rows of numbers.
const OF_NUMBERS: &str = "none: numbers as they are";
/// What becomes of texts.
const OF_TEXTS: &str = "none: numbers of tokens, 0 for an empty place, 1 for an unknown word";

impl Learner {
    /// Returns the served model as a file in the format of ONNX, for any number of samples at once. Its output is
    /// `probabilities`, `[N, classes]`, or `numbers`, `[N, 1]`, equal to those of [`Self::predict`] but for rounding. Its input, by what samples
    /// are:
    ///
    /// | samples | input | holds |
    /// |---|---|---|
    /// | images | `images`, `[N, C, H, W]` | normalised pixels |
    /// | raw tables | `columns`, `[N, columns]` | values as encoded, NaN for gaps |
    /// | images behind a backbone | `features`, `[N, width]` | what the backbone hands out |
    /// | other rows | `rows`, `[N, width]` | numbers as they are |
    /// | texts | `tokens`, `[N, length]`, integers | numbers of tokens |
    ///
    /// The pairs are written beside the graph, after `input` and `normalisation`, which say the same in words.
    ///
    /// # Errors
    /// Fails if the file would be larger than the format allows.
    pub fn onnx(&self, about: &[(&str, String)]) -> Result<Vec<u8>, LearnError> {
        let mut graph = Graph::default();
        let (inputs, notes) = self.emit_input(&mut graph);
        let logits = self.parts.device.run(|| self.emit(&mut graph, inputs));
        let output = match self.places.target() {
            None => (PROBABILITIES, graph.softmax(logits)),
            Some(target) => {
                let (middle, half) = target.middle_and_half();
                let scaled = graph.mul_number(logits, half);
                (NUMBERS, graph.add_number(scaled, middle))
            }
        };
        let about = [&notes, about].concat();
        Ok(graph.finish("fednode", output, &about)?)
    }

    /// Declares the input; returns what the model takes, and notes on the input.
    fn emit_input(&self, graph: &mut Graph) -> (Value, [(&'static str, String); 2]) {
        let [channels, height, width] = self.model.input;
        let (name, element, sizes, normalisation) = if let Some(own) = &self.parts.preparation {
            ("columns", Element::Float, vec![own.n_columns()], OF_COLUMNS)
        } else if self.model.vocabulary > 0 {
            (
                "tokens",
                Element::Int,
                vec![channels * height * width],
                OF_TEXTS,
            )
        } else if self.is_behind_backbone {
            ("features", Element::Float, vec![width], OF_FEATURES)
        } else if channels * height == 1 {
            ("rows", Element::Float, vec![width], OF_NUMBERS)
        } else {
            (
                "images",
                Element::Float,
                self.model.input.to_vec(),
                OF_IMAGES,
            )
        };
        let input = graph.input(name, element, &sizes);
        let taken = match &self.parts.preparation {
            Some(preparation) => preparation.emit(graph, input),
            None if self.is_behind_backbone => emit_roots(graph, input),
            None => graph.flat(input),
        };
        let shape: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let shown = format!("{name} [N, {}]", shape.join(", "));
        let notes = [
            ("input", shown),
            ("normalisation", normalisation.to_owned()),
        ];
        (taken, notes)
    }

    /// Writes the logits of what is served into a graph.
    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let predictor = self.predictor();
        if let Some(regression) = &self.parts.regression {
            return regression.emit(&predictor, graph, inputs);
        }
        match (&self.parts.statistics, &self.parts.agreement) {
            (Some((_, statistics)), _) => statistics.emit(&predictor, graph, inputs),
            (None, Some(agreement)) => {
                let alone = agreement.emit(&predictor, graph, inputs);
                match &self.parts.noised {
                    Some(noised) => noised.emit(graph, alone, inputs),
                    None => alone,
                }
            }
            (None, None) => predictor.emit(graph, inputs),
        }
    }
}

/// Writes how features become rows of one length, as `fednode-cli` makes them of what a backbone hands out.
fn emit_roots(graph: &mut Graph, features: Value) -> Value {
    let amounts = graph.abs(features);
    let (roots, signs) = (graph.sqrt(amounts), graph.sign(features));
    let roots = graph.mul(roots, signs);
    let mean = graph.reduce(Reduction::Mean, amounts, 1);
    let least = graph.number(LEAST);
    let mean = graph.larger(mean, least);
    let length = graph.sqrt(mean);
    graph.div(roots, length)
}
