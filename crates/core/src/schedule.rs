//! The stages of a federation: what each round is, and what comes after the last one.
//!
//! ```text
//! round 1 ────────── … ── round T-1 ── round T ──────────► after the last round
//! train, or agree         train        train, or gather   pool, if wanted
//! on raw columns                       statistics
//! ```
//!
//! Where an organiser has added rounds ([`crate::spec::Extension`]), or a federation is endless, each earlier end gathered statistics,
//! too, and what came after it is over.
//!
//! Derived from the spec once. Whoever wants to know what is special about a round asks the schedule, and nobody else
//! compares round numbers.

use serde::{Deserialize, Serialize};

use crate::exchange::Refreshes;
use crate::masked::MAX_HOLDERS;
use crate::spec::Sums;
use crate::{Exchange, FederationSpec, Round, Weighting};

/// What a round is, or what comes after the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nodes train on their own samples and exchange what they learned.
    Train(Training),
    /// All nodes add up the columns of their raw tables instead of training, so that all make the same features of them.
    Prepare,
    /// All nodes add up statistics of their features instead of training. Experts stay as they are.
    GatherStatistics,
    /// Nodes exchange private modules and learn a mixture of them; a module is fine-tuned before, if that is wanted.
    Pool,
}

/// A round of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// Who is to train.
    pub trainees: Trainees,
    /// Whether proxies are published, from which the plans of the next rounds are made: `(t-1) mod I == 0`
    /// (FedMoE-DA, Algorithm 1).
    pub refreshes: bool,
}

/// Who trains in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trainees {
    /// All nodes, however few train in other rounds: something that is averaged stays for good.
    Everybody,
    /// The share that the spec names.
    Share,
}

/// The stages of a federation, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    last: Round,
    /// The end before the rounds that were added last; 0 if none were.
    since: Round,
    stages: Stages,
    /// Whether modules are pooled after the last round.
    pools: bool,
    /// Whether parts are averaged under masks, where nobody knows another's samples.
    masks: bool,
    /// The only round in which they are added up; nothing where each round has a mean.
    total: Option<Round>,
    /// How many members have a sum together at least, if that is not all of them.
    group: Option<u32>,
}

/// What tells the stages of rounds apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stages {
    prepares: bool,
    everybody_first: bool,
    refreshes: Option<Refreshes>,
    /// Whether statistics are gathered at each end.
    gathers: bool,
    ends: Ends,
}

/// The rounds after which there is an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ends {
    /// After these.
    After(Vec<Round>),
    /// After every so many-th, as long as the federation lives.
    Every(u32),
}

impl Ends {
    /// Takes from a spec those that are known.
    fn of(spec: &FederationSpec) -> Self {
        let before = spec.extensions().iter().map(|more| more.after);
        match spec.endless {
            true => Self::Every(spec.term()),
            false => Self::After(before.chain([Round(spec.rounds)]).collect()),
        }
    }

    /// Tells whether there is an end after a round.
    pub fn are_after(&self, round: Round) -> bool {
        match self {
            Self::After(rounds) => rounds.contains(&round),
            Self::Every(term) => round.0.is_multiple_of(*term),
        }
    }
}

impl Stages {
    fn of(spec: &FederationSpec) -> Self {
        Self {
            prepares: spec.exchange.prepares,
            everybody_first: spec.exchange.everybody_first,
            refreshes: spec.exchange.refreshes(),
            gathers: spec.statistics.enabled,
            ends: Ends::of(spec),
        }
    }

    /// Returns what a round is that takes place.
    fn round(&self, round: Round) -> Stage {
        if self.gathers && self.ends.are_after(round) {
            return Stage::GatherStatistics;
        }
        if self.prepares && round == Round(1) {
            return Stage::Prepare;
        }
        let trainees = if self.everybody_first && round == Round(1) {
            Trainees::Everybody
        } else {
            Trainees::Share
        };
        let refreshes = self.refreshes.is_some_and(|them| them.are_in(round));
        Stage::Train(Training {
            trainees,
            refreshes,
        })
    }
}

impl Schedule {
    /// Derives the stages from a spec.
    pub fn of(spec: &FederationSpec) -> Self {
        Self {
            last: Round(spec.rounds),
            since: spec.since(),
            stages: Stages::of(spec),
            pools: spec.pool.is_enabled(),
            masks: spec.privacy.sums == Sums::Masked,
            total: spec.exchange.total.map(|_| Round(spec.original().rounds)),
            group: spec.exchange.total.and_then(|total| total.group),
        }
    }

    /// Returns what a round is; `None` before the first and after the last.
    pub fn round(&self, round: Round) -> Option<Stage> {
        let takes_place = round > Round::ZERO && round <= self.last;
        takes_place.then(|| self.stages.round(round))
    }

