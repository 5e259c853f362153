//! Features are those of ONNX Runtime, value by value, and resized images those of Pillow.
//!
//! `data/make.py` writes the files and the golden values.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use fednode_backbone::{Backbone, BackboneError, Images, InputShape, Options, Pixels, Refusal};
use safetensors::SafeTensors;

type Golden = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn data(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    PathBuf::from(folder).join(name)
}

fn golden() -> Golden {
    let bytes = std::fs::read(data("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |bytes: &[u8]| {
        let words = bytes.chunks_exact(4);
        words
            .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    let all = tensors.tensors().into_iter();
    all.map(|(name, view)| (name, (view.shape().to_vec(), floats(view.data()))))
        .collect()
}

/// Images go to the network as they are.
fn plain(output: &str) -> Options {
    Options {
        output: Some(output.to_owned()),
        mean: Some(vec![0.0]),
        scale: Some(vec![1.0]),
        ..Options::default()
    }
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Holds every named value of a file to ONNX Runtime.
fn check(file: &str) {
    let golden = golden();
    let (shape, images) = &golden[&format!("{file}/images")];
    let shape = [shape[1], shape[2], shape[3]];
    let images = Images::new(Pixels::Floats(images), shape).unwrap();
    let mut n = 0;
    for (name, (_, expected)) in &golden {
        let Some(value) = name.strip_prefix(&format!("{file}/")) else {
            continue;
        };
        if value == "images" {
            continue;
        }
        let options = Options {
            size: Some([shape[1], shape[2]]),
            ..plain(value)
        };
        let backbone = Backbone::open(data(&format!("{file}.onnx")), &options);
        let backbone = backbone.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(backbone.features() * images.len(), expected.len(), "{name}");
        let features = backbone.run(&images).unwrap();
        let difference = largest_difference(&features, expected);
        assert!(difference < 1e-5, "{name} differs by {difference}");
        n += 1;
    }
    assert!(n > 0, "no golden values of {file}");
}

#[test]
fn convolutions_are_those_of_onnx_runtime() {
    check("convolutions");
}

#[test]
fn attention_is_that_of_onnx_runtime() {
    check("transformer");
}

#[test]
fn arithmetic_is_that_of_onnx_runtime() {
    check("arithmetic");
    check("gelu");
}

#[test]
fn layouts_are_those_of_onnx_runtime() {
    check("layout");
}

#[test]
fn files_of_operators_11_are_read() {
    check("older");
}

#[test]
fn the_only_output_needs_no_name() {
    let file = data("convolutions.onnx");
    let named = Backbone::open(&file, &plain("features")).unwrap();
    let unnamed = Backbone::open(
        &file,
        &Options {
            output: None,
            ..plain("")
        },
    )
    .unwrap();
    assert_eq!(named.features(), 5);
    assert_eq!(named.key(), unnamed.key());
    let hash = blake3::hash(&std::fs::read(&file).unwrap());
    assert_eq!(named.id(), hash);
}

#[test]
fn what_lies_behind_the_output_does_not_matter() {
    let file = data("two-outputs.onnx");
    let backbone = Backbone::open(&file, &plain("features")).unwrap();
    assert_eq!(backbone.features(), 3);
    let class = Backbone::open(&file, &plain("class"));
    let cause = Refusal::Operator {
        operator: "ArgMax".to_owned(),
    };
    assert!(matches!(class, Err(BackboneError::Refused { cause: found, .. }) if found == cause));
}

#[test]
fn resized_images_are_those_of_pillow() {
    let golden = golden();
    let (shape, image) = &golden["resize/from"];
    let images = Images::new(Pixels::Floats(image), [1, shape[0], shape[1]]).unwrap();
    for (name, (shape, expected)) in &golden {
        if !name.starts_with("resize/") || name == "resize/from" {
            continue;
        }
        let options = Options {
            size: Some([shape[0], shape[1]]),
            ..plain("itself")
        };
        let backbone = Backbone::open(data("identity.onnx"), &options).unwrap();
        let features = backbone.run(&images).unwrap();
        for channel in features.chunks_exact(expected.len()) {
            let difference = largest_difference(channel, expected);
            assert!(difference < 1e-6, "{name} differs by {difference}");
        }
    }
}

#[test]
fn bytes_are_normalised_as_imagenet_is() {
    let options = Options {
        size: Some([1, 2]),
        ..Options::default()
    };
    let backbone = Backbone::open(data("identity.onnx"), &options).unwrap();
    let bytes = [0, 255, 51, 51, 102, 102];
    let images = Images::new(Pixels::Bytes(&bytes), [3, 1, 2]).unwrap();
    let (red, green, blue) = (0.485 / 0.229, 0.256 / 0.224, 0.006 / 0.225);
    let expected = [-red, 0.515 / 0.229, -green, -green, -blue, -blue];
    let difference = largest_difference(&backbone.run(&images).unwrap(), &expected);
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn the_wanted_shape_is_told() {
    let shape = |file: &str| {
        Backbone::open(data(file), &Options::default())
            .unwrap()
            .shape()
    };
    let fixed = InputShape {
        channels: 1,
        height: Some(6),
        width: Some(6),
    };
    assert_eq!(shape("grey.onnx"), fixed);
    let free = InputShape {
        channels: 3,
        height: None,
        width: None,
    };
    assert_eq!(shape("older.onnx"), free);
    let usual = Backbone::open(data("older.onnx"), &Options::default()).unwrap();
    assert_eq!(usual.size(), [224, 224]);
}

#[test]
fn features_do_not_depend_on_threads_or_neighbours() {
    let pixels: Vec<u8> = (0..7 * 3 * 10 * 10)
        .map(|index| (index * 37 % 251) as u8)
        .collect();
    let images = Images::new(Pixels::Bytes(&pixels), [3, 10, 10]).unwrap();
    let features = |threads| {
        let options = Options {
            threads,
            ..Options::default()
        };
        let backbone = Backbone::open(data("convolutions.onnx"), &options).unwrap();
        backbone.run(&images).unwrap()
    };
    let alone = features(1);
    assert_eq!(alone.len(), 7 * 5);
    for threads in [2, 3, 16] {
        assert_eq!(features(threads), alone, "{threads} threads");
    }
    let third = Images::new(Pixels::Bytes(&pixels[2 * 300..3 * 300]), [3, 10, 10]).unwrap();
    let backbone = Backbone::open(data("convolutions.onnx"), &Options::default()).unwrap();
    assert_eq!(backbone.run(&third).unwrap(), alone[10..15]);
}

#[test]
fn the_key_depends_on_all_that_features_depend_on() {
    let key = |file: &str, options: &Options| Backbone::open(data(file), options).unwrap().key();
    let usual = Options::default();
    let keys = [
        key("older.onnx", &usual),
        key(
            "older.onnx",
            &Options {
                size: Some([8, 9]),
                ..usual.clone()
            },
        ),
        key(
            "older.onnx",
            &Options {
                size: Some([9, 8]),
                ..usual.clone()
            },
        ),
        key(
            "older.onnx",
            &Options {
                mean: Some(vec![0.5]),
                ..usual.clone()
            },
        ),
        key(
            "older.onnx",
            &Options {
                scale: Some(vec![0.5]),
                ..usual.clone()
            },
        ),
        key(
            "older.onnx",
            &Options {
                output: Some("column".to_owned()),
                ..usual.clone()
            },
        ),
        key("convolutions.onnx", &usual),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "key {index} is not new");
    }
    let threads = key(
        "older.onnx",
        &Options {
            threads: 2,
            ..usual
        },
    );
    assert_eq!(threads, keys[0], "threads change no feature");
}

/// Adds properties to a file of the golden ones.
fn with_properties(name: &str, properties: &[(&str, &str)]) -> tempfile::NamedTempFile {
    let mut bytes = std::fs::read(data(name)).unwrap();
    let text = |number: u8, text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [&[number << 3 | 2, length], text.as_bytes()].concat()
    };
    for (name, value) in properties {
        let property = [text(1, name), text(2, value)].concat();
        bytes.extend([14 << 3 | 2, u8::try_from(property.len()).unwrap()]);
        bytes.extend(property);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn a_file_says_how_it_is_used() {
    let properties = [
        ("fednode.mean", "0.5"),
        ("fednode.scale", "0.25"),
        ("fednode.size", "8x9"),
        ("author", "somebody"),
    ];
    let file = with_properties("older.onnx", &properties);
    let said = Backbone::open(file.path(), &Options::default()).unwrap();
    let given = Options {
        size: Some([8, 9]),
        mean: Some(vec![0.5]),
        scale: Some(vec![0.25]),
        ..Options::default()
    };
    let told = Backbone::open(data("older.onnx"), &given).unwrap();
    assert_eq!(said.size(), [8, 9]);
    assert_eq!(said.normalisation(), told.normalisation());
    let pixels: Vec<f32> = (0..said.shape().channels * 72)
        .map(|at| at as f32 / 999.0)
        .collect();
    let images = Images::new(Pixels::Floats(&pixels), [said.shape().channels, 8, 9]).unwrap();
    assert_eq!(said.run(&images).unwrap(), told.run(&images).unwrap());
    let other = Options {
        mean: Some(vec![0.1]),
        ..Options::default()
    };
    let overruled = Backbone::open(file.path(), &other).unwrap();
    assert_eq!(overruled.normalisation().0[0], 0.1, "an option wins");

    for (name, value) in [
        ("fednode.mean", "bright"),
        ("fednode.scale", "0"),
        ("fednode.size", "9"),
        ("fednode.size", "0x9"),
    ] {
        let file = with_properties("older.onnx", &[(name, value)]);
        let error = Backbone::open(file.path(), &Options::default()).unwrap_err();
        let (text, option) = (error.to_string(), name.trim_start_matches("fednode."));
        assert!(text.contains(&format!("`{option}`")), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
