//! What an algorithm shares: the only thing the engine knows of it.
//!
//! The exchange is part of the spec, so that an aggregator without any tensor library can follow it. Every algorithm's
//! file states its own; a node refuses a spec whose exchange is not the one its algorithm needs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::TableDoc;
use crate::{HyperValue, Round};

/// How much a member's shared part counts in the average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weighting {
    /// Every member counts the same (FedMoE-DA Eq. 5).
    #[default]
    Uniform,
    /// A member counts by its number of training samples (FedAvg); an expert by the share of its owner's training
    /// samples that chose it, so that one which nobody chose is neither fetched nor mixed.
    Samples,
}

/// How shared parts become one: the name of a rule and its parameters.
///
/// Only `fednode-mix` knows what they mean (`fednode_mix::rule::TABLE`). In files and on the wire a rule without
/// parameters is its name (`"mean"`). A rule with parameters is a table of that name (`krum = { faulty = 2 }`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RuleForm", into = "RuleForm")]
pub struct Rule {
    name: String,
    params: RuleParams,
}

/// The parameters of a rule by their names.
pub type RuleParams = BTreeMap<ParamName, HyperValue>;

impl Rule {
    /// Returns the rule of a name without parameters.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            params: RuleParams::new(),
        }
    }

    /// Returns the rule with a parameter set.
    #[must_use]
    pub fn with(mut self, param: &str, value: HyperValue) -> Self {
        self.params.insert(ParamName(param.to_owned()), value);
        self
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Visits the parameters that are set.
    pub fn params(&self) -> impl Iterator<Item = (&str, &HyperValue)> {
        let pair = |(name, value): (_, _)| (ParamName::as_str(name), value);
        self.params.iter().map(pair)
    }
}

impl Default for Rule {
    /// Returns the weighted mean.
    fn default() -> Self {
        Self::named("mean")
    }
}

/// The name of a parameter of a rule.
///
/// A longer name comes first, and the alphabet decides between equals: federation ids depend on this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ParamName(String);

impl ParamName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for ParamName {
    fn cmp(&self, other: &Self) -> Ordering {
        let longer_first = other.0.len().cmp(&self.0.len());
        longer_first.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for ParamName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The two forms in which a rule is written.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum RuleForm {
    Plain(String),
    WithParams(BTreeMap<String, RuleParams>),
}

impl TryFrom<RuleForm> for Rule {
    type Error = &'static str;

    fn try_from(form: RuleForm) -> Result<Self, Self::Error> {
        match form {
            RuleForm::Plain(name) => Ok(Self::named(&name)),
            RuleForm::WithParams(table) if table.len() > 1 => Err("a rule has one name"),
            RuleForm::WithParams(table) => {
                let only = table.into_iter().next();
                only.map(|(name, params)| Self { name, params })
                    .ok_or("a rule has a name")
            }
        }
    }
}

impl From<Rule> for RuleForm {
    fn from(Rule { name, params }: Rule) -> Self {
        if params.is_empty() {
            Self::Plain(name)
        } else {
            Self::WithParams(BTreeMap::from([(name, params)]))
        }
    }
}

/// What is averaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Averaging {
    /// How members are weighted: `uniform` or `samples`.
    pub weighting: Weighting,
    /// How members are combined.
    pub rule: Rule,
}

/// How many foreign experts an own expert is mixed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PeersPerExpert {
    /// This many beside the own one (P).
    Count(u32),
    /// Every known expert.
    All(All),
}

/// The word `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum All {
    /// The word itself.
    All,
}

impl PeersPerExpert {
    /// Every known expert.
    pub const ALL: Self = Self::All(All::All);

    /// Returns the limit as a number.
    pub const fn limit(self) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::All(_) => usize::MAX,
        }
    }
}

/// A text is no number of peers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a number nor `all`")]
pub struct NoCount(String);

impl std::str::FromStr for PeersPerExpert {
    type Err = NoCount;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::ALL),
            _ => text
                .parse()
                .map(Self::Count)
                .map_err(|_| NoCount(text.to_owned())),
        }
    }
}

/// By what a node chooses and weights the experts that it mixes: the name of a matching.
///
/// Only `fednode-mix` knows what it means (`fednode_mix::matching::TABLE`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Matching(String);

impl Matching {
    /// Returns the matching of a name.
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Tells whether it is what a spec that does not name it has.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Matching {
    /// Returns the similarity of proxies.
    fn default() -> Self {
        Self::named("similarity")
    }
}

/// How experts go from peer to peer (FedMoE-DA Eq. 8 to 11).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertExchange {
    /// P: how many other experts an own expert is mixed with, or `all`; 0 mixes nothing.
    pub peers_per_expert: PeersPerExpert,
    /// I: rounds between two exchanges of proxies; plans are up to I rounds old.
    pub refresh_every: u32,
    /// Tau: the temperature of the softmax over similarities.
    pub temperature: f64,
    /// How sources are weighted beside their similarity: `uniform` as in the paper, or `samples`.
    pub weighting: Weighting,
    /// Most slots of one remote node in a row; absent as in the paper, 2 in profile `robust`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    /// Largest accepted distance from the own expert, as a multiple of the row's median; absent as in the paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_distance: Option<f64>,
    /// By what sources are chosen and weighted; absent for `similarity`.
    #[serde(default, skip_serializing_if = "Matching::is_default")]
    pub matching: Matching,
    /// The standard deviation of the noise in each number of a class sum, where statistics are published with noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
}

