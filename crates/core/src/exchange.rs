//! What an algorithm shares: the only thing the engine knows of it.
//!
//! The exchange is part of the spec, so that an aggregator without any tensor library can follow it. Every algorithm's
//! file states its own; a node refuses a spec whose exchange is not the one its algorithm needs.

use serde::{Deserialize, Serialize};

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

/// How whoever averages learns, under a rule that learns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learning {
    /// Step size.
    pub learning_rate: f64,
    /// Examples of a step.
    pub batch_size: u32,
    /// Passes over the prototypes, or batches that the generator makes.
    pub iterations: u32,
}

impl Learning {
    /// The most examples of a step, and the most iterations.
    pub const MAX: u32 = 65_536;

    /// Tells whether somebody can learn so.
    pub fn is_possible(self) -> bool {
        let is_step = self.learning_rate.is_finite() && self.learning_rate > 0.0;
        is_step && (1..=Self::MAX).contains(&self.batch_size) && self.iterations <= Self::MAX
    }
}

/// How shared parts become one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The weighted mean.
    Mean,
    /// The coordinate-wise median; weights are ignored.
    Median,
    /// The coordinate-wise mean without the largest and smallest tenth; weights are ignored.
    TrimmedMean,
    /// A head is learned from the class prototypes that come with it (FedGH); weights are ignored.
    Prototypes(Learning),
    /// The weighted mean, each expert over the members that used it, by how much they did (FedMix, FedJETs).
    Usage,
    /// The weighted mean, and a generator is learned from the members' heads (FedGen).
    Generator(Learning),
}

impl Rule {
    /// Returns how it learns, if it does.
    pub const fn learning(self) -> Option<Learning> {
        match self {
            Self::Prototypes(learning) | Self::Generator(learning) => Some(learning),
            Self::Mean | Self::Median | Self::TrimmedMean | Self::Usage => None,
        }
    }

    /// Returns the name used in files, on the wire and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Median => "median",
            Self::TrimmedMean => "trimmed-mean",
            Self::Prototypes(_) => "prototypes",
            Self::Usage => "usage",
            Self::Generator(_) => "generator",
        }
    }
}

/// What is averaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Averaging {
    /// How members are weighted: `uniform` or `samples`.
    pub weighting: Weighting,
    /// How members are combined: `mean`, `median`, `trimmed-mean` or `usage`, or one of `prototypes` and `generator` with
    /// how it learns.
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

impl std::str::FromStr for PeersPerExpert {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::ALL),
            _ => text
                .parse()
                .map(Self::Count)
                .map_err(|_| format!("`{text}` is neither a number nor `all`")),
        }
    }
}

/// By what a node chooses and weights the experts that it mixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Matching {
    /// The similarity of proxies (FedMoE-DA Eq. 8 to 10).
    #[default]
    Similarity,
    /// A quadratic programme over statistics of the features, which travel as the proxies (FedPAC); there is no
    /// temperature then.
    Statistics,
}

impl Matching {
    /// Tells whether it is what a spec that does not name it has.
    fn is_default(&self) -> bool {
        *self == Self::default()
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
    /// By what sources are chosen and weighted: absent for `similarity`, or `statistics`.
    #[serde(default, skip_serializing_if = "Matching::is_default")]
    pub matching: Matching,
}

/// What an algorithm shares.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}

impl Exchange {
    /// Tells whether proxies are published in this round: `(t-1) mod I == 0` (`moe-systems` §1.3).
    pub fn refreshes_in(&self, round: crate::Round) -> bool {
        let every = self
            .experts
            .as_ref()
            .map(|experts| experts.refresh_every.max(1));
        every.is_some_and(|every| round.0 > 0 && (round.0 - 1).is_multiple_of(every))
    }
}
