//! Hostile and damaged files: one clear line each, no panic, and no memory or time that was not bounded before.
//!
//! `data/make.py` writes most files; the longest are made here.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fednode_backbone::{Backbone, BackboneError, Images, Options, Pixels, limits};
use proptest::prelude::*;
use tempfile::TempDir;

fn data(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    PathBuf::from(folder).join(name)
}

/// Returns what is said of a file, and checks that it is one line with the file's name.
fn said(file: &PathBuf, options: &Options) -> String {
    let error = Backbone::open(file, options).map(|_| ()).unwrap_err();
    let line = error.to_string();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(line.contains(name), "{line}");
    assert!(!line.chars().any(char::is_control), "{line:?}");
    assert!(line.chars().count() < 500, "{line}");
    line
}

fn small() -> Options {
    Options {
        size: Some([2, 2]),
        ..Options::default()
    }
}

/// Files whose names begin with `bad-`, and what is said of them.
const EXPECTED: &[(&str, &str)] = &[
    (
        "batch",
        "its input is 16 × 3 × 8 × 8 of ONNX's type 1; a batch of images is wanted",
    ),
    (
        "bytes",
        "its input is ? × 3 × 8 × 8 of ONNX's type 2; a batch of images is wanted",
    ),
    ("channels", "its input is ? × ? × 8 × 8"),
    ("control-characters", "the operator `Evil�line�[31mxxx"),
    ("cycle", "`b` depends on itself; export the file again"),
    (
        "domain",
        "the operator `com.microsoft.Gelu` is not taken; choose an `output` before it",
    ),
    (
        "doubling",
        "would have 1 × 3 × 524288 × 64 numbers, at most 67108864 are taken",
    ),
    ("empty-file", "it has no graph, so it is no ONNX file"),
    ("empty-graph", "its graph has no outputs"),
    ("expand", "would have 1 × 3 × 1048576 × 1048576 numbers"),
    (
        "external",
        "the tensor `weight` lies in another file; export with all data inside",
    ),
    (
        "gather",
        "`Gather`, which computes `gather0`, takes place 7 of 3",
    ),
    (
        "giant-image",
        "its input is 1 × 3 × 1000000000 × 1000000000 of ONNX's type 1",
    ),
    (
        "giant-weight",
        "says [1099511627776, 1099511627776] of Float, but its data have 16 bytes",
    ),
    ("if", "`If` holds a graph of its own"),
    (
        "integer-features",
        "`features` is 4 of integers, wanted are at most 65536 features",
    ),
    (
        "many-features",
        "`features` is 1 × 196608 of floats, wanted are at most 65536 features",
    ),
    (
        "memory",
        "one sample would take more than 1024 MiB of values",
    ),
    (
        "nan-features",
        "gives a feature that is no finite number for image 0",
    ),
    (
        "nan-weight",
        "the tensor `weight` holds NaN; train or fetch the weights again",
    ),
    (
        "negative-weight",
        "says [-1] of Float, but its data have 4 bytes",
    ),
    (
        "no-strides",
        "`MaxPool`, which computes `features`, does not say its `strides`",
    ),
    (
        "old",
        "it uses version 9 of ONNX's operators, known are 11 to 26; export it with version 18",
    ),
    ("operator", "the operator `NonMaxSuppression` is not taken"),
    ("outer-product", "would have 1 × 49152 × 49152 numbers"),
    ("rank", "its input is ? × 48 of ONNX's type 1"),
    (
        "rten-magic",
        "it ends in the middle of a field; fetch or export the file again",
    ),
    (
        "short-weight",
        "says [3, 1, 1] of Float, but its data have 8 bytes",
    ),
    (
        "small-image",
        "`Conv`, which computes `features`, has a window of 5 on 4 pixels",
    ),
    (
        "stride",
        "`Conv`, which computes `conv0`, has `strides` that do not fit 2 dimensions",
    ),
    (
        "text",
        "it is not written as the format says; fetch or export the file again",
    ),
    (
        "text-weight",
        "has numbers of ONNX's type 8, which is not taken",
    ),
    (
        "truncated",
        "it ends in the middle of a field; fetch or export the file again",
    ),
    (
        "twice",
        "it defines `globalaveragepool0` twice; export it again",
    ),
    (
        "two-inputs",
        "the features depend on 2 inputs, exactly one is taken: the images",
    ),
    ("undefined", "nothing computes `nowhere`, which is needed"),
    (
        "work",
        "one sample would take more than 100 thousand million multiplications",
    ),
];

