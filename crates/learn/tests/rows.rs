//! What the rows share and keep, and what their rounds do beyond training, on two nodes with the embedded digits.
#![allow(clippy::unwrap_used)]

mod common;

use common::federation::{
    CLASSES, WIDTH, combine, data, finish, learner, mix, rounds, spec, update, values,
};
use fednode_core::{HyperValue, Layout, ParamSet};
use fednode_learn::{Learner, Subset};

/// Parameters' names with their shapes.
type Names = Vec<(String, Vec<usize>)>;

fn layout(entries: Names) -> Layout {
    entries.into_iter().collect()
}

fn linear(name: &str, inputs: usize, outputs: usize) -> Names {
    vec![
        (format!("{name}.weight"), vec![outputs, inputs]),
        (format!("{name}.bias"), vec![outputs]),
    ]
}

/// Base of the `mlp` on the digits, its parameters' names prefixed.
fn base(prefix: &str) -> Names {
    [
        linear(&format!("{prefix}fc1"), 64, WIDTH),
        linear(&format!("{prefix}fc2"), WIDTH, WIDTH),
    ]
    .concat()
}

fn head(prefix: &str) -> Names {
    linear(&format!("{prefix}fc"), WIDTH, CLASSES)
}

fn whole(prefix: &str) -> Names {
    [base(prefix), head(prefix)].concat()
}

fn array(name: &str, shape: &[usize]) -> Names {
    vec![(name.to_owned(), shape.to_vec())]
}

fn experts(count: usize) -> Names {
    let all = (0..count).flat_map(|expert| whole(&format!("experts.{expert}.")));
    all.chain(array("usage", &[count])).collect()
}

fn generator() -> Names {
    let layers = [
        linear("generator.hidden", 32 + CLASSES, 256),
        linear("generator.features", 256, WIDTH),
    ];
    [layers.concat(), array("class_shares", &[CLASSES])].concat()
}

fn switch_gate() -> Names {
    let norm = |name: &str, width: usize| {
        let arrays = ["weight", "bias", "running_mean", "running_var"];
        arrays
            .map(|array| (format!("gate.{name}.{array}"), vec![width]))
            .to_vec()
    };
    let switch = ["mean_weight", "var_weight"]
        .map(|name| (format!("gate.norm.{name}"), vec![2]))
        .to_vec();
    let linear = [linear("gate.fc1", 64, 64), linear("gate.fc2", 64, 2)].concat();
    [
        norm("norm", 64),
        norm("bn1", 64),
        norm("bn2", 2),
        switch,
        linear,
    ]
    .concat()
}

fn norm(name: &str, width: usize) -> Names {
    let array = |kind| (format!("{name}.{kind}"), vec![width]);
    ["weight", "bias"].map(array).to_vec()
}

fn prototypes() -> Names {
    [
        array("prototypes", &[CLASSES, WIDTH]),
        array("prototypes_present", &[CLASSES]),
    ]
    .concat()
}

fn mean_logits() -> Names {
    [
        array("mean_logits", &[CLASSES, CLASSES]),
        array("mean_logits_present", &[CLASSES]),
    ]
    .concat()
}

/// GPFL's conditional valve, with the embeddings of the classes.
fn valve() -> Names {
    [
        linear("cov.gamma.0", WIDTH, WIDTH),
        norm("cov.gamma.2", WIDTH),
        linear("cov.beta.0", WIDTH, WIDTH),
        norm("cov.beta.2", WIDTH),
        array("class_embedding", &[CLASSES, WIDTH]),
    ]
    .concat()
}

fn conditions() -> Names {
    let condition = |name| array(name, &[WIDTH]);
    [
        condition("generic_condition"),
        condition("personal_condition"),
    ]
    .concat()
}

/// FedCP's network of the conditional policy.
fn policy() -> Names {
    [
        linear("policy.0", WIDTH, 2 * WIDTH),
        norm("policy.1", 2 * WIDTH),
    ]
    .concat()
}

fn personal_head() -> Names {
    linear("personal", WIDTH, CLASSES)
}

fn personal_model_with_gate() -> Names {
    [whole("personal."), linear("gate", 64, 1)].concat()
}