impl ExpertExchange {
    /// Returns an exchange in every round, of experts that count as the matching says and by nothing else.
    pub const fn by(matching: Matching, peers_per_expert: PeersPerExpert) -> Self {
        Self {
            peers_per_expert,
            refresh_every: 1,
            temperature: 1.0,
            weighting: Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching,
            noise: None,
        }
    }
}

/// What an algorithm shares.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exchange {
    /// The averaged part, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub averaging: Option<Averaging>,
    /// The experts that go peer to peer, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertExchange>,
    /// Whether everybody trains in round 1, however few train in others: something that is averaged there stays for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub everybody_first: bool,
    /// Whether nothing is trained in round 1: nodes agree on the means and deviations of their tables' columns then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prepares: bool,
    /// What is added up once, in the last round before the first end, if that is all that is shared. In other rounds all nodes publish
    /// what they started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Total>,
}

/// Parts that are added up once, under masks, and not averaged.
///
/// A second sum, of other members, would show what they differ in. So there is one in a federation, however it ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Total {
    /// Fewest members of all sums together. Masks stay on where there are fewer.
    pub fewest: u32,
    /// How many members a sum has at least; absent, all members are in one. A quarter of a group may be missing, and groups of which
    /// more are missing are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The standard deviation of the noise that each member adds to each number of a class sum on the sphere; absent without a promise.
    /// That of other numbers follows from it: they have other shares of a sample's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
}

impl Total {
    /// Returns the sum that this many nodes take part in. A quarter of them may be missing.
    pub const fn of(nodes: u32) -> Self {
        Self {
            fewest: nodes - nodes / 4,
            group: None,
            noise: None,
        }
    }

    /// Returns the sums of groups of so many of these nodes: more than half of all must be in them.
    pub const fn of_groups(nodes: u32, group: u32) -> Self {
        Self {
            fewest: if nodes < 5 { 3 } else { nodes / 2 + 1 },
            group: Some(group),
            noise: None,
        }
    }

    /// Returns the fewest members of one sum.
    pub fn fewest_of_one(&self) -> u32 {
        self.group
            .map_or(self.fewest, |group| Self::of(group).fewest)
    }

    /// Returns how many members' noise hides a row in a sum, of so many nodes. Whoever looks is a member, too, and knows its own share:
    /// of three it is two.
    pub fn hiding(&self, nodes: u32) -> u32 {
        let others = self.group.unwrap_or(nodes).saturating_sub(1);
        self.fewest_of_one().min(others.max(1))
    }

    /// Returns the noise of a sum that has no more members than it must have. So much is promised where missing members, and
    /// those that work together against the others, are a quarter of those in one sum at most.
    pub fn least_noise(&self, nodes: u32) -> Option<f64> {
        self.noise
            .map(|noise| noise * f64::from(self.hiding(nodes)).sqrt())
    }
}

/// The rounds in which proxies are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refreshes {
    first: Round,
    every: u32,
}

impl Refreshes {
    /// Tells whether a round is one of them.
    pub fn are_in(self, round: Round) -> bool {
        let since = round.0.checked_sub(self.first.0);
        since.is_some_and(|since| since.is_multiple_of(self.every))
    }

    /// Returns the newest of them before a round, if there is one.
    pub fn before(self, round: Round) -> Option<Round> {
        let since = round.0.checked_sub(self.first.0 + 1)?;
        Some(Round(since / self.every * self.every + self.first.0))
    }
}

impl Exchange {
    /// Returns the documentation of the table: a machine writes its keys, so none is documented.
    pub fn doc() -> TableDoc {
        TableDoc::default()
    }

    /// Returns the first round in which nodes train.
    fn first_training(&self) -> Round {
        Round(1 + u32::from(self.prepares))
    }

    /// Tells whether proxies are published in this round: `(t-1) mod I == 0`, counting rounds of training (FedMoE-DA,
    /// Algorithm 1).
    pub fn refreshes_in(&self, round: Round) -> bool {
        self.refreshes()
            .is_some_and(|refreshes| refreshes.are_in(round))
    }

    /// Returns in which rounds proxies are published, if they are.
    pub fn refreshes(&self) -> Option<Refreshes> {
        let every = self.refresh_every()?;
        let first = self.first_training();
        Some(Refreshes { first, every })
    }

    fn refresh_every(&self) -> Option<u32> {
        let experts = self.experts.as_ref()?;
        Some(experts.refresh_every.max(1))
    }
}
