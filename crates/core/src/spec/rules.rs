//! The range of every key.

use std::collections::BTreeSet;

use super::{
    BackboneSpec, DECLARED, FederationSpec, Fingerprints, OptimizerKind, PoolSpec, PrivacySpec,
    RoundSpec, Schedule, StatisticsSpec, Sums, Target, TrainingSpec, VERSION,
};
use crate::config::ConfigError;
use crate::limits::{FEWEST_MEMBERS, MOST_ROUNDS};
use crate::masked::MAX_HOLDERS;
use crate::{Exchange, HyperValue, MAX_EXPERTS, MAX_SLICES, Rule};

/// Whether a key is in its range, which key, and which range.
type Check = (bool, &'static str, &'static str);

impl FederationSpec {
    /// Checks every range.
    ///
    /// # Errors
    /// Names the first key out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut rules = general(self);
        rules.extend(facts(&self.fingerprints));
        rules.push(classes(self));
        if let Some(fault) = super::columns::fault_of(&self.data.columns) {
            return Err(ConfigError(format!(
                "`data.columns` cannot be used: {fault}"
            )));
        }
        if let Some(fault) = self.model.backbone.as_ref().and_then(BackboneSpec::fault) {
            return Err(ConfigError(format!(
                "`model.backbone` cannot be used: {fault}"
            )));
        }
        if let Some(fault) = self.data.target.as_ref().and_then(Target::fault) {
            return Err(ConfigError(format!(
                "`data.target` cannot be used: {fault}"
            )));
        }
        rules.extend(table(self));
        rules.extend(epochs_and_batches(&self.training, self));
        rules.extend(descent(&self.training, self.scheduled_rounds()));
        rules.extend(round(&self.round, self));
        rules.extend(statistics(&self.statistics));
        rules.extend(pool(&self.pool));
        rules.extend(privacy(&self.privacy));
        rules.extend(masked(self));
        rules.extend(exchange(&self.exchange));
        rules.extend(total(self));
        if self.endless {
            self.check_end()?;
        }
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, key, range)) => Err(ConfigError(format!(
                "`{key}` is out of range: it must be {range}"
            ))),
            None => Ok(()),
        }
    }
}

fn general(spec: &FederationSpec) -> Vec<Check> {
    let (model, data) = (&spec.model, &spec.data);
    vec![
        (
            spec.version == VERSION,
            "version",
            "2: a newer fednode reads newer versions",
        ),
        (
            !spec.name.is_empty() && spec.name.len() <= 100,
            "name",
            "1 to 100 characters",
        ),
        (
            !spec.endless || !spec.data.partition.contains("+drift:"),
            "endless",
            "false where data drift (`+drift:`): a drift has an end",
        ),
        (
            (1..=MOST_ROUNDS).contains(&spec.original().rounds)
                && (spec.endless || spec.rounds <= MOST_ROUNDS),
            "rounds",
            "1 to 100000",
        ),
        ((1..=100_000).contains(&spec.nodes), "nodes", "1 to 100000"),
        (
            model.layers.is_empty()
                || model.name.iter().any(|name| name == DECLARED)
                || spec.hyper.get("small_model") == Some(&HyperValue::Text(DECLARED.to_owned())),
            "model.layers",
            "empty unless `model.name` or `small_model` is `declared`",
        ),
        (
            (1..=MAX_EXPERTS).contains(&model.experts),
            "model.experts",
            "1 to 64",
        ),
        (
            (0.0..=0.5).contains(&data.validation_share),
            "data.validation_share",
            "0 to 0.5",
        ),
    ]
}

/// What `fednode init` takes from the data.
fn facts(known: &Fingerprints) -> Vec<Check> {
    vec![
        (
            known.input.iter().all(|n| (1..=4096).contains(n)),
            "fingerprints.input",
            "three numbers from 1 to 4096",
        ),
        (
            known.class_names.is_empty() || known.class_names.len() == known.classes,
            "fingerprints.class_names",
            "as many names as `fingerprints.classes` says, or none",
        ),
        (
            known.columns.is_empty() || are_distinct(&known.columns, known.input.iter().product()),
            "fingerprints.columns",
            "as many names as a sample has values (`fingerprints.input`), no two the same, or none",
        ),
        (
            known.vocabulary_size <= 1_000_000,
            "fingerprints.vocabulary_size",
            "0 to 1000000",
        ),
        (
            known.run.as_deref().is_none_or(is_run_id),
            "fingerprints.run",
            "1 to 64 letters and digits",
        ),
    ]
}

