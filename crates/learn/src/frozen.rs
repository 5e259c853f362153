//! Constants of a stage: what its frozen parts make of each sample, computed once.
//!
//! ```text
//! first epoch     samples ─► frozen parts ─► features ─► step          kept by sample
//! later epochs                  kept features ─────────► step
//! ```
//!
//! Where only parts behind frozen ones learn (FedRep's head, FedBABU's tuning of the head, both stages of PFL-MoE), no epoch
//! but the first passes through what is frozen, unless images are augmented. They are kept
//! as far as the [`CacheBudget`] allows, exactly as they were: what is learned is the same to the last bit. What has no room is computed again in every epoch.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use fednode_data::Samples;

use crate::algorithm::{Algorithm, Stage};
use crate::augment::Augmenter;
use crate::batch::{self, Batch};
use crate::feature_cache::{CacheBudget, FeatureCache};
use crate::resident::{Ordered, Resident};

/// The samples of a stage on their way to its steps.
pub(crate) struct Source<'a> {
    samples: &'a Samples,
    classes: usize,
    device: &'a Device,
    stage: Stage,
    augmenter: Option<Augmenter>,
    budget: &'a CacheBudget,
    kept: Option<Kept>,
    /// The same samples on the device, if they are there.
    resident: Option<&'a Resident>,
    /// They in the order of the epoch.
    ordered: Option<Ordered<'a>>,
    /// How many samples of the epoch were handed out.
    done: usize,
}

/// Features by sample; none until their width is known.
struct Kept {
    rows: Option<FeatureCache>,
    is_known: Vec<bool>,
}

impl<'a> Source<'a> {
    /// Makes the source of a stage of so many epochs. Constants are kept only if there is a second one.
    pub(crate) fn new(
        samples: &'a Samples,
        classes: usize,
        device: &'a Device,
        budget: &'a CacheBudget,
        (stage, epochs): (Stage, u32),
    ) -> Self {
        let kept = (epochs > 1).then(|| Kept {
            rows: None,
            is_known: vec![false; samples.len()],
        });
        Self {
            samples,
            classes,
            device,
            stage,
            augmenter: None,
            budget,
            kept,
            resident: None,
            ordered: None,
            done: 0,
        }
    }

    /// Takes the samples from where they were uploaded before.
    pub(crate) fn resident(self, resident: Option<&'a Resident>) -> Self {
        Self { resident, ..self }
    }

    /// Begins an epoch; images that are changed are other ones in every epoch, so that nothing of them is constant.
    pub(crate) fn begin_epoch(&mut self, order: &[u32], augmenter: Option<Augmenter>) {
        if augmenter.is_some() {
            self.kept = None;
        }
        let resident = self.resident.filter(|_| augmenter.is_none());
        self.ordered = resident.map(|samples| samples.in_order(order));
        self.done = 0;
        self.augmenter = augmenter;
    }

    /// Returns how many samples there are.
    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns what a step takes of the samples at these positions, which are the next ones of the epoch's order.
    pub(crate) fn batch(&mut self, algorithm: &dyn Algorithm, positions: &[u32]) -> Batch {
        let places = self.done..self.done + positions.len();
        self.done = places.end;
        if let Some(inputs) = self
            .kept
            .as_ref()
            .and_then(|kept| kept.gather(positions, self.device))
        {
            let targets = batch::targets(self.samples, positions, self.classes, self.device);
            return Batch { inputs, targets };
        }
        let batch = self.gather(positions, places);
        let Some(features) = algorithm.frozen(self.stage, batch.inputs.clone()) else {
            self.kept = None;
            return batch;
        };
        // What cannot be kept is computed again.
        self.kept = self
            .kept
            .take()
            .and_then(|kept| kept.keep(positions, &features, self.budget));
        Batch {
            inputs: features,
            ..batch
        }
    }

    /// Returns the samples as they are, or as the augmenter changes them.
    fn gather(&mut self, positions: &[u32], places: Range<usize>) -> Batch {
        let Self {
            samples,
            classes,
            device,
            ..
        } = *self;
        match (&self.ordered, &mut self.augmenter) {
            (Some(ordered), _) => ordered.batch(places),
            (None, Some(augmenter)) => {
                Batch::gather_changed(samples, positions, classes, device, augmenter)
            }
            (None, None) => Batch::gather(samples, positions, classes, device),
        }
    }
}

impl Kept {
    /// Keeps features; nothing is left if there is no room for those of all samples.
    fn keep(
        mut self,
        positions: &[u32],
        features: &Tensor<2>,
        budget: &CacheBudget,
    ) -> Option<Self> {
        let (samples, width) = (self.is_known.len(), features.dims()[1]);
        let rows = match &mut self.rows {
            Some(rows) => rows,
            rows => rows.insert(FeatureCache::new(
                &budget.space(samples * width, true)?,
                samples,
            )),
        };
        rows.put(positions, features).ok()?;
        positions
            .iter()
            .for_each(|at| self.is_known[*at as usize] = true);
        Some(self)
    }

