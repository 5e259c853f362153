//! Declarations of models that are known: they must be those models, and as large as the literature says.

use burn::tensor::{Device, Tensor};

use super::*;
use crate::model::{Cut, Net, build};
use crate::weights::{self, Weights, values};

const RESNET8: &str = "conv 16, batch-norm, relu,
    residual(conv 16, batch-norm, relu, conv 16, batch-norm), relu,
    residual(conv 32 /2, batch-norm, relu, conv 32, batch-norm), relu,
    residual(conv 64 /2, batch-norm, relu, conv 64, batch-norm), relu,
    mean-pool";
const CNN: &str =
    "conv 32 5x5 valid, relu, max-pool 2, conv 64 5x5 valid, relu, max-pool 2, linear 512, relu";

fn spec(layers: &str, input: [usize; 3], classes: usize) -> Architecture {
    Architecture {
        name: "declared".into(),
        layers: layers.parse().unwrap(),
        input,
        classes,
        ..Architecture::default()
    }
}

fn net(layers: &str, input: [usize; 3], classes: usize) -> Net {
    build(&spec(layers, input, classes)).unwrap()
}

fn error(layers: &str, input: [usize; 3]) -> String {
    build(&spec(layers, input, 10)).unwrap_err().0
}

/// The eighteen layers of He et al. (CVPR 2016, table 1) behind a stem.
fn resnet18(stem: &str) -> String {
    let block = |maps: usize, stride: &str| {
        format!(
            "residual(conv {maps}{stride}, batch-norm, relu, conv {maps}, batch-norm), relu, \
             residual(conv {maps}, batch-norm, relu, conv {maps}, batch-norm), relu"
        )
    };
    let blocks = [(64, ""), (128, " /2"), (256, " /2"), (512, " /2")];
    let blocks = blocks.map(|(maps, stride)| block(maps, stride)).join(", ");
    format!("{stem}, {blocks}, mean-pool")
}

#[test]
fn a_declaration_of_a_model_of_the_zoo_is_that_model() {
    let device = Device::flex();
    for (name, declaration, input) in [
        ("cnn", CNN, [1, 28, 28]),
        ("resnet-8", RESNET8, [3, 16, 12]),
        ("mlp", "linear 200, relu, linear 200, relu", [1, 1, 9]),
    ] {
        let row = build(&Architecture {
            name: name.into(),
            ..spec("", input, 10)
        });
        let (row, declared) = (row.unwrap(), net(declaration, input, 10));
        let shapes = |net: &Net| {
            let parameters = net.parameters().iter();
            parameters.map(|one| one.shape.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shapes(&declared), shapes(&row), "{name}");
        assert_eq!(declared.multiply_adds(), row.multiply_adds(), "{name}");
        for cut in [Cut::Embedding, Cut::Classifier, Cut::Head] {
            let [ours, its] = [&declared, &row].map(|net| net.split(cut).0.n_learned());
            assert_eq!(ours, its, "{name}, {cut:?}");
        }
        let start = weights::initial(&row, 1, 0);
        let numbers = Weights::load(&row, &start, &device).unwrap();
        let images = Tensor::<1>::from_floats(
            (0..2 * row.n_inputs())
                .map(|at| (at * 7919 % 255) as f32 / 127.0 - 1.0)
                .collect::<Vec<_>>()
                .as_slice(),
            &device,
        )
        .reshape([2, row.n_inputs()]);
        assert_eq!(
            values(&declared.forward(&numbers, images.clone())),
            values(&row.forward(&numbers, images)),
            "{name}"
        );
    }
}

/// 11,689,512 is torchvision's `resnet18`, 11,173,962 that with the stem of CIFAR. 1,814,073,344 multiply-adds for an image
/// of 224x224 are the 1.8 billion of the paper.
#[test]
fn resnet_18_has_the_size_of_the_literature() {
    let stem = "conv 64 7x7 /2, batch-norm, relu, max-pool 3 /2";
    let imagenet = net(&resnet18(stem), [3, 224, 224], 1000);
    assert_eq!(imagenet.n_learned(), 11_689_512);
    assert_eq!(imagenet.multiply_adds(), 1_814_073_344);
    let cifar = net(&resnet18("conv 64, batch-norm, relu"), [3, 32, 32], 10);
    assert_eq!(cifar.n_learned(), 11_173_962);
}

#[test]
fn parameters_are_named_in_the_order_of_the_text() {
    let net = net(
        "residual(conv 2, group-norm 2), dropout 0.5, linear 3",
        [1, 4, 4],
        2,
    );
    let names: Vec<String> = net
        .parameters()
        .iter()
        .map(|one| one.name.clone())
        .collect();
    assert_eq!(
        names,
        [
            "layers.0.weight",
            "layers.1.weight",
            "layers.1.bias",
            "layers.2.weight",
            "layers.3.weight",
            "layers.3.bias",
            "layers.3.running_mean",
            "layers.3.running_var",
            "layers.4.weight",
            "layers.4.bias",
            "fc.weight",
            "fc.bias",
        ]
    );
}

/// As PyTorch's `MaxPool2d(2, 1)` and `MaxPool2d(3, 2, 1)`.
#[test]
fn overlapping_windows_reach_over_the_edge_if_they_have_a_middle() {
    let maps = |layers: &str| net(layers, [1, 8, 8], 2).split(Cut::Head).0.maps();
    assert_eq!(maps("max-pool 2 /1"), Some([1, 7, 7]));
    assert_eq!(maps("max-pool 3 /2"), Some([1, 4, 4]));
    assert_eq!(maps("max-pool 3 /1"), Some([1, 8, 8]));
    assert_eq!(maps("max-pool 3"), Some([1, 2, 2]));
}

#[test]
fn what_does_not_fit_is_named_with_its_shapes() {
    let image = [1, 8, 8];
    for (layers, says) in [
        ("", "model `declared` needs `model.layers`"),
        (
            "max-pool 4, conv 8 5x5 valid",
            "`model.layers`: `conv 8 5x5 valid`: it is given maps of 2x2, smaller than its kernel",
        ),
        (
            "max-pool 9",
            "`model.layers`: `max-pool 9`: it is given maps of 8x8, smaller than its window",
        ),
        (
            "conv 6, group-norm 4",
            "`model.layers`: `group-norm 4`: 6 maps cannot be divided into 4 groups",
        ),
        (
            "residual(conv 6 4x4 valid)",
            "`model.layers`: `residual(conv 6 4x4 valid)`: no 1x1 convolution makes maps of 5x5 of 8x8",
        ),
        (
            "parallel(conv 6 | max-pool 2)",
            "`model.layers`: `parallel(conv 6 | max-pool 2)`: its branches make maps of 8x8 and of 4x4",
        ),
        (
            "residual(mean-pool, linear 5)",
            "`model.layers`: `residual(mean-pool, linear 5)`: no 1x1 convolution makes maps of 1x1 of 8x8",
        ),
        (
            "conv 16 1x1, 250 * batch-norm",
            "`model.layers`: 4 experts would have 4004 tensors, more than 2048",
        ),
        (
            "conv 65536, relu, conv 65536",
            "`model.layers`: `conv 65536`: the model would have more than 268435456 parameters",
        ),
        (
            "conv 65536 1x1, relu, 3 * parallel(max-pool 3 /1 | max-pool 3 /1)",
            "`model.layers`: `parallel(max-pool 3 /1 | max-pool 3 /1)`: it would make more than 16777216 numbers",
        ),
    ] {
        let said = error(layers, image);
        assert!(said.starts_with(says), "{layers}: {said}");
    }
}