/// A model has an output for each class, or one for a number.
fn classes(spec: &FederationSpec) -> Check {
    let classes = spec.fingerprints.classes;
    let (holds, range) = match &spec.data.target {
        None => ((2..=100_000).contains(&classes), "2 to 100000"),
        Some(_) => (classes == 1, "1 where `data.target` is a number"),
    };
    (holds, "fingerprints.classes", range)
}

fn is_run_id(run: &str) -> bool {
    (1..=64).contains(&run.len()) && run.bytes().all(|letter| letter.is_ascii_alphanumeric())
}

/// What a raw table needs.
fn table(spec: &FederationSpec) -> Vec<Check> {
    let columns = &spec.data.columns;
    let is_raw = !columns.is_empty();
    vec![
        (
            !is_raw || spec.fingerprints.input == [1, 1, super::width_of(columns)],
            "fingerprints.input",
            "as many numbers as `data.columns` have features, as [1, 1, N]",
        ),
        (
            !is_raw || spec.fingerprints.columns.is_empty(),
            "fingerprints.columns",
            "empty where `data.columns` has the names",
        ),
        (
            !spec.exchange.prepares || spec.rounds >= 2,
            "rounds",
            "2 or more: in the first round of a raw table nodes agree on its means and deviations",
        ),
    ]
}

fn are_distinct(names: &[String], expected: usize) -> bool {
    names.len() == expected && names.iter().collect::<BTreeSet<_>>().len() == expected
}

/// What a local update goes through: epochs, batches, changed images.
fn epochs_and_batches(training: &TrainingSpec, spec: &FederationSpec) -> Vec<Check> {
    vec![
        (
            (1..=1000).contains(&training.local_epochs),
            "training.local_epochs",
            "1 to 1000",
        ),
        (
            training.ahead_epochs <= training.local_epochs,
            "training.ahead_epochs",
            "0 to `training.local_epochs`",
        ),
        (
            training.ahead_epochs == 0 || spec.round.participation >= 1.0,
            "training.ahead_epochs",
            "0 unless every node trains in every round (`round.participation`)",
        ),
        (
            (1..=65_536).contains(&training.batch_size),
            "training.batch_size",
            "1 to 65536",
        ),
        (
            training.augmentation.suits(&spec.fingerprints),
            "training.augmentation",
            "`none` unless inputs are images of 5×5 pixels or more",
        ),
    ]
}

/// How a batch changes the weights: the optimizer, and how its step size changes over the rounds.
fn descent(training: &TrainingSpec, rounds: u32) -> Vec<Check> {
    vec![
        (
            positive(training.learning_rate),
            "training.learning_rate",
            "a number above 0",
        ),
        (
            (0.0..1.0).contains(&training.momentum),
            "training.momentum",
            "0 to below 1",
        ),
        (
            training.momentum == 0.0 || training.optimizer == OptimizerKind::Sgd,
            "training.momentum",
            "0 unless `training.optimizer` is `sgd`: Adam has a momentum of its own",
        ),
        (
            is_in_range(training.schedule),
            "training.schedule",
            "`step:EVERY:FACTOR` with EVERY from 1 to 100000 and FACTOR above 0 to 1",
        ),
        (
            training.warmup_rounds < rounds,
            "training.warmup_rounds",
            "0 to below `rounds`",
        ),
        (
            (0.0..=1e6).contains(&training.weight_decay),
            "training.weight_decay",
            "0 to 1000000",
        ),
        (
            (0.0..=1e30).contains(&training.clip_norm),
            "training.clip_norm",
            "0 or above",
        ),
        (
            training.ahead_epochs == 0 || training.momentum == 0.0,
            "training.ahead_epochs",
            "0 with `training.momentum`, which remembers nothing beyond one stretch of training",
        ),
    ]
}

fn is_in_range(schedule: Schedule) -> bool {
    match schedule {
        Schedule::Constant | Schedule::Cosine => true,
        Schedule::Step { every, factor } => {
            (1..=100_000).contains(&every) && positive(factor) && factor <= 1.0
        }
    }
}

