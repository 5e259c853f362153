//! What is served, written in the format of ONNX and run by a library that reads it, says what the learner says.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::federation::{self as fed, finish, rounds};
use fednode_core::spec::{
    BackboneSpec, Preset, StatisticsFeatures, StatisticsGate, Sums, TableColumn, Target, width_of,
};
use fednode_core::work::Progress;
use fednode_core::{BlobId, Exchange, FederationSpec, HyperValue, NodeId, ParamSet, Round, Served};
use fednode_data::{Pixels, Samples, Split, Vocabulary};
use fednode_learn::{
    ComputeDevice, GateInput, GateSettings, Learner, PoolSettings, algorithm, model,
};
use rten::{Model, Value, ValueView};

/// Largest difference of a probability.
const TOLERANCE: f32 = 1e-5;

/// Runs a file on samples as the learner is given them.
fn run(file: Vec<u8>, [input, output]: [&str; 2], samples: &Samples) -> Vec<f32> {
    let all: Vec<u32> = (0..samples.len() as u32).collect();
    let mut values = Vec::new();
    samples.write_batch(&all, &mut values);
    let shape: Vec<usize> = match input {
        "images" => [&[samples.len()][..], &samples.shape].concat(),
        _ => vec![samples.len(), samples.values_per_sample()],
    };
    let model = Model::load(file).unwrap();
    let ids = [input, output].map(|name| model.node_id(name).unwrap());
    // The library takes 32 bits for 64.
    let numbers: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    let view = if input == "tokens" {
        ValueView::from_shape(shape.as_slice(), numbers.as_slice()).unwrap()
    } else {
        ValueView::from_shape(shape.as_slice(), values.as_slice()).unwrap()
    };
    let [made] = model
        .run_n(vec![(ids[0], view.into())], [ids[1]], None)
        .unwrap();
    match made {
        Value::FloatTensor(made) => made.into_data(),
        _ => panic!("probabilities are floats"),
    }
}

/// Checks that the file of a learner says what the learner says, and that this is not the same for all samples.
#[track_caller]
fn assert_same(what: &str, learner: &Learner, input: &str, samples: &Samples) {
    let file = learner.onnx(&[("classes", "[]".into())]).unwrap();
    let got = run(file, [input, "probabilities"], samples);
    let predicted = learner.predict(samples).unwrap();
    let expected: Vec<f32> = predicted
        .iter()
        .flat_map(|one| one.probabilities.clone())
        .collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    let difference = |(got, expected): (&f32, &f32)| (got - expected).abs();
    let largest = got
        .iter()
        .zip(&expected)
        .map(difference)
        .fold(0.0, f32::max);
    eprintln!("{what}: {largest:.1e}");
    assert!(largest < TOLERANCE, "{what}: {largest}");
    let classes = predicted[0].probabilities.len();
    let first = &expected[..classes];
    let differs = |row: &[f32]| row.iter().zip(first).any(|(a, b)| (a - b).abs() > 1e-3);
    assert!(
        expected.chunks(classes).any(differs),
        "{what}: nothing is told apart"
    );
}

/// The digits' test samples.
fn digits() -> Samples {
    fed::data(0).test.clone()
}

