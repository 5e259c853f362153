//! ResNet-8 against PyTorch (`tests/golden/resnet8.py`), and the ways in which algorithms cut it.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::ParamSet;

use super::*;
use crate::gate::one_hot;
use crate::model::{Cut, Net, ParameterKind, build};
use crate::train::cross_entropy;
use crate::weights::{Weights, values};

fn net(input: [usize; 3]) -> Net {
    build(&Architecture {
        name: "resnet-8".into(),
        input,
        ..Architecture::default()
    })
    .unwrap()
}

#[test]
fn has_the_size_of_the_literature_and_takes_every_image() {
    assert_eq!(net([3, 32, 32]).n_learned(), 78_042);
    // 32²·16·27 + 2·32²·16²·9 + 16²·32·(144 + 288 + 16) + 8²·64·(288 + 576 + 32) + 640.
    assert_eq!(net([3, 32, 32]).multiply_adds(), 12_501_632);
    for input in [[1, 28, 28], [3, 32, 32], [1, 8, 8], [1, 7, 5]] {
        let (net, device) = (net(input), Device::flex());
        let weights = Weights::load(&net, &crate::weights::initial(&net, 1, 0), &device).unwrap();
        let images = Tensor::ones([2, input.iter().product()], &device);
        assert_eq!(net.forward(&weights, images).dims(), [2, 10]);
    }
    let small = layers(&Architecture {
        input: [1, 3, 8],
        ..Architecture::default()
    });
    assert_eq!(
        small.unwrap_err().0,
        "model `resnet-8` needs images of at least 4x4 pixels, got 3x8"
    );
}

#[test]
fn is_cut_behind_its_first_block_and_before_its_last_layer() {
    let net = net([3, 32, 32]);
    let learned = |cut| {
        let (front, back) = net.split(cut);
        assert_eq!(front.n_outputs(), back.n_inputs());
        [front.n_learned(), back.n_learned()]
    };
    assert_eq!(learned(Cut::Embedding), [464, 77_578]);
    assert_eq!(learned(Cut::Classifier), [77_392, 650]);
    assert_eq!(learned(Cut::Head), [77_392, 650]);
    assert_eq!(net.split(Cut::Embedding).0.maps(), Some([16, 32, 32]));
}

/// Whole numbers from -1000 to 1000 in an order of their own for each tensor, as in `resnet8.py`.
fn numbers(count: usize, which: usize, scale: f64) -> Vec<f32> {
    let whole = |at: usize| (at * 7919 + which * 104_729 + (at * at) % 523 * 31) % 2001;
    (0..count)
        .map(|at| ((whole(at) as f64 - 1000.0) / 1000.0 * scale) as f32)
        .collect()
}

/// The parameters that `resnet8.py` begins with.
fn start(net: &Net) -> ParamSet {
    let mut params = ParamSet::new();
    for (which, (name, shape)) in net.layout().into_iter().enumerate() {
        let count: usize = shape.iter().product();
        let fan_in = count / shape[0];
        let (offset, scale) = if shape.len() > 1 {
            let scale = (3.0 / fan_in as f64).sqrt();
            (0.0, (scale * 1000.0).round() / 1000.0)
        } else if name.ends_with("running_var") {
            (1.0, 0.5)
        } else if name.ends_with("weight") {
            (1.0, 0.25)
        } else {
            (0.0, 0.25)
        };
        let values = numbers(count, which, scale);
        let shifted = values.into_iter().map(|value| value + offset).collect();
        params.insert(name, &shape, shifted).unwrap();
    }
    params
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let difference = |(got, expected): (&f32, &f32)| (got - expected).abs();
    let furthest = got.iter().zip(expected).map(difference).fold(0.0, f32::max);
    assert!(furthest < 1e-5, "{what} is {furthest} away");
}

#[test]
fn agrees_with_pytorch_forward_backward_and_in_its_running_statistics() {
    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/resnet8.safetensors");
    let golden = ParamSet::import(GOLDEN).unwrap();
    let expected = |name: &str| golden.get(name).unwrap().values().to_vec();
    let (net, device) = (net([3, 16, 16]), Device::flex());
    let mut weights = Weights::load(&net, &start(&net), &device).unwrap();
    let images = || {
        let values = TensorData::new(numbers(6 * 768, 997, 1.0), [6, 768]);
        Tensor::<2>::from_data(values, &device)
    };
    let tape = weights.recorded();
    let logits = net.forward(&tape, images());
    assert_close("logits", &values(&logits), &expected("logits"));
    let loss = cross_entropy(logits, one_hot(&[0, 1, 2, 3, 4, 5], 10, &device));
    assert_close("loss", &values(&loss), &expected("loss"));

    let statistics = tape.take_statistics();
    let gradients = tape.take_gradients(&mut loss.backward());
    for (at, statistic) in statistics {
        weights.change(at, |_| statistic);
    }
    for (at, gradient) in gradients.into_iter().enumerate() {
        let parameter = &net.parameters()[at];
        let Some(gradient) = gradient else {
            assert_eq!(
                parameter.kind,
                ParameterKind::Statistic,
                "{}",
                parameter.name
            );
            continue;
        };
        weights.change(at, |values| values - gradient.mul_scalar(0.1));
    }
    // What the step changed, with names and shapes as PyTorch has them.
    let (before, after) = (start(&net), weights.save(&net));
    for (name, tensor) in after.iter() {
        let now = tensor.values();
        if golden.get(&format!("statistic.{name}")).is_some() {
            assert_close(name, now, &expected(&format!("statistic.{name}")));
            continue;
        }
        let gradient = expected(&format!("gradient.{name}"));
        let then = before.get(name).unwrap().values();
        let stepped = then.iter().zip(&gradient).map(|(then, g)| then - 0.1 * g);
        assert_close(name, now, &stepped.collect::<Vec<_>>());
        let found = then.iter().zip(now).map(|(then, now)| (then - now) / 0.1);
        assert_close(name, &found.collect::<Vec<_>>(), &gradient);
    }
    let inference = net.forward(&weights, images());
    assert_close("inference", &values(&inference), &expected("inference"));
}