    /// Returns what comes after a round; `None` if that is all.
    pub fn after(&self, round: Round) -> Option<Stage> {
        if round < self.last {
            return self.round(round.next());
        }
        self.pools.then_some(Stage::Pool)
    }

    /// Returns the rounds after which there is an end.
    pub fn ends(&self) -> &Ends {
        &self.stages.ends
    }

    /// Returns the last round before those that were added last; 0 if none were.
    pub fn since(&self) -> Round {
        self.since
    }

    /// Tells whether proxies are published in a round.
    pub fn refreshes_in(&self, round: Round) -> bool {
        matches!(self.round(round), Some(Stage::Train(training)) if training.refreshes)
    }

    /// Returns the newest round before this one in which proxies were published, if there is one. A round of statistics has none.
    pub fn refresh_before(&self, round: Round) -> Option<Round> {
        let refreshes = self.stages.refreshes?;
        let newest = refreshes.before(round)?;
        if self.gathers_statistics_in(newest) {
            refreshes.before(newest)
        } else {
            Some(newest)
        }
    }

    /// Tells whether nodes agree on the columns of their raw tables in a round, and nothing is trained.
    pub fn prepares_in(&self, round: Round) -> bool {
        self.round(round) == Some(Stage::Prepare)
    }

    /// Tells whether statistics are gathered in a round, and nothing is trained.
    pub fn gathers_statistics_in(&self, round: Round) -> bool {
        self.round(round) == Some(Stage::GatherStatistics)
    }

    /// Returns the round in which statistics are gathered next, if there is one: the last.
    pub fn statistics_round(&self) -> Option<Round> {
        self.gathers_statistics_in(self.last).then_some(self.last)
    }

    /// Tells whether a round needs every node, however few train in others.
    pub fn is_for_everybody(&self, round: Round) -> bool {
        match self.round(round) {
            Some(Stage::Train(training)) => training.trainees == Trainees::Everybody,
            Some(Stage::Prepare | Stage::GatherStatistics) => true,
            Some(Stage::Pool) | None => false,
        }
    }

    /// Tells whether parts are averaged under masks.
    pub fn masks(&self) -> bool {
        self.masks
    }

    /// Returns the only round in which parts are added up, if there is only one: the last of those that were agreed on at first.
    /// Whatever is added keeps its sum: the difference of two would tell of what has changed in between.
    pub fn total_round(&self) -> Option<Round> {
        self.total
    }

    /// Returns how many sums the mean of a round can have in it: of each group one, from the round on that makes them.
    pub fn most_sums(&self, round: Round) -> u64 {
        let are_there = self.total.is_some_and(|total| total <= round);
        let group = self.group.filter(|_| are_there);
        group.map_or(1, |group| MAX_HOLDERS as u64 / u64::from(group.max(1)))
    }

    /// Returns how parts of a round are weighted when they are averaged: as the algorithm wants it, but what is
    /// added up by samples, since it is divided by those.
    ///
    /// Under masks all parts count alike: a member's own weight is within its part ([`Self::own_weighting`]).
    pub fn weighting(&self, round: Round, exchange: &Exchange) -> Weighting {
        if self.masks {
            return Weighting::Uniform;
        }
        self.own_weighting(round, exchange)
    }