fn round(round: &RoundSpec, spec: &FederationSpec) -> Vec<Check> {
    vec![
        (
            share(round.participation),
            "round.participation",
            "above 0, at most 1",
        ),
        (
            round.participation >= 1.0 || !spec.is_cohort_by_chance() || chance_suffices(spec),
            "round.participation",
            "so large that of `nodes`, or of the `round.broadcast_set`, 10 train in a round",
        ),
        (share(round.quorum), "round.quorum", "above 0, at most 1"),
        (
            seconds(round.deadline_seconds),
            "round.deadline_seconds",
            "above 0, at most a week",
        ),
        (
            seconds(round.grace_seconds),
            "round.grace_seconds",
            "above 0, at most a week",
        ),
        (
            round.max_weight == 0.0 || round.max_weight >= 1.0,
            "round.max_weight",
            "0 or at least 1",
        ),
        ((0.0..=1.0).contains(&round.audit), "round.audit", "0 to 1"),
        (
            (64..=512).contains(&round.broadcast_set),
            "round.broadcast_set",
            "64 to 512",
        ),
        (
            (1..=MAX_SLICES).contains(&round.slices),
            "round.slices",
            "1 to 256",
        ),
        (
            round.slices == 1 || spec.privacy.sums != Sums::Masked,
            "round.slices",
            "1 where sums are masked, which are not divided",
        ),
    ]
}

/// Chance leaves fewer than [`FEWEST_MEMBERS`] in one round of thousands then.
fn chance_suffices(spec: &FederationSpec) -> bool {
    let (heard, round) = (spec.nodes.min(spec.round.broadcast_set), &spec.round);
    round.participation * f64::from(heard) + 1e-9 >= 4.0 + 3.0 * f64::from(FEWEST_MEMBERS)
}

fn statistics(statistics: &StatisticsSpec) -> Vec<Check> {
    vec![
        (
            statistics.dimensions <= 4096,
            "statistics.dimensions",
            "0 to 4096",
        ),
        (
            statistics.max_distance == 0.0 || (1.0..=1e30).contains(&statistics.max_distance),
            "statistics.max_distance",
            "0 or at least 1",
        ),
    ]
}

fn pool(pool: &PoolSpec) -> Vec<Check> {
    let has_no_stage = !pool.is_enabled();
    vec![
        (
            (1..=1000).contains(&pool.max_members),
            "pool.max_members",
            "1 to 1000",
        ),
        (
            pool.epochs
                .is_none_or(|epochs| (1..=10_000).contains(&epochs)),
            "pool.epochs",
            "1 to 10000",
        ),
        (
            !(has_no_stage && *pool != PoolSpec::default()),
            "pool.preset",
            "`fixed`, `paper`, `code` or `best` where another key of `pool` is set",
        ),
    ]
}

fn privacy(privacy: &PrivacySpec) -> Vec<Check> {
    vec![
        (
            privacy
                .epsilon
                .is_none_or(|epsilon| (0.05..=100.0).contains(&epsilon)),
            "privacy.epsilon",
            "0.05 to 100",
        ),
        (
            (1e-12..=0.01).contains(&privacy.delta),
            "privacy.delta",
            "1e-12 to 0.01",
        ),
        (
            privacy.epsilon.is_some() || privacy.delta == PrivacySpec::default().delta,
            "privacy.epsilon",
            "0.05 to 100 where `privacy.delta` is set",
        ),
    ]
}

/// Most nodes of a group. Of twice as many, which are the first to make two groups, all still share masks with each other.
const MAX_GROUP: u32 = 48;

