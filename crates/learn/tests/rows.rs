//! What the rows share and keep, and what their rounds do beyond training, on two nodes with the embedded digits.
#![allow(clippy::unwrap_used)]

mod common;

use common::federation::{CLASSES, WIDTH, combine, data, finish, learner, rounds, spec, update, values};
use fednode_core::{HyperValue, Layout};
use fednode_learn::Subset;

fn layout(entries: Vec<(String, Vec<usize>)>) -> Layout {
    entries.into_iter().collect()
}

fn linear(name: &str, inputs: usize, outputs: usize) -> Vec<(String, Vec<usize>)> {
    vec![(format!("{name}.weight"), vec![outputs, inputs]), (format!("{name}.bias"), vec![outputs])]
}

/// Base of the `mlp` on the digits, its parameters' names prefixed.
fn base(prefix: &str) -> Vec<(String, Vec<usize>)> {
    [linear(&format!("{prefix}fc1"), 64, WIDTH), linear(&format!("{prefix}fc2"), WIDTH, WIDTH)].concat()
}

fn head(prefix: &str) -> Vec<(String, Vec<usize>)> {
    linear(&format!("{prefix}fc"), WIDTH, CLASSES)
}

fn whole(prefix: &str) -> Vec<(String, Vec<usize>)> {
    [base(prefix), head(prefix)].concat()
}

fn array(name: &str, shape: &[usize]) -> Vec<(String, Vec<usize>)> {
    vec![(name.to_owned(), shape.to_vec())]
}

fn switch_gate() -> Vec<(String, Vec<usize>)> {
    let norm = |name: &str, width: usize| {
        let arrays = ["weight", "bias", "running_mean", "running_var"];
        arrays.map(|array| (format!("gate.{name}.{array}"), vec![width])).to_vec()
    };
    let switch = ["mean_weight", "var_weight"].map(|name| (format!("gate.norm.{name}"), vec![2])).to_vec();
    let linear = [linear("gate.fc1", 64, 64), linear("gate.fc2", 64, 2)].concat();
    [norm("norm", 64), norm("bn1", 64), norm("bn2", 2), switch, linear].concat()
}

#[test]
fn shares_and_keeps_what_its_paper_says() {
    let prototypes = || [array("prototypes", &[CLASSES, WIDTH]), array("prototypes_present", &[CLASSES])].concat();
    let logits = || [array("mean_logits", &[CLASSES, CLASSES]), array("mean_logits_present", &[CLASSES])].concat();
    let table = [
        ("fedprox", whole(""), Vec::new()),
        ("scaffold", [whole(""), whole("control.")].concat(), whole("own_control.")),
        ("moon", whole(""), base("previous.")),
        ("fedproto", prototypes(), whole("")),
        ("fd", logits(), whole("")),
        ("pfl-fb", whole(""), [whole("personal."), array("progress", &[1])].concat()),
        ("pfl-mf", whole(""), [whole("personal."), array("progress", &[1]), linear("gate", 64, 1)].concat()),
        ("pfl-mfe", whole(""), [whole("personal."), array("progress", &[1]), linear("gate", 64, 1)].concat()),
        ("pfedmoe", base("small."), [whole(""), switch_gate()].concat()),
        ("fml", whole("small."), whole("")),
        ("fedkd", whole("small."), [whole(""), array("between.weight", &[WIDTH, WIDTH])].concat()),
        ("fedapen", whole("small."), [whole(""), array("ensemble_weight", &[1])].concat()),
    ];
    for (algorithm, shared, private) in table {
        let learner = learner(&spec(algorithm, &[]), 0);
        assert_eq!(learner.shared_layout().unwrap(), layout(shared.clone()), "{algorithm}");
        assert_eq!(learner.state().layout(), layout([shared, private].concat()), "{algorithm}");
        assert_eq!((learner.experts().len(), learner.proxies()), (0, None), "{algorithm}");
    }
}