    /// Returns how a node weighs its own part, which under masks it does before it puts them on.
    pub fn own_weighting(&self, round: Round, exchange: &Exchange) -> Weighting {
        match &exchange.averaging {
            Some(_) if self.gathers_statistics_in(round) || self.prepares_in(round) => {
                Weighting::Samples
            }
            Some(averaging) => averaging.weighting,
            None => Weighting::Uniform,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Averaging, ExpertExchange, Matching, PeersPerExpert, Rule};

    fn spec() -> FederationSpec {
        let mut spec = FederationSpec {
            rounds: 7,
            ..FederationSpec::default()
        };
        spec.exchange.averaging = Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::named("mean"),
        });
        spec.exchange.experts = Some(ExpertExchange {
            peers_per_expert: PeersPerExpert::Count(2),
            refresh_every: 3,
            temperature: 1.0,
            weighting: Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching: Matching::named("similarity"),
            noise: None,
        });
        spec
    }

    fn rounds_in_which(schedule: &Schedule, is: impl Fn(&Schedule, Round) -> bool) -> Vec<u32> {
        let all = (0..=9).filter(|round| is(schedule, Round(*round)));
        all.collect()
    }

    #[test]
    fn proxies_are_published_every_refresh_round() {
        let mut spec = spec();
        let plain = Schedule::of(&spec);
        assert_eq!(rounds_in_which(&plain, Schedule::refreshes_in), [1, 4, 7]);
        spec.statistics.enabled = true;
        let gathering = Schedule::of(&spec);
        assert_eq!(rounds_in_which(&gathering, Schedule::refreshes_in), [1, 4]);
    }

    #[test]
    fn plans_come_from_the_newest_refresh_before_the_round() {
        // Algorithm 1 of FedMoE-DA by hand: I = 5, rounds 1 to 12.
        let mut exchange = spec().exchange;
        exchange.experts.as_mut().unwrap().refresh_every = 5;
        let before = |exchange: &crate::Exchange, round| {
            let found = exchange
                .refreshes()
                .and_then(|them| them.before(Round(round)));
            found.map_or(0, |round| round.0)
        };
        let all: Vec<u32> = (1..=12).map(|round| before(&exchange, round)).collect();
        assert_eq!(all, [0, 1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 11]);
        // A round of preparation moves all of them by one.
        exchange.prepares = true;
        let moved: Vec<u32> = (1..=13).map(|round| before(&exchange, round)).collect();
        assert_eq!(moved, [0, 0, 2, 2, 2, 2, 2, 7, 7, 7, 7, 7, 12]);
        exchange.experts.as_mut().unwrap().refresh_every = 1;
        assert_eq!(before(&exchange, 4), 3, "every plan is one round old");
    }

    #[test]
    fn plans_after_an_end_come_from_before_its_statistics() {
        let mut spec = spec();
        spec.exchange.experts.as_mut().unwrap().refresh_every = 1;
        (spec.rounds, spec.endless, spec.statistics.enabled) = (3, true, true);
        let later = spec.extended_by([], Round(3)).spec;
        let schedule = Schedule::of(&later);
        let before = [3, 4, 5].map(|round| schedule.refresh_before(Round(round)).unwrap().0);
        assert_eq!(before, [2, 2, 4], "round 3 adds up statistics");
    }

    #[test]
    fn what_is_added_up_once_is_added_up_at_the_first_end() {
        let mut spec = spec();
        (spec.rounds, spec.endless) = (3, true);
        spec.exchange.total = Some(crate::Total::of_groups(8, 4));
        for done in [0, 3, 7] {
            let schedule = Schedule::of(&spec.extended_by([], Round(done)).spec);
            assert_eq!(schedule.total_round(), Some(Round(3)));
            let sums = [2, 3, 4].map(|round| schedule.most_sums(Round(round)) > 1);
            assert_eq!(sums, [false, true, true], "its mean stays");
            let ends = rounds_in_which(&schedule, |of, round| of.ends().are_after(round));
            assert_eq!(ends, [0, 3, 6, 9]);
        }
    }

    #[test]
    fn the_first_round_prepares_raw_tables_with_everybody_weighted_by_samples() {
        let mut spec = spec();
        spec.exchange.prepares = true;
        let schedule = Schedule::of(&spec);
        assert_eq!(rounds_in_which(&schedule, Schedule::prepares_in), [1]);
        assert_eq!(rounds_in_which(&schedule, Schedule::is_for_everybody), [1]);
        assert_eq!(rounds_in_which(&schedule, Schedule::refreshes_in), [2, 5]);
        assert_eq!(
            schedule.weighting(Round(1), &spec.exchange),
            Weighting::Samples
        );
    }

    #[test]
    fn the_last_round_gathers_statistics_of_everybody_weighted_by_samples() {
        let mut spec = spec();
        (spec.statistics.enabled, spec.exchange.everybody_first) = (true, true);
        let schedule = Schedule::of(&spec);
        assert_eq!(
            rounds_in_which(&schedule, Schedule::gathers_statistics_in),
            [7]
        );
        assert_eq!(
            rounds_in_which(&schedule, Schedule::is_for_everybody),
            [1, 7],
            "and the first round is for everybody, too"
        );
        let by_samples = |schedule: &Schedule, round| {
            schedule.weighting(round, &spec.exchange) == Weighting::Samples
        };
        assert_eq!(rounds_in_which(&schedule, by_samples), [7]);
    }

    #[test]
    fn a_pool_comes_after_the_last_round_whatever_its_number() {
        let mut spec = spec();
        assert_eq!(Schedule::of(&spec).after(Round(7)), None);
        spec.pool.preset = Some(crate::spec::Preset::Fixed);
        let schedule = Schedule::of(&spec);
        assert!(matches!(schedule.after(Round(6)), Some(Stage::Train(_))));
        assert_eq!(schedule.after(Round(7)), Some(Stage::Pool));
        assert_eq!(schedule.after(Round(99)), Some(Stage::Pool));
        assert_eq!(schedule.round(Round(8)), None, "a pool is no round");
    }
}