/// What masked sums take.
fn masked(spec: &FederationSpec) -> Vec<Check> {
    let is_open = spec.privacy.sums == Sums::Open;
    let (round, averaging) = (&spec.round, spec.exchange.averaging.as_ref());
    let (most, group) = (MAX_HOLDERS as u32, spec.privacy.group);
    vec![
        (
            is_open || (3..=most).contains(&spec.nodes),
            "nodes",
            "3 to 255 where `privacy.sums` is `masked`; two nodes take `--privacy dp:EPSILON` or `--privacy open`",
        ),
        (
            is_open || round.participation >= 1.0,
            "round.participation",
            "1 where `privacy.sums` is `masked`: the members of one round make the masks of the next",
        ),
        (
            is_open || round.broadcast_set >= spec.nodes,
            "round.broadcast_set",
            "`nodes` or more where `privacy.sums` is `masked`",
        ),
        (
            is_open || averaging.is_none_or(|averaging| averaging.rule == Rule::default()),
            "privacy.sums",
            "`open` unless parts are averaged by the rule `mean`: under masks nobody can compare them",
        ),
        (
            is_open || !spec.statistics.enabled,
            "statistics.enabled",
            "`false` where `privacy.sums` is `masked`: each member's statistics are judged before they are added up",
        ),
        (
            is_open || !spec.exchange.prepares,
            "privacy.sums",
            "`open` for a raw table: its first round adds up columns before anybody has made masks",
        ),
        (
            is_open || spec.rounds >= 2,
            "rounds",
            "2 or more where `privacy.sums` is `masked`: in the first round nodes agree on masks",
        ),
        (
            group.is_none_or(|group| (3..=spec.nodes.min(MAX_GROUP)).contains(&group)),
            "privacy.group",
            "3 to 48, and `nodes` at most: of two nodes each would see the other's part",
        ),
        (
            group.is_none() || !is_open,
            "privacy.group",
            "absent unless `privacy.sums` is `masked`",
        ),
    ]
}

/// What a sum takes that there is once.
fn total(spec: &FederationSpec) -> Vec<Check> {
    let Some(total) = spec.exchange.total else {
        return Vec::new();
    };
    vec![
        (
            spec.privacy.sums == Sums::Masked,
            "privacy.sums",
            "`masked` where `exchange.total` is there",
        ),
        (
            (3..=spec.nodes).contains(&total.fewest),
            "exchange.total.fewest",
            "3 to `nodes`",
        ),
        (
            total.group == spec.privacy.group,
            "exchange.total.group",
            "that of `privacy.group`",
        ),
        (
            total.noise.is_none_or(positive),
            "exchange.total.noise",
            "a number above 0",
        ),
    ]
}

fn exchange(exchange: &Exchange) -> Vec<Check> {
    let experts = exchange.experts.as_ref();
    vec![
        (
            experts.is_none_or(|e| e.refresh_every >= 1),
            "exchange.experts.refresh_every",
            "at least 1",
        ),
        (
            experts.is_none_or(|e| positive(e.temperature)),
            "exchange.experts.temperature",
            "a number above 0",
        ),
    ]
}

fn share(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

fn positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn seconds(value: f64) -> bool {
    positive(value) && value <= 7.0 * 24.0 * 3600.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_out_of_range() {
        let error = FederationSpec::from_toml("[training]\nlearning_rate = nan").unwrap_err();
        assert_eq!(
            error.0,
            "`training.learning_rate` is out of range: it must be a number above 0"
        );
        let error = FederationSpec::from_toml("[training]\nbatchsize = 3").unwrap_err();
        assert_eq!(
            error.0,
            "line 2: unknown key `batchsize`: did you mean `batch_size`?"
        );
    }

    #[test]
    fn chance_must_leave_members_for_every_round() {
        let check = |text: &str| {
            FederationSpec::from_toml(text)
                .map(drop)
                .map_err(|error| error.0)
        };
        assert!(
            check("nodes = 257\n[round]\nparticipation = 0.01")
                .unwrap_err()
                .starts_with("`round.participation`")
        );
        assert_eq!(
            check("nodes = 257\n[round]\nparticipation = 0.05"),
            Ok(()),
            "12.8 of 256 are more than 10"
        );
        assert_eq!(
            check("nodes = 100\n[round]\nparticipation = 0.1"),
            Ok(()),
            "PFL-MoE's setting"
        );
        assert!(check("nodes = 100\n[round]\nparticipation = 0.09").is_err());
        assert_eq!(
            check("nodes = 64\n[round]\nparticipation = 0.01"),
            Ok(()),
            "everybody is known: two are drawn"
        );
    }

    #[test]
    fn the_share_that_trains_is_that_of_whole_nodes() {
        let share = |nodes, participation| {
            let mut spec = FederationSpec {
                nodes,
                ..FederationSpec::default()
            };
            spec.round.participation = participation;
            spec.trained_share()
        };
        assert_eq!(
            [
                share(10, 0.1),
                share(10, 0.25),
                share(100, 0.1),
                share(10, 1.0)
            ],
            [0.2, 0.3, 0.1, 1.0]
        );
        assert_eq!(share(1000, 0.1234), 0.1234, "chance decides for each");
    }
}