#[test]
fn scaffold_adopts_the_mean_of_all_control_variates() {
    let spec = spec("scaffold", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let (control, own) = (["control.fc.weight", "control.fc1.bias"], ["own_control.fc.weight", "own_control.fc1.bias"]);
    assert!(values(&learners[0].state(), &control).iter().all(|value| *value == 0.0));
    for round in 1..=2 {
        rounds(&spec, &mut learners, round..=round);
        let states = learners.each_ref().map(|learner| learner.state());
        assert_eq!(values(&states[0], &control), values(&states[1], &control));
        let (first, second) = (values(&states[0], &own), values(&states[1], &own));
        assert_ne!(first, second);
        let mean: Vec<f32> =
            first.iter().zip(&second).map(|(a, b)| ((f64::from(*a) + f64::from(*b)) / 2.0) as f32).collect();
        assert_eq!(values(&states[0], &control), mean, "round {round}");
    }
}

#[test]
fn fedproto_learns_the_mean_of_the_nodes_that_have_a_class() {
    let spec = spec("fedproto", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let updates: Vec<_> = learners.iter_mut().map(|learner| update(learner, 1)).collect();
    let names = ["prototypes", "prototypes_present"];
    let sent: Vec<_> =
        updates.iter().map(|update| names.map(|name| values(update.shared.as_ref().unwrap(), &[name]))).collect();
    let mean = combine(&spec, &updates).unwrap();
    let [sums, shares] = names.map(|name| values(&mean, &[name]));
    for (class, share) in shares.iter().enumerate() {
        let has = |node: usize| data(node).train.labels.iter().any(|label| usize::from(*label) == class);
        let owners: Vec<usize> = (0..2).filter(|node| has(*node)).collect();
        assert!((share - owners.len() as f32 / 2.0).abs() < 1e-6, "class {class}");
        for at in class * WIDTH..(class + 1) * WIDTH {
            let expected = owners.iter().map(|node| sent[*node][0][at]).sum::<f32>() / owners.len().max(1) as f32;
            let got = sums[at] / share.max(f32::MIN_POSITIVE);
            assert!((got - expected).abs() < 1e-4, "class {class}: {got} is not {expected}");
        }
    }
    // What comes in decides from then on.
    let before = learners[0].evaluate(Subset::Test);
    learners[0].adopt(Some(mean), Vec::new()).unwrap();
    assert_ne!(learners[0].evaluate(Subset::Test).score.loss, before.score.loss);
}

/// Of 128 samples the classifier gets 96 and the gate 32, in batches of 64.
#[test]
fn pfl_moe_finishes_in_two_stages_and_stays_what_it_is_after_a_restart() {
    let hyper = |epochs: i64| HyperValue::Integer(epochs);
    let spec = spec("pfl-mfe", &[("personal_epochs", hyper(3)), ("gate_epochs", hyper(2))]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    rounds(&spec, &mut learners, 1..=2);
    let [mut node, _] = learners;
    assert_eq!(data(0).train.len(), 128);
    let (shared, loss) = (node.shared(), node.evaluate(Subset::Train).score.loss);
    assert_eq!(finish(&mut node, 2), 3 * 2 + 2);
    assert_eq!(node.shared(), shared, "the common model is frozen");
    assert!(node.evaluate(Subset::Train).score.loss < loss);
    let mut restored = learner(&spec, 0);
    restored.restore(&node.state()).unwrap();
    assert_eq!(restored.evaluate(Subset::Test), node.evaluate(Subset::Test));
    finish(&mut restored, 2);
    assert_eq!(restored.state(), node.state(), "to finish once more is to finish");
}

/// Where only something small is shared, the nodes' own models may differ: all that must be alike is what travels.
#[test]
fn nodes_of_different_models_learn_together() {
    const LAST: u32 = 8;
    let small = || HyperValue::Text("cnn-5".into());
    let table = [
        ("pfedmoe", vec![("profile", HyperValue::Text("heterogeneous".into()))]),
        ("fml", vec![("small_model", small())]),
        ("fedkd", vec![("small_model", small())]),
        ("fedapen", vec![("small_model", small())]),
        ("fedproto", Vec::new()),
        ("fd", Vec::new()),
    ];
    for (algorithm, hyper) in table {
        let node = |index: usize, model: &str| {
            let mut spec = spec(algorithm, &hyper);
            spec.model.name = model.into();
            learner(&spec, index)
        };
        let mut learners = [node(0, "cnn-5"), node(1, "cnn-3")];
        assert_ne!(learners[0].state().layout(), learners[1].state().layout(), "{algorithm}");
        assert_eq!(learners[0].initial_shared(), learners[1].initial_shared(), "{algorithm}");
        rounds(&spec(algorithm, &hyper), &mut learners, 1..=LAST);
        let (mut correct, mut majority, mut total) = (0, 0, 0);
        for learner in &learners {
            let evaluation = learner.evaluate(Subset::Test);
            correct += evaluation.classes.iter().map(|class| class.correct).sum::<u32>();
            majority += evaluation.classes.iter().map(|class| class.total).max().unwrap();
            total += evaluation.score.n_samples;
        }
        assert!(correct > majority, "{algorithm}: {correct} of {total}, majority {majority}");
    }
}