    /// Returns what was kept of the samples at these positions, if it was, of all of them, and comes back.
    fn gather(&self, positions: &[u32], device: &Device) -> Option<Tensor<2>> {
        let is_known = positions.iter().all(|at| self.is_known[*at as usize]);
        self.rows
            .as_ref()
            .filter(|_| is_known)?
            .tensor(positions, device)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use fednode_core::spec::TrainingSpec;
    use fednode_core::{Augmentation, FederationSpec, Round};
    use fednode_data::Pixels;
    use fednode_onnx::{Graph, Value};

    use super::*;
    use crate::algorithm::testing::numbers;
    use crate::algorithm::{self, Output, Part, RoundContext, Selection, Step, StepContext};
    use crate::optimizer::StepRule;
    use crate::train::{Epochs, Schedule, finish, train};
    use crate::weights;

    /// Takes its samples as they are and passes all of them through what is frozen, every time.
    struct Forgetful(Box<dyn Algorithm>);
    /// Counts how often that is asked for.
    struct Counting(Box<dyn Algorithm>, AtomicU32);

    macro_rules! behaves_as_the_inner {
        () => {
            fn parts(&self) -> &[Part] {
                self.0.parts()
            }
            fn parts_mut(&mut self) -> &mut [Part] {
                self.0.parts_mut()
            }
            fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
                self.0.passes(ctx)
            }
            fn step_rule(&self, stage: Stage) -> StepRule {
                self.0.step_rule(stage)
            }
            fn selection(&self, stage: Stage) -> Selection {
                self.0.selection(stage)
            }
            fn fine_tuning_passes(&self) -> Vec<u32> {
                self.0.fine_tuning_passes()
            }
            fn begin_fine_tuning(&mut self, pass: usize, ctx: &RoundContext<'_>) {
                self.0.begin_fine_tuning(pass, ctx);
            }
            fn forward(&self, inputs: Tensor<2>) -> Output {
                self.0.forward(inputs)
            }
            fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
                self.0.emit(graph, inputs)
            }
        };
    }

    impl Algorithm for Forgetful {
        behaves_as_the_inner!();
        fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
            let inputs = self.0.frozen(stage, batch.inputs.clone());
            let inputs = inputs.unwrap_or(batch.inputs);
            self.0.step(stage, Batch { inputs, ..batch }, ctx)
        }
    }

    impl Algorithm for Counting {
        behaves_as_the_inner!();
        fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
            let frozen = self.0.frozen(stage, inputs)?;
            self.1.fetch_add(1, Ordering::Relaxed);
            Some(frozen)
        }
        fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
            self.0.step(stage, batch, ctx)
        }
    }

    fn samples() -> Samples {
        let names: Arc<[String]> = ["a", "b"].map(String::from).into();
        let values = (0..4 * 23)
            .map(|at| ((at * 37) % 101) as f32 / 101.0)
            .collect();
        Samples::new(
            [1, 2, 2],
            Pixels::Floats(values),
            (0..23).map(|at| at % 2).collect(),
            names,
        )
        .unwrap()
    }

    /// Builds an algorithm on a small `mlp` for two classes.
    fn build(name: &str, hyper: &[(&str, &str)]) -> Box<dyn Algorithm> {
        let mut spec = FederationSpec {
            algorithm: name.into(),
            ..FederationSpec::default()
        };
        (spec.model.name, spec.model.experts) = ("mlp".into(), 1);
        (spec.fingerprints.input, spec.fingerprints.classes) = ([1, 2, 2], 2);
        spec.hyper = hyper
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.parse().unwrap()))
            .collect();
        algorithm::build(&spec, &Device::flex()).unwrap()
    }

    fn learn(algorithm: &mut dyn Algorithm) -> Vec<f32> {
        learn_from(Augmentation::None, algorithm)
    }

    fn learn_from(augmentation: Augmentation, algorithm: &mut dyn Algorithm) -> Vec<f32> {
        learn_in(&CacheBudget::default(), augmentation, algorithm)
    }

    fn learn_in(
        budget: &CacheBudget,
        augmentation: Augmentation,
        algorithm: &mut dyn Algorithm,
    ) -> Vec<f32> {
        let training = &TrainingSpec {
            batch_size: 4,
            learning_rate: 0.1,
            augmentation,
            ..TrainingSpec::default()
        };
        let ctx = RoundContext {
            round: Round(1),
            rounds: 9,
            training,
            class_counts: &[12, 11],
            seed: 1,
            node_seed: 2,
        };
        let schedule = Schedule {
            ctx,
            epochs: Epochs::All,
            budget,
            resident: None,
            draws: None,
        };
        let (samples, device, mut watch) =
            (samples(), Device::flex(), |_| ControlFlow::Continue(()));
        train(algorithm, &samples, schedule, &device, &mut watch).unwrap();
        finish(algorithm, &samples, schedule, &device, &mut watch).unwrap();
        numbers(algorithm, "")
    }

    /// Algorithm, hyper-parameters, batches of the first epochs of its stages with constants: 23 samples in batches of 4; of
    /// PFL-MoE 18 for the classifier and 5 for the gate, in batches of 3.
    type Case = (&'static str, &'static [(&'static str, &'static str)], u32);
    const CASES: [Case; 5] = [
        ("fedrep", &[("head_epochs", "3")], 6),
        (
            "fedbabu",
            &[("fine_tuning", "head"), ("fine_tuning_epochs", "3")],
            6,
        ),
        (
            "pfl-fb",
            &[("personal_epochs", "4"), ("finishing_batch_size", "3")],
            6,
        ),
        (
            "pfl-mf",
            &[
                ("personal_epochs", "4"),
                ("gate_epochs", "5"),
                ("finishing_batch_size", "3"),
            ],
            6 + 2,
        ),
        (
            "pfl-mfe",
            &[
                ("personal_epochs", "4"),
                ("gate_epochs", "5"),
                ("finishing_batch_size", "3"),
            ],
            6 + 2,
        ),
    ];

    #[test]
    fn kept_constants_teach_what_recomputed_ones_do() {
        for (name, hyper, _) in CASES {
            let (start, kept) = (
                numbers(build(name, hyper).as_ref(), ""),
                learn(build(name, hyper).as_mut()),
            );
            assert_eq!(kept, learn(&mut Forgetful(build(name, hyper))), "{name}");
            assert_ne!(kept, start, "{name}");
        }
    }

    #[test]
    fn frozen_part_sees_every_sample_once() {
        for (name, hyper, batches) in CASES {
            let mut counting = Counting(build(name, hyper), AtomicU32::new(0));
            learn(&mut counting);
            assert_eq!(counting.1.into_inner(), batches, "{name}");
        }
    }

    #[test]
    fn features_beyond_memory_lie_in_a_file_or_are_computed_again() {
        let (name, hyper, batches) = CASES[0];
        let expected = learn(build(name, hyper).as_mut());
        let folder = tempfile::tempdir().unwrap();
        let on_disk = CacheBudget {
            memory_bytes: 100,
            folder: Some(folder.path().to_owned()),
            disk_bytes: 1 << 20,
        };
        let rooms = [
            (on_disk.in_memory(), 3 * batches),
            (
                CacheBudget {
                    disk_bytes: 100,
                    ..on_disk.clone()
                },
                3 * batches,
            ),
        ];
        for (budget, computed) in rooms.into_iter().chain([(on_disk, batches)]) {
            let mut counting = Counting(build(name, hyper), AtomicU32::new(0));
            assert_eq!(
                learn_in(&budget, Augmentation::None, &mut counting),
                expected,
                "{budget:?}"
            );
            assert_eq!(counting.1.into_inner(), computed, "{budget:?}");
        }
        assert_eq!(
            folder.path().read_dir().unwrap().count(),
            0,
            "the file has no name"
        );
    }

    #[test]
    fn augmentation_differs_by_epoch_and_repeats_by_round() {
        let (name, hyper, batches) = CASES[0];
        let mut counting = Counting(build(name, hyper), AtomicU32::new(0));
        let flipped = learn_from(Augmentation::Flip, &mut counting);
        assert_eq!(
            counting.1.into_inner(),
            3 * batches,
            "three epochs of the head"
        );
        assert_eq!(
            flipped,
            learn_from(Augmentation::Flip, build(name, hyper).as_mut())
        );
        assert_ne!(flipped, learn(build(name, hyper).as_mut()));
    }

    #[test]
    fn samples_on_the_device_are_those_of_the_order_also_behind_kept_ones() {
        let (samples, device) = (samples(), Device::flex());
        let (algorithm, budget) = (build("fedrep", &[]), CacheBudget::default());
        let uploaded = Resident::whole(&samples, 2, &device);
        let play = |resident| {
            let mut source = Source::new(&samples, 2, &device, &budget, (Stage::Pass(0), 2));
            source = source.resident(resident);
            let mut batches = Vec::new();
            // The second epoch begins with what the first one has kept.
            for order in [&[5, 9, 3][..], &[9, 5, 3, 7, 1, 2]] {
                source.begin_epoch(order, None);
                for positions in order.chunks(2) {
                    let Batch { inputs, targets } = source.batch(algorithm.as_ref(), positions);
                    batches.push([weights::values(&inputs), weights::values(&targets)]);
                }
            }
            batches
        };
        assert_eq!(play(Some(&uploaded)), play(None));
    }

    #[test]
    fn one_epoch_keeps_nothing() {
        let (samples, device) = (samples(), Device::flex());
        let algorithm = build("fedrep", &[]);
        let budget = CacheBudget::default();
        let mut source = Source::new(&samples, 2, &device, &budget, (Stage::Pass(0), 1));
        source.batch(algorithm.as_ref(), &[0, 1]);
        assert!(source.kept.is_none());
        let mut whole = Source::new(&samples, 2, &device, &budget, (Stage::Pass(1), 2));
        assert_eq!(
            whole.batch(algorithm.as_ref(), &[0]).inputs.dims(),
            [1, 4],
            "the base learns: nothing is frozen"
        );
        assert!(whole.kept.is_none());
    }
}
