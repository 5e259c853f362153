//! Federations of two nodes that learn texts, which the tests make up.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use common::federation::{finish, parts_of_total, rounds, total, update};
use fednode_core::spec::{Preset, Sums, TrainingSpec};
use fednode_core::{Exchange, FederationSpec, HyperValue, NodeId, Round};
use fednode_data::{Pixels, Samples, Split, Vocabulary};
use fednode_learn::{
    ComputeDevice, LearnError, Learner, NoiseKey, PoolSettings, Subset, algorithm,
};

const LENGTH: usize = 20;
const CLASSES: usize = 4;
/// Words of no class, then those of each class.
const COMMON: u32 = 40;
const TOPICAL: u32 = 15;

/// Numbers below `n`, the same everywhere.
struct Dice(u32);

impl Dice {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(self.0) * u64::from(n)) >> 32) as u32
    }
}

fn vocabulary(words: u32) -> Arc<Vocabulary> {
    let words: Vec<String> = (0..words).map(|word| format!("word{word}")).collect();
    Arc::new(Vocabulary::new(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap())
}

/// Texts of 6 to 12 words, of which one in three tells the class; two classes in three are the node's own two.
fn texts(node: u32, n: usize, seed: u32) -> Samples {
    let vocabulary = vocabulary(COMMON + TOPICAL * CLASSES as u32);
    let mut dice = Dice(seed * 1000 + node);
    let (mut ids, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let class = if dice.below(3) < 2 {
            2 * node + dice.below(2)
        } else {
            dice.below(CLASSES as u32)
        };
        let mut text = vec![Vocabulary::PADDING; LENGTH];
        let words = 6 + dice.below(7) as usize;
        for place in &mut text[..words] {
            *place = match dice.below(3) {
                0 => 2 + COMMON + class * TOPICAL + dice.below(TOPICAL),
                _ if dice.below(20) == 0 => Vocabulary::UNKNOWN,
                _ => 2 + dice.below(COMMON),
            };
        }
        ids.extend(text);
        labels.push(class as u16);
    }
    let names = (0..CLASSES).map(|class| class.to_string()).collect();
    Samples::new(
        [1, 1, LENGTH],
        Pixels::Tokens { ids, vocabulary },
        labels,
        names,
    )
    .unwrap()
}

fn data(node: u32) -> Arc<Split> {
    Arc::new(Split {
        train: texts(node, 200, 1),
        validation: texts(node, 60, 2),
        test: texts(node, 150, 3),
    })
}

fn spec(algorithm: &str, model: &str) -> FederationSpec {
    let samples = texts(0, 1, 1);
    let words = samples.vocabulary().unwrap();
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        ..FederationSpec::default()
    };
    (spec.model.name, spec.model.experts) = (model.into(), 2);
    spec.fingerprints.input = samples.shape;
    spec.fingerprints.classes = CLASSES;
    spec.fingerprints.vocabulary_size = words.len();
    spec.fingerprints.vocabulary = Some(words.hash().into());
    spec.training = TrainingSpec {
        learning_rate: 0.2,
        batch_size: 10,
        local_epochs: 1,
        ..TrainingSpec::default()
    };
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// FedMoE-DA by agreement, with what `change` changes.
fn agreement(model: &str, change: impl FnOnce(&mut FederationSpec)) -> FederationSpec {
    let mut spec = spec("fedmoe-da", model);
    let profile = HyperValue::Text("agreement".into());
    spec.hyper.insert("profile".into(), profile);
    change(&mut spec);
    spec.exchange = Exchange::default();
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

fn build(spec: &FederationSpec, node: u32) -> Result<Learner, LearnError> {
    Learner::new(
        spec,
        u64::from(node),
        data(node),
        &ComputeDevice::cpu(1).unwrap(),
    )
}

/// Returns right answers, those of always saying a node's commonest class, and all, over both nodes.
fn counts(learners: &[Learner]) -> [u32; 3] {
    learners
        .iter()
        .map(|learner| learner.evaluate(Subset::Test))
        .fold([0; 3], |[correct, floor, total], now| {
            let right: u32 = now.classes.iter().map(|class| class.correct).sum();
            let commonest = now.classes.iter().map(|class| class.total).max().unwrap();
            [
                correct + right,
                floor + commonest,
                total + now.score.n_samples,
            ]
        })
}

fn after(spec: &FederationSpec, last: u32) -> Vec<Learner> {
    let mut learners = vec![build(spec, 0).unwrap(), build(spec, 1).unwrap()];
    rounds(spec, &mut learners, 1..=last);
    learners
        .iter_mut()
        .for_each(|learner| _ = finish(learner, last));
    learners
}

#[test]
fn fedper_learns_texts_well_above_the_floor() {
    let [correct, floor, total] = counts(&after(&spec("fedper", "fasttext"), 12));
    let [trapped, ..] = counts(&after(&spec("fedper", "fasttext-pfllib"), 12));
    // At least halfway from the floor to perfection; of one text in twenty no word tells the class.
    assert!(
        2 * correct > floor + total && 2 * floor < total,
        "{correct} of {total}, floor {floor}"
    );
    assert!(
        trapped < floor,
        "with the traps nothing is learned in that time, but {trapped} of {total} are right"
    );
}

/// A node has few texts of the other one's classes, and its peer has many. What each adds up is how often words occur, so nothing is
/// trained in common.
#[test]
fn nodes_that_add_up_their_words_know_classes_of_each_other() {
    let correct = |peers: &str| {
        let mut spec = spec("fedmoe-da", "fasttext");
        for (key, value) in [("profile", "agreement"), ("peers_per_expert", peers)] {
            spec.hyper.insert(key.into(), value.parse().unwrap());
        }
        algorithm::fill_exchange(&mut spec).unwrap();
        let [correct, _, total] = counts(&after(&spec, 3));
        f64::from(correct) / f64::from(total)
    };
    let (together, alone) = (correct("all"), correct("0"));
    assert!(
        together > alone + 0.05 && together > 0.8,
        "{together} together, {alone} alone"
    );
}

/// 60 texts of which four have word 4 and five have word 5, beside the words 2 and 3.
fn with_rare_words() -> Arc<Split> {
    let mut own = texts(0, 60, 1);
    let Pixels::Tokens { vocabulary, .. } = &own.pixels else {
        unreachable!("texts are tokens");
    };
    let word = |text: usize| match text {
        0..4 => 4,
        4..9 => 5,
        _ => Vocabulary::UNKNOWN,
    };
    let ids = (0..60).flat_map(|text| {
        [2 + text as u32 % 2, word(text)]
            .into_iter()
            .chain([0; LENGTH - 2])
    });
    own.pixels = Pixels::Tokens {
        ids: ids.collect(),
        vocabulary: Arc::clone(vocabulary),
    };
    Arc::new(Split {
        train: own,
        validation: texts(0, 20, 2),
        test: texts(0, 20, 3),
    })
}

/// With 60 texts of three words whose counts leave the node, nobody is told from others.
#[test]
fn words_of_fewer_than_five_texts_do_not_leave_a_node() {
    let spec = agreement("fasttext", |_| ());
    let device = ComputeDevice::cpu(1).unwrap();
    let mut node = Learner::new(&spec, 0, with_rare_words(), &device).unwrap();
    assert_eq!(
        node.surely_exposed(),
        None,
        "60 texts are more than three words"
    );
    let published = update(&mut node, 1).experts.remove(0).0;
    let sums = published.get("agreement.sums").unwrap();
    let width = *sums.shape().last().unwrap();
    let holds = |word: usize| {
        let mut rows = sums.values().chunks_exact(width);
        rows.any(|row| row[word - 2] != 0.0)
    };
    assert_eq!([2, 3, 4, 5, 6].map(holds), [true, true, false, true, false]);
    let mut row = 0;
    for at in 0..width {
        let products = &published.get("agreement.scatter").unwrap().values()[row..row + width - at];
        let is_published = products.iter().any(|product| *product != 0.0);
        assert!(!is_published || [0, 1, 3].contains(&at), "word {at}");
        row += width - at;
    }
}

/// Under masks others see a sum of all, and a word that one text has is in it.
#[test]
fn words_of_fewer_than_five_texts_are_not_in_a_sum_either() {
    let spec = agreement("fasttext", |spec| {
        spec.privacy.sums = Sums::Masked;
        (spec.nodes, spec.rounds) = (3, 1);
    });
    let device = ComputeDevice::cpu(1).unwrap();
    let mut node = Learner::new(&spec, 0, with_rare_words(), &device).unwrap();
    let published = update(&mut node, 1).shared.unwrap();
    let numbers = published.get("noised.numbers").unwrap().values();
    let (high, low) = numbers.split_at(numbers.len() / 2);
    // Counts of the classes, then the sums of each class.
    let width = 100;
    let holds = |word: usize| {
        let mut places = (0..CLASSES).map(|class| CLASSES + class * width + word - 2);
        places.any(|at| high[at] != 0.0 || low[at] != 0.0)
    };
    assert_eq!(
        numbers.len() / 2,
        CLASSES + CLASSES * width + width * (width + 1) / 2
    );
    assert_eq!([2, 3, 4, 5, 6].map(holds), [true, true, false, true, false]);
}

/// Four nodes add up their words once, with and without noise. Two of them have few texts of the classes of the other two.
#[test]
fn a_sum_of_words_under_masks_tells_nodes_of_classes_of_each_other() {
    for epsilon in [None, Some(8.0)] {
        let spec = agreement("fasttext", |spec| {
            (spec.privacy.sums, spec.privacy.epsilon) = (Sums::Masked, epsilon);
            (spec.nodes, spec.rounds) = (4, 2);
        });
        let device = ComputeDevice::cpu(1).unwrap();
        let node = |node: u32| {
            let split = Split {
                train: texts(node % 2, 200, 10 + node),
                validation: texts(node % 2, 60, 20 + node),
                test: texts(node % 2, 150, 30 + node),
            };
            let mut node = Learner::new(&spec, u64::from(node), Arc::new(split), &device).unwrap();
            node.draw_noise_from(NoiseKey::of_secret(&[7; 32]));
            node
        };
        let mut nodes: Vec<Learner> = (0..4).map(node).collect();
        let total = total(&parts_of_total(&spec, &mut nodes));
        let right = |nodes: &[Learner]| {
            let [right, _, all] = counts(nodes);
            f64::from(right) / f64::from(all)
        };
        let alone = right(&nodes);
        for node in &mut nodes {
            node.adopt(Some(&total), vec![]).unwrap();
            assert_eq!(node.lacks(), None);
        }
        let together = right(&nodes);
        assert!(
            together > alone + 0.03 && together > 0.8,
            "{together} together, {alone} alone, epsilon {epsilon:?}"
        );
    }
}

#[test]
fn every_algorithm_trains_on_texts_or_says_why_not() {
    for row in algorithm::TABLE {
        let spec = spec(row.name, "fasttext");
        if ["pfl-mf", "pfedmoe", "fedmix"].contains(&row.name) {
            let error = build(&spec, 0).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "algorithm `{}` has a gate on the raw input, which texts have no use for",
                    row.name
                )
            );
            continue;
        }
        let learners = after(&spec, 3);
        for learner in &learners {
            assert!(learner.state().values().all(f32::is_finite), "{}", row.name);
            assert!(
                learner.evaluate(Subset::Train).score.loss.is_finite(),
                "{}",
                row.name
            );
        }
        if row.name == "fedmoe-da" {
            let shared: usize = learners[0]
                .shared_layout()
                .unwrap()
                .values()
                .map(|shape| shape.iter().product::<usize>())
                .sum();
            let gate = learners[0].state();
            assert_eq!(
                (shared, gate.get("gate.weight").unwrap().shape()),
                (102 * 32, [2, 32].as_slice())
            );
        }
    }
}