/// A row, the names and shapes that it shares, and those that it keeps.
type Shares = (&'static str, Names, Names);

/// Trains nobody: the layouts are there from the beginning.
fn assert_layouts(table: Vec<Shares>) {
    for (algorithm, shared, private) in table {
        let learner = learner(&spec(algorithm, &[]), 0);
        assert_eq!(
            learner.shared_layout().unwrap(),
            layout(shared.clone()),
            "{algorithm}"
        );
        assert_eq!(
            learner.state().layout(),
            layout([shared, private].concat()),
            "{algorithm}"
        );
        assert_eq!(
            (learner.experts().len(), learner.proxies()),
            (0, None),
            "{algorithm}"
        );
    }
}

/// With what the files of DBE, GPFL and FedCP say they add.
#[test]
fn personal_layers_share_and_keep_what_their_papers_say() {
    let array = |name| array(name, &[WIDTH]);
    assert_layouts(vec![
        ("fedper", base(""), head("")),
        ("lg-fedavg", head(""), base("")),
        ("fedrep", base(""), head("")),
        ("fedrod", whole(""), personal_head()),
        ("fedgh", [head(""), prototypes()].concat(), base("")),
        ("fedbabu", base(""), head("")),
        (
            "gpfl",
            [base(""), valve()].concat(),
            [head(""), conditions()].concat(),
        ),
        (
            "fedcp",
            [whole(""), policy()].concat(),
            [personal_head(), array("context")].concat(),
        ),
        (
            "dbe",
            [whole(""), array("mean_feature")].concat(),
            array("personal_bias"),
        ),
    ]);
}

#[test]
fn whole_and_auxiliary_models_share_and_keep_what_their_papers_say() {
    assert_layouts(vec![
        ("fedprox", whole(""), Vec::new()),
        ("fedavg-ft", whole(""), Vec::new()),
        ("ditto", whole(""), whole("personal.")),
        (
            "scaffold",
            [whole(""), whole("control.")].concat(),
            whole("own_control."),
        ),
        ("moon", whole(""), base("previous.")),
        ("fedproto", prototypes(), whole("")),
        ("fd", mean_logits(), whole("")),
        ("fml", whole("small."), whole("")),
        (
            "fedkd",
            whole("small."),
            [whole(""), array("between.weight", &[WIDTH, WIDTH])].concat(),
        ),
        (
            "fedapen",
            whole("small."),
            [whole(""), array("ensemble_weight", &[1])].concat(),
        ),
        (
            "fedgen",
            [base(""), linear("head", WIDTH, CLASSES), generator()].concat(),
            Vec::new(),
        ),
    ]);
}

#[test]
fn mixtures_share_and_keep_what_their_papers_say() {
    assert_layouts(vec![
        ("pfl-fb", whole(""), whole("personal.")),
        ("pfl-mf", whole(""), personal_model_with_gate()),
        ("pfl-mfe", whole(""), personal_model_with_gate()),
        (
            "fed-syn-moe",
            whole(""),
            [personal_head(), linear("gate", WIDTH, 1)].concat(),
        ),
        (
            "pfedmoe",
            base("small."),
            [whole(""), switch_gate()].concat(),
        ),
        ("fedmix", experts(4), linear("gate", 64, 4)),
        (
            "fedjets",
            [whole("common."), linear("gate", WIDTH, 4), experts(4)].concat(),
            Vec::new(),
        ),
        ("ifca", experts(2), Vec::new()),
        (
            "fedem",
            (0..3)
                .flat_map(|at| whole(&format!("components.{at}.")))
                .collect(),
            array("component_weights", &[3]),
        ),
    ]);
}

#[test]
fn scaffold_adopts_the_mean_of_all_control_variates() {
    let spec = spec("scaffold", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let (control, own) = (
        ["control.fc.weight", "control.fc1.bias"],
        ["own_control.fc.weight", "own_control.fc1.bias"],
    );
    assert!(
        values(&learners[0].state(), &control)
            .iter()
            .all(|value| *value == 0.0)
    );
    for round in 1..=2 {
        rounds(&spec, &mut learners, round..=round);
        let states = learners.each_ref().map(|learner| learner.state());
        assert_eq!(values(&states[0], &control), values(&states[1], &control));
        let (first, second) = (values(&states[0], &own), values(&states[1], &own));
        assert_ne!(first, second);
        let mean: Vec<f32> = first
            .iter()
            .zip(&second)
            .map(|(a, b)| ((f64::from(*a) + f64::from(*b)) / 2.0) as f32)
            .collect();
        assert_eq!(values(&states[0], &control), mean, "round {round}");
    }
}

#[test]
fn fedproto_learns_the_mean_of_the_nodes_that_have_a_class() {
    let spec = spec("fedproto", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let updates: Vec<_> = learners
        .iter_mut()
        .map(|learner| update(learner, 1))
        .collect();
    let names = ["prototypes", "prototypes_present"];
    let sent: Vec<_> = updates
        .iter()
        .map(|update| names.map(|name| values(update.shared.as_ref().unwrap(), &[name])))
        .collect();
    let mean = combine(&spec, &updates).unwrap();
    let [sums, shares] = names.map(|name| values(&mean, &[name]));
    for (class, share) in shares.iter().enumerate() {
        let has = |node: usize| {
            data(node)
                .train
                .labels
                .iter()
                .any(|label| usize::from(*label) == class)
        };
        let owners: Vec<usize> = (0..2).filter(|node| has(*node)).collect();
        assert!(
            (share - owners.len() as f32 / 2.0).abs() < 1e-6,
            "class {class}"
        );
        for at in class * WIDTH..(class + 1) * WIDTH {
            let expected = owners.iter().map(|node| sent[*node][0][at]).sum::<f32>()
                / owners.len().max(1) as f32;
            let got = sums[at] / share.max(f32::MIN_POSITIVE);
            assert!(
                (got - expected).abs() < 1e-4,
                "class {class}: {got} is not {expected}"
            );
        }
    }
    // What comes in decides from then on.
    let before = learners[0].evaluate(Subset::Test);
    learners[0].adopt(Some(mean), Vec::new()).unwrap();
    assert_ne!(
        learners[0].evaluate(Subset::Test).score.loss,
        before.score.loss
    );
}

/// Of two nodes, the programme has the closed form a = (v_2 + d^2) / (v_1 + v_2 + d^2).
#[test]
fn fedpac_mixes_heads_by_everyones_statistics() {
    let spec = spec("fedpac", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let shared = [
        base(""),
        array("centroids", &[CLASSES, WIDTH]),
        array("class_shares", &[CLASSES]),
    ]
    .concat();
    assert_eq!(learners[0].shared_layout().unwrap(), layout(shared));
    let updates: Vec<_> = learners
        .iter_mut()
        .map(|learner| update(learner, 1))
        .collect();
    let statistics = [0, 1].map(|node| {
        updates[node]
            .proxies
            .as_ref()
            .unwrap()
            .iter()
            .next()
            .unwrap()
            .to_vec()
    });
    assert_eq!(statistics[0].len(), CLASSES * WIDTH + 1);
    let wide = |value: &f32| f64::from(*value);
    let variance = statistics
        .each_ref()
        .map(|statistics| statistics.last().map(wide).unwrap());
    let pairs = statistics[0]
        .iter()
        .zip(&statistics[1])
        .take(CLASSES * WIDTH);
    let distance: f64 = pairs.map(|(a, b)| (wide(a) - wide(b)).powi(2)).sum();
    let own = (variance[1] + distance) / (variance[0] + variance[1] + distance);
    assert!(
        own > 0.5 && own < 0.999 && variance.iter().all(|v| *v > 0.0),
        "{own} of {variance:?}, {distance}"
    );
    let heads = [0, 1].map(|node| values(&updates[node].experts[0].0, &["fc.weight"]));
    let mixed = mix(&spec, &updates, 0).remove(0).1;
    for (at, got) in values(&mixed, &["fc.weight"]).into_iter().enumerate() {
        let expected = own * wide(&heads[0][at]) + (1.0 - own) * wide(&heads[1][at]);
        assert!(
            (f64::from(got) - expected).abs() < 1e-6,
            "{got} is not {expected}"
        );
    }
}

/// The generator comes from the aggregator alone, and is the same for all.
#[test]
fn fedgen_learns_its_generator_from_the_heads_that_were_sent() {
    let spec = spec("fedgen", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let name = ["generator.features.weight"];
    let start = values(&learners[0].state(), &name);
    let updates: Vec<_> = learners
        .iter_mut()
        .map(|learner| update(learner, 1))
        .collect();
    assert_eq!(values(updates[1].shared.as_ref().unwrap(), &name), start);
    let learned = combine(&spec, &updates).unwrap();
    assert_ne!(values(&learned, &name), start);
    // The share of each class among the samples of both nodes.
    let labels: Vec<u16> = [data(0), data(1)]
        .iter()
        .flat_map(|split| split.train.labels.clone())
        .collect();
    for (class, share) in values(&learned, &["class_shares"]).into_iter().enumerate() {
        let count = labels
            .iter()
            .filter(|label| usize::from(**label) == class)
            .count();
        assert!(
            (f64::from(share) - count as f64 / labels.len() as f64).abs() < 1e-6,
            "class {class}"
        );
    }
}

/// An expert is averaged by use: what one node alone has used is that node's.
#[test]
fn fedmix_and_fedjets_average_experts_over_those_that_used_them() {
    // With this share no node is the anchor of a group of classes: the gate alone chooses.
    let jets = vec![
        ("common_rounds", HyperValue::Integer(1)),
        ("anchor_share", HyperValue::Real(1.0)),
    ];
    for (algorithm, hyper) in [("fedmix", vec![]), ("fedjets", jets)] {
        let hyper = [hyper, vec![("selected_experts", HyperValue::Integer(1))]].concat();
        let spec = spec(algorithm, &hyper);
        let mut learners = [learner(&spec, 0), learner(&spec, 1)];
        rounds(&spec, &mut learners, 1..=1);
        for (node, learner) in learners.iter_mut().enumerate() {
            send_everything_to(node, learner);
        }
        let updates: Vec<_> = learners
            .iter_mut()
            .map(|learner| update(learner, 2))
            .collect();
        let sent: Vec<&ParamSet> = updates
            .iter()
            .map(|update| update.shared.as_deref().unwrap())
            .collect();
        let usage: Vec<_> = sent.iter().map(|sent| values(sent, &["usage"])).collect();
        assert_eq!(
            usage,
            [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]],
            "{algorithm}"
        );
        let mean = combine(&spec, &updates).unwrap();
        for (node, own) in sent.iter().copied().enumerate() {
            let name = format!("experts.{node}.fc1.weight");
            let expert = |params: &ParamSet| values(params, &[name.as_str()]);
            assert_eq!(expert(&mean), expert(own), "{algorithm} expert {node}");
            assert_ne!(
                expert(&mean),
                expert(sent[1 - node]),
                "{algorithm}: the other node did not train it"
            );
        }
    }
}

/// Gives a node a gate that prefers one expert, whatever the sample.
fn send_everything_to(expert: usize, learner: &mut Learner) {
    let mut state = learner.state();
    let (_, bias) = state
        .iter_mut()
        .find(|(name, _)| *name == "gate.bias")
        .unwrap();
    bias.values_mut()[expert] = 100.0;
    learner.restore(&state).unwrap();
}

/// Of 128 samples the classifier gets 96 and the gate 32, in batches of 64.
#[test]
fn pfl_moe_fine_tunes_in_two_stages_and_survives_a_restart() {
    let hyper = |epochs: i64| HyperValue::Integer(epochs);
    let spec = spec(
        "pfl-mfe",
        &[("personal_epochs", hyper(3)), ("gate_epochs", hyper(2))],
    );
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
    assert_eq!(
        restored.state(),
        node.state(),
        "to finish once more is to finish"
    );
}

/// Where only something small is shared, the nodes' own models may differ: all that must be alike is what travels.
#[test]
fn nodes_of_different_models_learn_together() {
    const LAST: u32 = 8;
    let small = || HyperValue::Text("cnn-5".into());
    let table = [
        (
            "pfedmoe",
            vec![("profile", HyperValue::Text("heterogeneous".into()))],
        ),
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
        assert_ne!(
            learners[0].state().layout(),
            learners[1].state().layout(),
            "{algorithm}"
        );
        assert_eq!(
            learners[0].initial_shared(),
            learners[1].initial_shared(),
            "{algorithm}"
        );
        rounds(&spec(algorithm, &hyper), &mut learners, 1..=LAST);
        let (mut correct, mut majority, mut total) = (0, 0, 0);
        for learner in &learners {
            let evaluation = learner.evaluate(Subset::Test);
            correct += evaluation
                .classes
                .iter()
                .map(|class| class.correct)
                .sum::<u32>();
            majority += evaluation
                .classes
                .iter()
                .map(|class| class.total)
                .max()
                .unwrap();
            total += evaluation.score.n_samples;
        }
        assert!(
            correct > majority,
            "{algorithm}: {correct} of {total}, majority {majority}"
        );
    }
}
