//! `fasttext`: the classifier of texts of PFLlib and PM-MoE, after Joulin et al. 2017, arXiv 1607.01759.
//!
//! ```text
//! tokens ─► embedding (V × 32) ─► mean over the known words ─► fully connected (32) ─► fully connected (classes)
//! ```
//!
//! There is no activation between the two fully connected layers. V, the entries of the vocabulary, is
//! `fingerprints.vocabulary_size`, which comes with the data. The embedding is the first layer, what FedMoE-DA shares and its gate
//! reads; the head of FedPer and its like is the last one.
//!
//! `fasttext-pfllib` is the same with what their code does besides. The mean is over all places of a text, padding
//! included. The base ends with the log-softmax of its 32 features. This is left over when the last layer of a whole
//! model becomes the head. In their code the algorithms that do not cut the model in two (FedProx, SCAFFOLD) have that
//! log-softmax after the last layer instead. It changes nothing there. Here it is part of the base for all. PM-MoE's
//! vocabulary of 98,635 entries is `vocabulary=98635` of the data source, less the words that only the test texts have.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::embedding::{Embedding, Mean};
use super::layer::{Activation, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row};

pub(super) const ROWS: [Row; 2] = [
    Row {
        name: "fasttext",
        summary: "for texts: the mean of a text's word embeddings (32), 32 hidden units: PM-MoE's fastText, put right",
        reads: Reads::Texts,
        layers: |spec| layers(spec, Mean::Words, Activation::Identity),
    },
    Row {
        name: "fasttext-pfllib",
        summary: "`fasttext` as PFLlib and PM-MoE run it: padding counts in the mean, log-softmax between base and head",
        reads: Reads::Texts,
        layers: |spec| layers(spec, Mean::Places, Activation::LogSoftmax),
    },
];

/// Numbers of a word's row, and of the features (PM-MoE's d).
const WIDTH: usize = 32;

fn layers(
    spec: &Architecture,
    mean: Mean,
    after_base: Activation,
) -> Result<Vec<Block>, ConfigError> {
    let Architecture {
        input,
        classes,
        vocabulary,
        ..
    } = *spec;
    let [channels, height, length] = input;
    if (channels, height) != (1, 1) {
        return Err(ConfigError(format!(
            "texts are 1x1xlength, but `fingerprints.input` is {input:?}"
        )));
    }
    let linear = |name, outputs, activation| {
        leaf(Linear {
            name,
            inputs: WIDTH,
            outputs,
            activation,
            bias: true,
        })
    };
    let embedding = Embedding {
        name: "embedding",
        length,
        vocabulary,
        width: WIDTH,
        mean,
    };
    Ok(vec![
        leaf(embedding),
        linear("fc1", WIDTH, after_base),
        linear("fc", classes, Activation::Identity),
    ])
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::model::{Cut, Net, Parameter, build};
    use crate::weights::{self, Weights, values};

    fn spec(name: &str, length: usize, vocabulary: usize) -> Architecture {
        Architecture {
            name: name.into(),
            input: [1, 1, length],
            classes: 4,
            vocabulary,
            ..Architecture::default()
        }
    }

    #[test]
    fn sizes_are_those_of_pm_moe() {
        let count = |net: &Net| {
            net.parameters()
                .iter()
                .map(Parameter::n_values)
                .sum::<usize>()
        };
        for name in ["fasttext", "fasttext-pfllib"] {
            let net = build(&spec(name, 200, 98_635)).unwrap();
            assert_eq!(count(&net), 3_157_508);
            let sizes = |cut| {
                let (front, back) = net.split(cut);
                assert_eq!((front.n_outputs(), back.n_inputs()), (WIDTH, WIDTH));
                [count(&front), count(&back)]
            };
            assert_eq!(sizes(Cut::Embedding), [3_156_320, 1_056 + 132]);
            assert_eq!(sizes(Cut::Classifier), [3_156_320, 1_056 + 132]);
            assert_eq!(sizes(Cut::Head), [3_156_320 + 1_056, 132]);
        }
    }

    #[test]
    fn words_start_with_unit_variance_and_the_rest_with_nothing() {
        let params = weights::initial(&build(&spec("fasttext", 5, 1_000)).unwrap(), 1, 0);
        let table = params.get("embedding.weight").unwrap().values();
        assert!(table[..2 * WIDTH].iter().all(|value| *value == 0.0));
        let words = &table[2 * WIDTH..];
        let variance = words.iter().map(|value| value * value).sum::<f32>() / words.len() as f32;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }

    /// A text of three words on 200 places: the trap divides its sum by 200, then takes the log-softmax of the features.
    #[test]
    fn the_traps_are_the_mean_over_all_places_and_a_log_softmax() {
        let device = Device::flex();
        let nets = ["fasttext", "fasttext-pfllib"].map(|name| build(&spec(name, 200, 50)).unwrap());
        let weights = Weights::load(&nets[0], &weights::initial(&nets[0], 1, 0), &device).unwrap();
        let mut text = [0.0; 200];
        text[..4].copy_from_slice(&[7.0, 49.0, 1.0, 7.0]);
        let input = || Tensor::<1>::from_floats(text, &device).reshape([1, 200]);
        let front = |net: &Net, cut| values(&net.split(cut).0.forward(&weights, input()));
        let [sound, trapped] = nets.each_ref().map(|net| front(net, Cut::Embedding));
        let table = values(&weights.tensor(0));
        for at in 0..WIDTH {
            let sum = 2.0 * table[7 * WIDTH + at] + table[49 * WIDTH + at];
            assert!(
                (sound[at] - sum / 3.0).abs() < 1e-5 && (trapped[at] - sum / 200.0).abs() < 1e-6
            );
        }
        let base = front(&nets[1], Cut::Head);
        let total: f32 = base.iter().map(|value| value.exp()).sum();
        assert!(
            (total - 1.0).abs() < 1e-5,
            "the features of the trap are logarithms of shares"
        );
        let plain = front(&nets[0], Cut::Head);
        assert!((plain.iter().map(|value| value.exp()).sum::<f32>() - 1.0).abs() > 1.0);
    }

    #[test]
    fn texts_and_models_of_texts_belong_together() {
        let error = |spec: Architecture| build(&spec).unwrap_err().0;
        assert_eq!(
            error(spec("fasttext", 5, 0)),
            "model `fasttext` is for texts: `fingerprints.vocabulary_size` must be at least 3, got 0"
        );
        assert_eq!(
            error(spec("cnn", 5, 50)),
            "model `cnn` cannot read texts (`fingerprints.vocabulary_size` is 50): use `fasttext` or `fasttext-pfllib`"
        );
        let images = Architecture {
            input: [1, 28, 28],
            ..spec("fasttext", 5, 50)
        };
        assert_eq!(
            error(images),
            "texts are 1x1xlength, but `fingerprints.input` is [1, 28, 28]"
        );
    }
}