#[test]
fn a_pool_of_extractors_is_gated_by_the_mean_embedding() {
    let spec = spec("lg-fedavg", "fasttext");
    let mut learners = after(&spec, 4);
    let foreign = learners[1].module().unwrap().params;
    let pool = PoolSettings {
        epochs: 5,
        ..PoolSettings::preset(Preset::Best)
    };
    let node = &mut learners[0];
    node.fine_tune_module(&pool, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let outcome = node.assemble_pool(
        &pool,
        vec![(NodeId::from_bytes([1; 32]), foreign)],
        &mut |_| ControlFlow::Continue(()),
    );
    outcome.unwrap();
    if let Some(gate) = node.state().get("pool.gate.0.weight") {
        assert_eq!(gate.shape()[1], 32);
    }
    assert!(node.evaluate(Subset::Test).score.loss.is_finite());
}

/// A row that no text of a node names is the common start still; the first two are zeros for ever.
#[test]
fn only_the_rows_of_words_that_occur_are_trained() {
    let spec = spec("fedavg", "fasttext");
    let mut learner = build(&spec, 0).unwrap();
    let before = learner.state();
    let shared = update(&mut learner, 1).shared.unwrap();
    let table =
        |params: &fednode_core::ParamSet| params.get("embedding.weight").unwrap().values().to_vec();
    let (before, after) = (table(&before), table(&shared));
    let Pixels::Tokens { ids, .. } = &data(0).train.pixels else {
        panic!("texts")
    };
    for token in 0..102 {
        let row = token * 32..(token + 1) * 32;
        let is_trained = token > 1 && ids.contains(&(token as u32));
        assert_eq!(
            before[row.clone()] != after[row.clone()],
            is_trained,
            "{token}"
        );
        assert!(token > 1 || after[row].iter().all(|value| *value == 0.0));
    }
}

#[test]
fn other_vocabularies_and_images_are_refused() {
    let error = |change: &dyn Fn(&mut FederationSpec)| {
        let mut spec = spec("fedavg", "fasttext");
        change(&mut spec);
        build(&spec, 0).unwrap_err().to_string()
    };
    let other = error(&|spec| spec.fingerprints.vocabulary = Some("ab".repeat(16)));
    assert!(
        other.contains(
            "but `fingerprints.vocabulary_size` is 102 entries (abababab): read the same texts"
        ),
        "{other}"
    );
    assert!(
        error(&|spec| spec.fingerprints.vocabulary_size = 103)
            .contains("but `fingerprints.vocabulary_size` is 103 entries")
    );
    let mut unnamed = spec("fedavg", "fasttext");
    unnamed.fingerprints.vocabulary = None;
    let learner = build(&unnamed, 0).unwrap();
    let names = (0..CLASSES).map(|class| class.to_string()).collect();
    let numbers = Samples::new(
        [1, 1, LENGTH],
        Pixels::Floats(vec![0.0; LENGTH]),
        vec![0],
        names,
    )
    .unwrap();
    assert!(matches!(
        learner.predict(&numbers),
        Err(LearnError::Vocabulary { .. })
    ));
    assert!(
        error(&|spec| spec.model.name = "mlp".into()).starts_with("model `mlp` cannot read texts")
    );
}

/// Run by hand: `cargo test --release -p fednode-learn --test texts -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn a_step_of_ten_texts_with_32000_words() {
    const N: usize = 500;
    for (length, words) in [(200, 200), (200, 45)] {
        let (vocabulary, mut dice) = (vocabulary(31_998), Dice(7));
        let text = |dice: &mut Dice| -> Vec<u32> {
            (0..length)
                .map(|at| {
                    if at < words {
                        2 + dice.below(31_998)
                    } else {
                        0
                    }
                })
                .collect()
        };
        let ids = (0..N).flat_map(|_| text(&mut dice)).collect();
        let names = (0..CLASSES).map(|class| class.to_string()).collect();
        let labels = (0..N).map(|at| (at % CLASSES) as u16).collect();
        let train = Samples::new(
            [1, 1, length],
            Pixels::Tokens { ids, vocabulary },
            labels,
            names,
        )
        .unwrap();
        let mut spec = spec("fedper", "fasttext");
        (spec.fingerprints.input, spec.fingerprints.vocabulary_size) = ([1, 1, length], 32_000);
        spec.fingerprints.vocabulary = None;
        let few = train.subset(&[0]);
        let split = Split {
            train,
            validation: few.clone(),
            test: few,
        };
        let mut learner =
            Learner::new(&spec, 0, Arc::new(split), &ComputeDevice::cpu(1).unwrap()).unwrap();
        update(&mut learner, 1);
        let start = Instant::now();
        learner
            .local_update(Round(2), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let step = start.elapsed().as_secs_f64() * 1e3 / (N / 10) as f64;
        eprintln!("{words} words of {length} places, 32000 x 32, batch 10: {step:.2} ms per step");
    }
}
