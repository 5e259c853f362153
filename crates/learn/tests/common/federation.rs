//! A federation of two nodes with the embedded digits and a real average between them.

use std::ops::ControlFlow;
use std::sync::Arc;

use fednode_core::spec::Extension;
use fednode_core::work::{PeerExpert, Update};
use fednode_core::{
    AggregationPlan, BlobId, ExpertId, FederationSpec, HyperValue, NodeId, ParamSet, PlanRow,
    Round, Slot, Source, Weighting,
};
use fednode_data::{DataSource, ShardParams, Split, load_shard};
use fednode_learn::{ComputeDevice, Learner, algorithm};
use fednode_mix::matching::{self, Gives};
use fednode_mix::statistics::robust;
use fednode_mix::{Part, average, merge_row, plan};

/// Hidden units of `mlp`, the width of its features.
pub const WIDTH: usize = 200;
/// Classes of the digits.
pub const CLASSES: usize = 10;

/// Returns a spec for the digits with the `mlp`.
pub fn spec(algorithm: &str, hyper: &[(&str, HyperValue)]) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        ..FederationSpec::default()
    };
    spec.model.name = "mlp".into();
    spec.fingerprints.input = [1, 8, 8];
    (
        spec.training.learning_rate,
        spec.training.batch_size,
        spec.training.local_epochs,
    ) = (0.1, 10, 1);
    spec.hyper.extend(
        hyper
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// Adds parts up as masks do, number by number.
pub fn total(parts: &[impl std::borrow::Borrow<ParamSet>]) -> ParamSet {
    let mut total = ParamSet::new();
    for (name, tensor) in parts[0].borrow().iter() {
        let sum = |at: usize| {
            let values = parts
                .iter()
                .map(|part| part.borrow().get(name).unwrap().values()[at]);
            values.map(f64::from).sum::<f64>() as f32
        };
        let sums = (0..tensor.values().len()).map(sum).collect();
        total.insert(name, tensor.shape(), sums).unwrap();
    }
    total
}

/// A number from -1 to 1 that looks like chance.
pub fn chance(row: u32, of: u32) -> f32 {
    let mixed = (row + 1).wrapping_mul(2_654_435_761) ^ of.wrapping_mul(40_503);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
    ((mixed ^ (mixed >> 13)) % 2001) as f32 / 1000.0 - 1.0
}

/// Lets nodes play to the last round, in which alone they publish something, and returns that.
pub fn parts_of_total(spec: &FederationSpec, nodes: &mut [Learner]) -> Vec<ParamSet> {
    assert_eq!(nodes.len(), spec.nodes as usize);
    let zeros = nodes[0].initial_shared().unwrap();
    let part = |node: &mut Learner| {
        for round in 1..spec.rounds {
            let update = update(node, round);
            assert!(update.shared.is_none(), "published in round {round}");
            assert!(update.experts.is_empty() && update.proxies.is_none());
            node.adopt(Some(&zeros), vec![]).unwrap();
        }
        let last = update(node, spec.rounds);
        assert!(last.experts.is_empty() && last.proxies.is_none());
        (*last.shared.unwrap()).clone()
    };
    nodes.iter_mut().map(part).collect()
}

/// Returns the spec with rounds added after its last.
pub fn extended(spec: &FederationSpec, rounds: u32) -> FederationSpec {
    let extension = Extension {
        federation: spec.id(),
        after: Round(spec.rounds),
        rounds,
        settings: std::collections::BTreeMap::new(),
    };
    spec.extended(&extension).unwrap()
}

/// Returns node `index` of two, which between them have 400 digits in skewed shares of the classes.
pub fn data(index: usize) -> Arc<Split> {
    data_of(index, 200)
}

/// As [`data`], with so many digits a node.
pub fn data_of(index: usize, samples_per_node: usize) -> Arc<Split> {
    let params = ShardParams {
        nodes: 2,
        seed: 1,
        samples_per_node,
        validation_share: 0.1,
    };
    let digits: DataSource = "digits".parse().unwrap();
    Arc::new(
        load_shard(&digits, "dirichlet:0.5", &params, index)
            .unwrap()
            .split,
    )
}

/// Makes node `index`.
pub fn learner(spec: &FederationSpec, index: usize) -> Learner {
    Learner::new(
        spec,
        index as u64,
        data(index),
        &ComputeDevice::cpu(1).unwrap(),
    )
    .unwrap()
}

/// Trains a round.
pub fn update(learner: &mut Learner, round: u32) -> Update {
    learner
        .local_update(Round(round), &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

/// Does what follows the last round; returns the steps.
pub fn finish(learner: &mut Learner, round: u32) -> u32 {
    learner
        .finish(Round(round), &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

/// Combines shared parts of a round before the last as the algorithm's exchange says.
pub fn combine(spec: &FederationSpec, updates: &[Update]) -> Option<ParamSet> {
    combine_in(Round(1), spec, updates)
}

/// Combines shared parts of a round as the algorithm's exchange says.
pub fn combine_in(round: Round, spec: &FederationSpec, updates: &[Update]) -> Option<ParamSet> {
    let averaging = spec.exchange.averaging.as_ref()?;
    let member = |update: &Update| {
        let weight = match fednode_core::Schedule::of(spec).weighting(round, &spec.exchange) {
            Weighting::Samples => f64::from(update.n_samples),
            Weighting::Uniform => 1.0,
        };
        Part {
            weight,
            params: update.shared.clone().unwrap(),
        }
    };
    let mut members = updates.iter().map(member);
    if fednode_core::Schedule::of(spec).gathers_statistics_in(round) {
        let limits = robust::Limits {
            distance: spec.statistics.max_distance,
            weight: spec.round.max_weight,
        };
        return Some(robust::combine(&mut members, limits).unwrap().0);
    }
    let members: Vec<Part> = members.collect();
    Some(average(&averaging.rule, &members).unwrap())
}

/// Mixes one node's experts with all others' as the algorithm's exchange says, by the proxies of the same round.
pub fn mix(spec: &FederationSpec, updates: &[Update], own: usize) -> Vec<(Slot, ParamSet)> {
    let Some(plan) = planned(spec, updates, own, Gives::Mixture) else {
        return Vec::new();
    };
    let mut available = |id: ExpertId| Some(expert(updates, id));
    let mixed = |row: &PlanRow| {
        (
            row.slot,
            ParamSet::clone(&merge_row(row, &mut available).unwrap().params),
        )
    };
    plan.rows.iter().map(mixed).collect()
}

/// Returns the experts of others that the algorithm of one node judges itself.
pub fn peers(spec: &FederationSpec, updates: &[Update], own: usize) -> Vec<PeerExpert> {
    let plan = planned(spec, updates, own, Gives::Each);
    let rows = plan.into_iter().flat_map(|plan| plan.rows);
    let peer = |source: Source| PeerExpert {
        expert: source.expert,
        weight: source.weight,
        params: expert(updates, source.expert),
    };
    rows.flat_map(|row| row.sources.into_iter().skip(1))
        .map(peer)
        .collect()
}

fn expert(updates: &[Update], id: ExpertId) -> Arc<ParamSet> {
    let update = &updates[usize::from(id.owner.as_bytes()[0])];
    Arc::clone(&update.experts[usize::from(id.slot.0)].0)
}

/// Plans an exchange of experts by the proxies of the same round, if the algorithm's exchange gives this of them.
fn planned(
    spec: &FederationSpec,
    updates: &[Update],
    own: usize,
    wanted: Gives,
) -> Option<AggregationPlan> {
    let exchange = spec.exchange.experts.as_ref()?;
    if matching::gives(exchange) != wanted {
        return None;
    }
    let node = |index: usize| NodeId::from_bytes([index as u8; 32]);
    let known = updates.iter().enumerate();
    let known = known
        .map(|(index, update)| (node(index), Arc::new(update.proxies.clone().unwrap())))
        .collect();
    Some(plan(node(own), Round(1), BlobId::of(b""), &known, exchange))
}

/// Runs whole rounds: train, average, mix, adopt.
pub fn rounds(
    spec: &FederationSpec,
    learners: &mut [Learner],
    rounds: std::ops::RangeInclusive<u32>,
) {
    for round in rounds {
        let updates: Vec<_> = learners
            .iter_mut()
            .map(|learner| update(learner, round))
            .collect();
        let mean = combine_in(Round(round), spec, &updates);
        for (own, learner) in learners.iter_mut().enumerate() {
            learner
                .adopt(mean.clone(), mix(spec, &updates, own))
                .unwrap();
            learner.adopt_peers(&peers(spec, &updates, own)).unwrap();
        }
    }
}

/// Returns the values of the parameters whose names are given.
pub fn values(state: &ParamSet, names: &[&str]) -> Vec<f32> {
    names
        .iter()
        .flat_map(|name| state.get(name).unwrap().values().to_vec())
        .collect()
}