#[test]
fn every_bad_file_gets_one_clear_line() {
    for (name, cause) in EXPECTED {
        let line = said(&data(&format!("bad-{name}.onnx")), &Options::default());
        assert!(line.contains(cause), "{name}: {line}");
    }
    let files = fs::read_dir(data("")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let bad = names.filter(|name| name.starts_with("bad-")).count();
    // `nan-of-dark` opens, and has a test of its own.
    assert_eq!(bad, EXPECTED.len() + 1);
}

#[test]
fn several_outputs_ask_for_a_choice() {
    let file = data("two-outputs.onnx");
    let line = said(&file, &Options::default());
    assert!(
        line.contains("several outputs; set `output` to one of features, class"),
        "{line}"
    );
    let other = Options {
        output: Some("heads".to_owned()),
        ..Options::default()
    };
    let line = said(&file, &other);
    assert!(
        line.contains("it has no value `heads`; its outputs are features, class"),
        "{line}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let line = said(&data("none.onnx"), &Options::default());
    assert!(line.contains("cannot read the backbone"), "{line}");
}

#[test]
fn a_feature_that_is_no_number_names_the_image() {
    let options = Options {
        mean: Some(vec![0.0]),
        scale: Some(vec![1.0]),
        ..Options::default()
    };
    let backbone = Backbone::open(data("bad-nan-of-dark.onnx"), &options).unwrap();
    // The third image is dark.
    let bytes: Vec<u8> = [[200; 48], [90; 48], [3; 48], [1; 48]].concat();
    let images = Images::new(Pixels::Bytes(&bytes), [3, 4, 4]).unwrap();
    let error = backbone.run(&images).unwrap_err();
    assert!(
        matches!(error, BackboneError::NotFinite { image: 2, .. }),
        "{error}"
    );
}

#[test]
fn a_pixel_that_is_no_number_names_the_image() {
    let backbone = Backbone::open(data("identity.onnx"), &small()).unwrap();
    let mut pixels = vec![0.5; 4 * 3 * 2 * 2];
    pixels[17] = f32::INFINITY;
    let images = Images::new(Pixels::Floats(&pixels), [3, 2, 2]).unwrap();
    let error = backbone.run(&images).unwrap_err();
    assert_eq!(
        error.to_string(),
        "image 1 has a pixel that is no finite number: repair or leave out that image"
    );
}

#[test]
fn images_of_another_shape_are_refused() {
    let backbone = Backbone::open(data("identity.onnx"), &small()).unwrap();
    let two = Images::new(Pixels::Bytes(&[0; 8]), [2, 2, 2]).unwrap();
    let error = backbone.run(&two).unwrap_err().to_string();
    assert!(
        error.starts_with("images of 2 channels do not fit a backbone of 3"),
        "{error}"
    );
    for (n, shape) in [(7, [3, 2, 2]), (0, [3, 0, 2]), (8, [usize::MAX, 2, 2])] {
        let error = Images::new(Pixels::Bytes(&vec![0; n]), shape).unwrap_err();
        assert!(matches!(error, BackboneError::Pixels { .. }), "{error}");
    }
    let none = Images::new(Pixels::Bytes(&[]), [3, 2, 2]).unwrap();
    assert_eq!(backbone.run(&none).unwrap(), []);
}

#[test]
fn options_that_do_not_fit_are_told() {
    let usual = Options::default;
    let said = |file: &str, options: Options| {
        Backbone::open(data(file), &options)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    for (options, expected) in [
        (
            Options {
                threads: 0,
                ..usual()
            },
            "the backbone's `threads` is 0: give 1 to 1024",
        ),
        (
            Options {
                size: Some([0, 5]),
                ..usual()
            },
            "the backbone's `size` is [0, 5]: give a height and a width from 1 to 1024",
        ),
        (
            Options {
                size: Some([5, 5]),
                ..usual()
            },
            "the backbone's `size` is [5, 5]: the file fixes 10 × 10, so give that or nothing",
        ),
        (
            Options {
                mean: Some(vec![0.5, 0.5]),
                ..usual()
            },
            "the backbone's `mean` is [0.5, 0.5]: give 3 finite numbers, one for each channel, or one for all",
        ),
        (
            Options {
                scale: Some(vec![0.0]),
                ..usual()
            },
            "the backbone's `scale` is 0: give numbers other than 0",
        ),
    ] {
        assert_eq!(said("convolutions.onnx", options), expected);
    }
}

/// Writes a field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

/// Writes a file with a graph, for version 18 of the operators.
fn file(graph: &[u8]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("made.onnx");
    let opset = field(8, &[0x10, 18]);
    fs::write(&path, [vec![0x08, 8], field(7, graph), opset].concat()).unwrap();
    (folder, path)
}

/// Declares the images or the features.
fn declared(number: u8, name: &str, dims: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims
        .iter()
        .flat_map(|&size| field(1, &[0x08, size]))
        .collect();
    let tensor = [vec![0x08, 1], field(2, &dims)].concat();
    field(
        number,
        &[field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat(),
    )
}

fn node(operator: &str, input: &str, output: &str) -> Vec<u8> {
    let text = |number, text: &str| field(number, text.as_bytes());
    field(
        1,
        &[text(1, input), text(2, output), text(4, operator)].concat(),
    )
}

/// A chain of nodes from the images to the features.
fn chain(n: usize) -> Vec<u8> {
    let name = |index: usize| match index {
        0 => "image".to_owned(),
        last if last == n => "features".to_owned(),
        inner => format!("v{inner}"),
    };
    // Exp keeps the runtime from joining neighbours; the last first, for the order is not to be relied on.
    let operator = |index: usize| {
        if index.is_multiple_of(2) {
            "Sigmoid"
        } else {
            "Neg"
        }
    };
    let nodes = (0..n)
        .rev()
        .flat_map(|index| node(operator(index), &name(index), &name(index + 1)));
    let nodes: Vec<u8> = nodes.collect();
    [
        nodes,
        declared(11, "image", &[1, 3, 2, 2]),
        declared(12, "features", &[]),
    ]
    .concat()
}

#[test]
fn the_longest_chain_runs() {
    let (_folder, path) = file(&chain(limits::NODES));
    let backbone = Backbone::open(&path, &Options::default()).unwrap();
    assert_eq!(backbone.features(), 12);
    let (_folder, path) = file(&chain(limits::NODES + 1));
    let line = said(&path, &Options::default());
    assert!(
        line.contains("it has 8193 nodes, at most 8192 are taken"),
        "{line}"
    );
}

#[test]
fn graphs_within_graphs_are_not_followed() {
    let mut graph = Vec::new();
    for _ in 0..5_000 {
        // A graph of one node with an attribute that is a graph.
        let attribute = [field(1, b"body"), field(6, &graph)].concat();
        graph = field(1, &field(5, &attribute));
    }
    let attribute = [field(1, b"body"), field(6, &graph)].concat();
    let node = [
        field(1, b"image"),
        field(2, b"features"),
        field(4, b"Relu"),
        field(5, &attribute),
    ];
    let inputs = declared(11, "image", &[1, 3, 2, 2]);
    let (_folder, path) = file(
        &[
            field(1, &node.concat()),
            inputs,
            declared(12, "features", &[]),
        ]
        .concat(),
    );
    let line = said(&path, &Options::default());
    assert!(line.contains("`Relu` holds a graph of its own"), "{line}");
}

#[test]
fn declared_lengths_take_no_memory() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("made.onnx");
    // A producer's name of 2^60 bytes.
    let length = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    fs::write(&path, [&[0x08, 8, 0x12][..], &length, b"name"].concat()).unwrap();
    let line = said(&path, &Options::default());
    assert!(line.contains("it ends in the middle of a field"), "{line}");
}

#[test]
fn a_file_beyond_the_limit_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("made.onnx");
    // A file with a hole takes no room on the disk.
    let file = fs::File::create(&path).unwrap();
    file.set_len(limits::FILE_BYTES + 1).unwrap();
    let line = said(&path, &Options::default());
    assert!(
        line.contains("it has more than 512 MiB; choose a smaller network"),
        "{line}"
    );
}

/// The files that open.
const SOUND: [&str; 4] = [
    "convolutions.onnx",
    "transformer.onnx",
    "layout.onnx",
    "older.onnx",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is changed in a file, opening it ends soon, with a backbone or with one line.
    #[test]
    fn damaged_files_are_refused_or_run(
        which in 0..SOUND.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = fs::read(data(SOUND[which])).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("made.onnx");
        fs::write(&path, bytes).unwrap();
        let began = Instant::now();
        let opened = Backbone::open(&path, &Options { size: Some([10, 10]), ..Options::default() });
        prop_assert!(began.elapsed() < Duration::from_secs(30));
        if let Err(error) = opened {
            prop_assert!(!error.to_string().chars().any(char::is_control), "{error}");
        }
    }
}