fn spec(algorithm: &str, model: &str, hyper: &[(&str, &str)]) -> FederationSpec {
    let hyper = hyper
        .iter()
        .map(|(name, value)| (*name, HyperValue::Text((*value).into())));
    let mut spec = fed::spec(algorithm, &hyper.collect::<Vec<_>>());
    spec.model.name = model.into();
    (spec.model.experts, spec.rounds) = (3, 2);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// Two nodes after two rounds; the first is looked at.
fn trained(spec: &FederationSpec) -> Vec<Learner> {
    let mut nodes: Vec<Learner> = [0, 1].map(|index| fed::learner(spec, index)).into();
    rounds(spec, &mut nodes, 1..=2);
    nodes
}

#[test]
fn every_algorithm_says_the_same_as_its_file() {
    for row in algorithm::TABLE {
        let mut spec = spec(row.name, "mlp", &[]);
        if row.name == "fedjets" {
            let common = HyperValue::Integer(1);
            spec.hyper.insert("common_rounds".into(), common);
        }
        let mut nodes = trained(&spec);
        assert_same(row.name, &nodes[0], "images", &digits());
        if finish(&mut nodes[0], 2) > 0 {
            let what = format!("{}, fine-tuned", row.name);
            assert_same(&what, &nodes[0], "images", &digits());
        }
    }
}

#[test]
fn mixtures_and_other_ways_to_serve_say_the_same_as_their_files() {
    for (name, hyper) in [
        ("fedmoe-da", &[("profile", "agreement")][..]),
        ("fedmoe-da", &[("profile", "agreement"), ("base", "fedbn")]),
        ("fedmoe-da", &[("profile", "personal")]),
        ("fedproto", &[("inference", "prototypes")]),
    ] {
        let nodes = trained(&spec(name, "cnn", hyper));
        assert_same(&format!("{name} {hyper:?}"), &nodes[0], "images", &digits());
    }
}

/// So large an ε leaves noise that these few samples bear.
fn promised(spec: &FederationSpec) -> FederationSpec {
    let mut spec = spec.clone();
    spec.privacy.epsilon = Some(90.0);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// Tells that peers' noised statistics are served, or the test would compare the own model alone.
fn serves_noised(node: &Learner) -> bool {
    let state = node.state();
    let solved = state.get("noised.weights").unwrap().values();
    node.lacks().is_none() && solved.iter().any(|weight| *weight != 0.0)
}

#[test]
fn noised_statistics_of_images_are_in_the_file() {
    let spec = promised(&spec("fedmoe-da", "cnn", &[("profile", "agreement")]));
    let nodes = trained(&spec);
    assert!(serves_noised(&nodes[0]), "{:?}", nodes[0].lacks());
    assert_same("noised", &nodes[0], "images", &digits());
}

/// Statistics of 1,024 maps of 300 clothes, which say little against as many numbers.
#[test]
fn the_default_on_larger_images_says_the_same_as_its_file() {
    let samples = common::fashion();
    let mut spec = spec("fedmoe-da", "cnn", &[("profile", "agreement")]);
    spec.fingerprints.input = samples.shape;
    let device = ComputeDevice::cpu(1).unwrap();
    let split = common::split(&samples, 300);
    let mut nodes: Vec<Learner> = [0, 1]
        .map(|node| Learner::new(&spec, node, Arc::clone(&split), &device).unwrap())
        .into();
    rounds(&spec, &mut nodes, 1..=1);
    assert_same("clothes", &nodes[0], "images", &split.test);
    // Noise is far away from everything that statistics are of, so scores are large.
    let noise = (0..40 * 784)
        .map(|at| (at * at % 7919 % 251) as u8)
        .collect();
    let (pixels, names) = (
        Pixels::Bytes {
            values: noise,
            white: 255,
        },
        samples.class_names,
    );
    let noise = Samples::new([1, 28, 28], pixels, vec![0; 40], names).unwrap();
    assert_same("noise", &nodes[0], "images", &noise);
}

/// Every layer that can be declared, and each way of doing two in one.
const ALL_LAYERS: &str = "conv 6 5x5 /2, leaky-relu, max-pool 3 /2, conv 4 2x2 valid, relu, max-pool 2, \
    residual(conv 6, group-norm 3, relu, conv 8, batch-norm), relu, conv 8, \
    parallel(conv 2 1x1, relu | max-pool 3 /1, batch-norm, leaky-relu), dropout 0.25, relu, mean-pool, linear 9, leaky-relu, \
    residual(linear 5), batch-norm";

#[test]
fn every_model_of_images_says_the_same_as_its_file() {
    let values = |n: usize| {
        (0..n)
            .map(|at| (at * 7919 % 255) as u8)
            .collect::<Vec<u8>>()
    };
    for row in model::TABLE {
        if row.reads == model::Reads::Texts {
            continue;
        }
        let mut spec = spec("local", row.name, &[]);
        if row.name == "declared" {
            spec.model.layers = ALL_LAYERS.parse().unwrap();
        }
        let shape = if row.name == "vgg16" {
            [3, 32, 32]
        } else {
            [3, 18, 17]
        };
        (spec.fingerprints.input, spec.fingerprints.classes) = (shape, 4);
        let n = 12;
        let pixels = Pixels::Bytes {
            values: values(n * shape.iter().product::<usize>()),
            white: 255,
        };
        let names = (0..4).map(|class| class.to_string()).collect();
        let labels = (0..n as u16).map(|at| at % 4).collect();
        let samples = Samples::new(shape, pixels, labels, names).unwrap();
        let split = Split {
            train: samples.clone(),
            validation: samples.subset(&[]),
            test: samples.clone(),
        };
        let device = ComputeDevice::cpu(1).unwrap();
        let mut learner = Learner::new(&spec, 1, Arc::new(split), &device).unwrap();
        // Running statistics move, and so do all layers.
        fed::update(&mut learner, 1);
        let file = learner.onnx(&[]).unwrap();
        let got = run(file, ["images", "probabilities"], &samples);
        let predicted = learner.predict(&samples).unwrap();
        let expected = predicted.iter().flat_map(|one| &one.probabilities);
        let difference = |(got, expected): (&f32, &f32)| (got - expected).abs();
        let largest = got.iter().zip(expected).map(difference).fold(0.0, f32::max);
        assert!(largest < TOLERANCE, "{}: {largest}", row.name);
    }
}

#[test]
fn the_statistics_expert_is_in_the_file() {
    let with = |algorithm: &str, model: &str, change: &dyn Fn(&mut FederationSpec)| {
        let mut spec = spec(algorithm, model, &[]);
        spec.statistics.enabled = true;
        change(&mut spec);
        algorithm::fill_exchange(&mut spec).unwrap();
        let nodes = trained(&spec);
        let statistics = nodes[0].state();
        let weight = statistics.get("statistics.choice").unwrap().values()[1];
        let gate = statistics.get("statistics.gate").unwrap().values().to_vec();
        assert_same(
            &format!("statistics of {algorithm}"),
            &nodes[0],
            "images",
            &digits(),
        );
        weight > 0.0 || gate.iter().any(|one| *one != 0.0)
    };
    let used = [
        with("fedper", "mlp", &|_| ()),
        with("fedavg", "cnn", &|_| ()),
        with("fedmoe-da", "cnn", &|_| ()),
        with("fedper", "mlp", &|spec| spec.statistics.dimensions = 40),
        with("fedper", "mlp", &|spec| {
            spec.statistics.gate = StatisticsGate::Sample
        }),
        with("fedproto", "mlp", &|spec| {
            spec.statistics.features = StatisticsFeatures::Random;
        }),
    ];
    assert!(used.iter().filter(|used| **used).count() >= 5, "{used:?}");
}

/// The graph takes what a backbone hands out, and the learner rows of one length, as the command makes them.
#[test]
fn features_of_a_backbone_are_brought_to_one_length_in_the_file() {
    let (n_samples, width) = (640, 12);
    let value = |at: usize| ((at * 37 % 101) as f32 / 20.0) - 1.0 + (at / width % 3) as f32;
    let raw: Vec<f32> = (0..n_samples * width).map(value).collect();
    let normalised = raw.chunks_exact(width).flat_map(|row| {
        let mean = row.iter().map(|value| value.abs()).sum::<f32>() / width as f32;
        let root = move |value: &f32| value.abs().sqrt().copysign(*value) / mean.sqrt();
        row.iter().map(root).collect::<Vec<_>>()
    });
    let names: Arc<[String]> = ["a", "b", "c"].map(String::from).into();
    let samples = |values: Vec<f32>| {
        let labels = (0..n_samples).map(|at| (at % 3) as u16).collect();
        let pixels = Pixels::Floats(values);
        Samples::new([1, 1, width], pixels, labels, Arc::clone(&names)).unwrap()
    };
    let learned = samples(normalised.collect());
    let mut spec = spec("fedmoe-da", "linear", &[("profile", "agreement")]);
    (spec.fingerprints.input, spec.fingerprints.classes) = (learned.shape, 3);
    spec.model.backbone = Some(BackboneSpec {
        file: BlobId::of(b"file"),
        key: BlobId::of(b"key"),
        output: "features".into(),
        size: [8, 8],
        mean: vec![0.5],
        scale: vec![0.5],
    });
    let device = ComputeDevice::cpu(1).unwrap();
    let split = common::split(&learned, 300);
    for spec in [spec.clone(), promised(&spec)] {
        let mut nodes: Vec<Learner> = [0, 1]
            .map(|node| Learner::new(&spec, node, Arc::clone(&split), &device).unwrap())
            .into();
        rounds(&spec, &mut nodes, 1..=2);
        assert!(spec.privacy.epsilon.is_none() || serves_noised(&nodes[0]));
        let got = run(
            nodes[0].onnx(&[]).unwrap(),
            ["features", "probabilities"],
            &samples(raw.clone()),
        );
        let predicted = nodes[0].predict(&learned).unwrap();
        let expected = predicted.iter().flat_map(|one| one.probabilities.clone());
        let largest = got
            .iter()
            .zip(expected)
            .map(|(got, expected)| (got - expected).abs());
        let largest = largest.fold(0.0, f32::max);
        assert!(largest < TOLERANCE, "{largest}");
    }
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Members are copies of the other node's module, so that some are kept whatever is dropped.
fn with_pool(spec: &FederationSpec, settings: &PoolSettings) -> Vec<Learner> {
    let mut nodes = trained(spec);
    let mut foreign: Vec<(NodeId, Arc<ParamSet>)> = Vec::new();
    for member in 1..=3u8 {
        let mut module = ParamSet::clone(&nodes[1].module().unwrap().params);
        for (_, tensor) in module.iter_mut() {
            let factor = 1.0 - 0.1 * f32::from(member);
            tensor
                .values_mut()
                .iter_mut()
                .for_each(|value| *value *= factor);
        }
        foreign.push((NodeId::from_bytes([member; 32]), Arc::new(module)));
    }
    let outcome = nodes[0]
        .assemble_pool(settings, foreign, &mut go_on)
        .unwrap();
    assert_eq!(outcome.served, Served::Mixture);
    nodes
}

#[test]
fn pools_are_in_the_file_with_their_gates() {
    let modular = [
        "fedmoe-da",
        "fedper",
        "lg-fedavg",
        "fedrep",
        "fedrod",
        "fedbabu",
        "gpfl",
        "fedcp",
        "dbe",
        "fedgh",
        "fedpac",
    ];
    let fixed = PoolSettings {
        epochs: 2,
        guard: false,
        ..PoolSettings::preset(Preset::Fixed)
    };
    for name in modular {
        let nodes = with_pool(&spec(name, "mlp", &[]), &fixed);
        assert_same(&format!("pool of {name}"), &nodes[0], "images", &digits());
    }
    let code = PoolSettings {
        guard: false,
        ..PoolSettings::preset(Preset::Code)
    };
    let renormalised = PoolSettings {
        top_k: 2,
        gate: GateSettings {
            input: GateInput::Samples,
            ..fixed.gate
        },
        ..fixed
    };
    for settings in [code, renormalised] {
        let nodes = with_pool(&spec("fedrod", "lenet5", &[]), &settings);
        assert_same("pool of two at a time", &nodes[0], "images", &digits());
    }
}

fn columns() -> Vec<TableColumn> {
    let column = |json: &str| serde_json::from_str(json).unwrap();
    vec![
        column(r#"{"name": "year", "range": [1990.0, 2020.0], "gaps": true}"#),
        column(
            r#"{"name": "pain", "kind": "category", "levels": ["a", "b", "never"], "gaps": true}"#,
        ),
        column(r#"{"name": "income", "range": [0.0, 90000.0], "scaling": "log"}"#),
        column(r#"{"name": "change", "range": [-0.02, 0.01], "scaling": "log", "gaps": true}"#),
        column(r#"{"name": "smokes", "kind": "boolean", "filling": "median", "gaps": true}"#),
        column(
            r#"{"name": "dose", "range": [0.0, 3.0], "scaling": "robust", "filling": "median"}"#,
        ),
        column(r#"{"name": "grade", "range": [0.0, 3.0], "scaling": "plain", "gaps": true}"#),
        column(r#"{"name": "always", "range": [4.0, 6.0]}"#),
        column(r#"{"name": "ward", "kind": "category", "levels": ["x"]}"#),
        // Of such numbers 32 bits hold whole ones only, and their mean is none.
        column(r#"{"name": "stamp", "range": [16000000.0, 16000037.0]}"#),
    ]
}

/// Rows of two classes; every value but one is a gap somewhere, and some are far outside their range.
fn rows(n: usize, moved: f32) -> Samples {
    let value = |row: usize| {
        let at = row as f32;
        let values = [
            2000.0 + moved + at % 13.0 + if row.is_multiple_of(2) { 6.0 } else { 0.0 },
            (row * 5 % 4).min(2 * (row % 3)) as f32,
            ((at * 37.0) % 91.0).powi(2) * 13.0,
            ((at * 11.0) % 31.0 - 20.0) * 1e-3,
            (row % 3 / 2) as f32,
            if row == 5 { 900.0 } else { at % 7.0 / 2.0 },
            at % 4.0,
            5.0,
            (row % 2) as f32,
            16_000_000.0 + (at * 10.0) % 37.0,
        ];
        let gap = move |column: usize| column != 7 && (row + 3 * column).is_multiple_of(11);
        (0..10).map(move |column| {
            if gap(column) {
                f32::NAN
            } else {
                values[column]
            }
        })
    };
    let labels = (0..n)
        .map(|row| u16::from((row + row / 7) % 2 == 0))
        .collect();
    let names: Arc<[String]> = ["no", "yes"].map(str::to_owned).into();
    let values = (0..n).flat_map(value).collect();
    Samples::new([1, 1, 10], Pixels::Floats(values), labels, names).unwrap()
}

/// Two nodes of raw rows, the second of which lie elsewhere. The first round agrees on columns, and has nothing else to exchange. Under
/// a promise there is no such round.
fn after_three_rounds(spec: &FederationSpec, rows: impl Fn(usize, f32) -> Samples) -> Vec<Learner> {
    let device = ComputeDevice::cpu(1).unwrap();
    let node = |(index, moved): (u64, f32)| {
        let split = Split {
            train: rows(90, moved),
            validation: rows(30, moved),
            test: rows(40, moved),
        };
        Learner::new(spec, index, Arc::new(split), &device).unwrap()
    };
    let mut nodes: Vec<Learner> = [(0, 0.0), (1, 3.0)].map(node).into();
    let updates: Vec<_> = nodes.iter_mut().map(|node| fed::update(node, 1)).collect();
    let mean = fed::combine_in(Round(1), spec, &updates);
    for node in &mut nodes {
        if mean.is_some() {
            node.adopt(mean.clone(), Vec::new()).unwrap();
        }
    }
    rounds(spec, &mut nodes, 2..=3);
    nodes
}

#[test]
fn raw_columns_are_treated_in_the_file() {
    for (name, model, epsilon, hyper) in [
        ("fedmoe-da", "linear", None, &[("profile", "agreement")][..]),
        ("fedmoe-da", "mlp", None, &[("profile", "agreement")]),
        (
            "fedmoe-da",
            "linear",
            Some(90.0),
            &[("profile", "agreement")],
        ),
        ("fedavg", "linear", None, &[]),
        ("fedavg", "linear", Some(90.0), &[]),
        ("local", "mlp", None, &[]),
    ] {
        let mut spec = spec(name, "mlp", hyper);
        spec.privacy.epsilon = epsilon;
        spec.model.name = model.into();
        spec.data.columns = columns();
        spec.fingerprints.input = [1, 1, width_of(&spec.data.columns)];
        (spec.fingerprints.classes, spec.rounds, spec.nodes) = (2, 3, 2);
        algorithm::fill_exchange(&mut spec).unwrap();
        spec.validate().unwrap();
        let nodes = after_three_rounds(&spec, rows);
        assert_same(
            &format!("{name} {model}, raw, {epsilon:?}"),
            &nodes[0],
            "columns",
            &rows(40, 1.0),
        );
    }
}

/// A number comes in the unit of the data: of treated columns, by the line of peers or the own model.
#[test]
fn a_number_comes_in_its_unit() {
    let doses = |n: usize, moved: f32| {
        let like = rows(n, moved);
        let dose = |row: usize| 100.0 + 0.5 * (row * 7 % 13) as f32 - 3.0 * (row % 4) as f32;
        Samples::of_numbers(like.shape, like.pixels, (0..n).map(dose).collect(), "dose").unwrap()
    };
    for (name, hyper) in [
        ("fedmoe-da", &[("profile", "agreement")][..]),
        ("fedavg", &[]),
    ] {
        let mut spec = spec("fedavg", "mlp", &[]);
        spec.algorithm = name.into();
        spec.hyper = hyper
            .iter()
            .map(|(key, value)| ((*key).into(), HyperValue::Text((*value).into())))
            .collect();
        spec.data.columns = columns();
        spec.fingerprints.input = [1, 1, width_of(&spec.data.columns)];
        (spec.fingerprints.classes, spec.rounds, spec.nodes) = (1, 3, 2);
        spec.data.target = Some(Target {
            name: "dose".into(),
            range: [90.0, 110.0],
        });
        algorithm::fill_exchange(&mut spec).unwrap();
        spec.validate().unwrap();
        let nodes = after_three_rounds(&spec, doses);
        let asked = doses(40, 1.0);
        let file = nodes[0].onnx(&[]).unwrap();
        let got = run(file, ["columns", "numbers"], &asked);
        let expected = nodes[0].predict(&asked).unwrap();
        let expected: Vec<f32> = expected.iter().map(|one| one.number.unwrap()).collect();
        assert_eq!(got.len(), expected.len());
        // One part in a million of a number of about a hundred.
        let pairs = || got.iter().zip(&expected);
        assert!(
            pairs().all(|(got, expected)| (got - expected).abs() < 1e-3),
            "{name}"
        );
        assert!(
            pairs().any(|(_, expected)| (expected - got[0]).abs() > 0.5),
            "{name}: all alike"
        );
    }
}

/// 1,100 words, of which some are beyond those that are counted.
fn words() -> Arc<Vocabulary> {
    let tokens: Vec<String> = (0..1_100).map(|word| format!("word{word}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    Arc::new(Vocabulary::new(&tokens).unwrap())
}

/// Texts of three classes.
fn texts(n: usize) -> Samples {
    let word = |at: usize| match at % 8 {
        6 | 7 => Vocabulary::PADDING,
        5 => Vocabulary::UNKNOWN,
        4 if at.is_multiple_of(3) => 1_026 + (at % 70) as u32,
        place => (2 + 10 * (at / 8 % 3) + (at * 7 + place) % 10) as u32,
    };
    let pixels = Pixels::Tokens {
        ids: (0..n * 8).map(word).collect(),
        vocabulary: words(),
    };
    let names = (0..3).map(|class| class.to_string()).collect();
    let labels = (0..n as u16).map(|at| at % 3).collect();
    Samples::new([1, 1, 8], pixels, labels, names).unwrap()
}

fn spec_of_texts(algorithm: &str, model: &str, hyper: &[(&str, &str)]) -> FederationSpec {
    let vocabulary = words();
    let mut spec = spec(algorithm, "mlp", hyper);
    spec.model.name = model.into();
    (spec.fingerprints.input, spec.fingerprints.classes) = ([1, 1, 8], 3);
    spec.fingerprints.vocabulary_size = vocabulary.len();
    spec.fingerprints.vocabulary = Some(vocabulary.hash().to_owned());
    // At the usual rate the logarithms that one of the models makes of its features are of one class only.
    spec.training.learning_rate = 0.02;
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// What three nodes add up once, under masks, is served beside what each does alone.
#[test]
fn a_sum_of_words_is_in_the_file() {
    let mut spec = spec_of_texts("fedmoe-da", "fasttext", &[("profile", "agreement")]);
    (spec.nodes, spec.rounds, spec.privacy.sums) = (3, 1, Sums::Masked);
    spec.exchange = Exchange::default();
    algorithm::fill_exchange(&mut spec).unwrap();
    let device = ComputeDevice::cpu(1).unwrap();
    let node = |index| {
        let split = Split {
            train: texts(60),
            validation: texts(12),
            test: texts(12),
        };
        Learner::new(&spec, index, Arc::new(split), &device).unwrap()
    };
    let mut nodes: Vec<Learner> = (0..3).map(node).collect();
    let total = fed::total(&fed::parts_of_total(&spec, &mut nodes));
    nodes[0].adopt(Some(&total), vec![]).unwrap();
    assert!(serves_noised(&nodes[0]), "{:?}", nodes[0].lacks());
    assert_same("a sum", &nodes[0], "tokens", &texts(20));
}

#[test]
fn texts_are_read_by_their_numbers() {
    for (name, model) in [
        ("fedavg", "fasttext"),
        ("lg-fedavg", "fasttext"),
        ("fedper", "fasttext-pfllib"),
        ("fedmoe-da", "fasttext"),
        ("fedmoe-da", "fasttext by agreement"),
    ] {
        let (model, profile) = model
            .split_once(" by ")
            .map_or((model, None), |(model, profile)| (model, Some(profile)));
        let hyper = profile.map(|profile| ("profile", profile));
        let spec = spec_of_texts(name, model, hyper.as_slice());
        let split = Split {
            train: texts(40),
            validation: texts(12),
            test: texts(12),
        };
        let device = ComputeDevice::cpu(1).unwrap();
        let mut node = Learner::new(&spec, 0, Arc::new(split), &device).unwrap();
        for round in 1..=6 {
            fed::update(&mut node, round);
        }
        assert_same(&format!("{name} {model}"), &node, "tokens", &texts(20));
        // Only what the output needs is written: counts of words where statistics are served, and nowhere else.
        let file = node.onnx(&[]).unwrap();
        let counts_words = file.windows(11).any(|bytes| bytes == b"not_counted");
        assert_eq!(counts_words, profile.is_some(), "{name} {model}");
        if let Some(module) = node.module() {
            let foreign = vec![(NodeId::from_bytes([7; 32]), Arc::clone(&module.params))];
            let settings = PoolSettings {
                epochs: 2,
                guard: false,
                ..PoolSettings::preset(Preset::Paper)
            };
            node.assemble_pool(&settings, foreign, &mut go_on).unwrap();
            assert_same(
                &format!("pool of {name} {model}"),
                &node,
                "tokens",
                &texts(20),
            );
        }
    }
}
