//! Experts in 16 bits: everybody mixes its own ones as they are and those of others as they were sent.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::work::{self, Order, Update};
use fednode_core::{BlobId, ExpertId, NodeId, ParamSet, Precision, Round, Slot, Timestamp};
use fednode_engine::execute::Adoption;
use fednode_sim::{self as sim, Scenario, Toys, Trainers, Wrapped};

/// Toys whose updates and mixes are noted.
struct Noted {
    toys: Toys,
    seed: u64,
    /// The newest experts as they were trained.
    trained: BTreeMap<ExpertId, Arc<ParamSet>>,
    /// The same of all rounds, by the name under which they are sent.
    sent: BTreeMap<(ExpertId, BlobId), Arc<ParamSet>>,
    precision: Precision,
    n_mixed: usize,
    /// Largest difference between a mix and what it should be, and between it and one of full precision.
    errors: (f64, f64),
}

impl Noted {
    fn new(scenario: &Scenario) -> Self {
        Self {
            toys: Toys::new(scenario.seed, scenario.nodes + 1),
            seed: scenario.seed,
            trained: BTreeMap::new(),
            sent: BTreeMap::new(),
            precision: scenario.spec.transfer.precision,
            n_mixed: 0,
            errors: (0.0, 0.0),
        }
    }

    /// Mixes with plain sums; `as_sent` narrows the experts of others.
    fn mix(&self, me: NodeId, sources: &[(ExpertId, f64)], as_sent: bool) -> Vec<f64> {
        let mut mix = vec![0.0; 5];
        for (expert, weight) in sources {
            let params = ParamSet::clone(&self.trained[expert]);
            let params = if as_sent && expert.owner != me {
                params.narrowed(self.precision)
            } else {
                params
            };
            mix.iter_mut()
                .zip(params.values())
                .for_each(|(sum, value)| *sum += weight * f64::from(value));
        }
        mix
    }
}

impl Noted {
    /// Notes the experts of a local update, as they were trained and as they are sent.
    fn note(&mut self, member: usize, update: &Update) {
        for (slot, (params, _)) in (0..).map(Slot).zip(&update.experts) {
            let expert = ExpertId {
                owner: sim::node_id(self.seed, member),
                slot,
            };
            self.trained.insert(expert, Arc::clone(params));
            self.sent.insert(
                (expert, params.to_blob_as(self.precision).0.id),
                Arc::clone(params),
            );
        }
    }
}

fn distance(params: &ParamSet, expected: &[f64]) -> f64 {
    let differences = params
        .values()
        .zip(expected)
        .map(|(value, expected)| (f64::from(value) - expected).abs());
    differences.fold(0.0, f64::max)
}

impl Wrapped for Noted {
    fn inner(&mut self) -> &mut dyn Trainers {
        &mut self.toys
    }

    fn begin(&mut self, member: usize, order: Order, ends: Timestamp) {
        if let Order::AssemblePool(modules) = &order {
            for (_, params) in modules {
                assert_eq!(
                    ParamSet::clone(params).narrowed(self.precision),
                    **params,
                    "a module came as it was sent"
                );
            }
        }
        self.toys.begin(member, order, ends);
    }

    fn end(&mut self, member: usize) -> Result<work::Outcome, work::WorkError> {
        let outcome = self.toys.end(member)?;
        if let work::Outcome::Trained(update) = &outcome {
            self.note(member, update);
        }
        Ok(outcome)
    }

    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        let me = sim::node_id(self.seed, member);
        for (slot, params) in &adoption.experts {
            let (_, sources) = adoption.used.iter().find(|(used, _)| used == slot).unwrap();
            let (right, full) = (self.mix(me, sources, true), self.mix(me, sources, false));
            self.errors.0 = self.errors.0.max(distance(params, &right));
            self.errors.1 = self.errors.1.max(distance(params, &full));
            self.n_mixed += 1;
        }
        self.toys.adopt(member, round, adoption);
    }
}

fn play(precision: Precision) -> (Noted, sim::Outcome) {
    let mut scenario = Scenario::new(3, 5, 4);
    scenario.spec.transfer.precision = precision;
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    // Everybody is done with a round before the next begins, so every mix is of the newest experts.
    scenario.training = (scenario.training.0, scenario.training.0);
    let mut noted = Noted::new(&scenario);
    let outcome = sim::run_with(&scenario, &mut noted);
    assert!(
        outcome.unfinished().is_empty() && outcome.strikes.is_empty(),
        "{:?}",
        outcome.strikes
    );
    (noted, outcome)
}

#[test]
fn own_expert_is_mixed_wide_and_others_narrow() {
    for (precision, step) in [
        (Precision::F16, 2f64.powi(-12)),
        (Precision::Bf16, 2f64.powi(-9)),
    ] {
        let (noted, outcome) = play(precision);
        assert!(noted.n_mixed >= 5, "{}", noted.n_mixed);
        let (error, lost) = noted.errors;
        assert!(error < 1e-6, "{precision:?}: a mix is off by {error}");
        // Toy values are below 1.5, so rounding moves some of them by about half a step at 1.
        assert!(
            lost > step / 4.0 && lost < 4.0 * step,
            "{precision:?}: {lost} lost"
        );
        assert!(
            outcome
                .observed
                .used
                .iter()
                .all(|(_, _, expert, blob)| noted.sent.contains_key(&(*expert, *blob)))
        );
    }
}

#[test]
fn node_fetches_only_narrowed_experts() {
    let (noted, outcome) = play(Precision::F16);
    let fetched: BTreeSet<BlobId> = outcome
        .fetches
        .by_member
        .keys()
        .map(|(_, blob)| *blob)
        .collect();
    let sent = noted
        .sent
        .keys()
        .filter(|(_, blob)| fetched.contains(blob))
        .count();
    assert!(sent >= 5, "{sent}");
    let whole = |params: &Arc<ParamSet>| fetched.contains(&params.to_blob().0.id);
    assert!(
        !noted.sent.values().any(whole),
        "an expert went out in 32 bits"
    );
    assert!(
        outcome.fetches.by_member.values().all(|times| *times == 1),
        "nothing is fetched twice"
    );
}
