//! What is played: the federation, its links, its liars, and what goes wrong when.

use std::collections::BTreeMap;
use std::time::Duration;

use fednode_core::spec::RoundSpec;
use fednode_core::{
    Advert, Averaging, Exchange, ExpertExchange, FederationSpec, Matching, PeersPerExpert, Rule,
    Weighting,
};

/// How messages travel.
#[derive(Debug, Clone)]
pub struct Link {
    /// Shortest and longest delay of a message.
    pub latency: (Duration, Duration),
    /// Share of gossiped adverts that are lost and come only with a later sync (0 to 1).
    pub loss: f64,
    /// Bytes per second of a blob transfer.
    pub bandwidth: f64,
    /// How long until sync repairs a loss, at most.
    pub sync_every: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            latency: (Duration::from_millis(5), Duration::from_millis(60)),
            loss: 0.0,
            bandwidth: 10e6,
            sync_every: Duration::from_secs(2),
        }
    }
}

/// What a member does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Its experts hold NaN.
    NanExperts,
    /// Its experts are a thousand times too large.
    HugeExperts,
    /// Its shared part is a thousand times too large: that of an honest node with an unscaled table.
    HugePart,
    /// Its shared part is a thousand times too large, and its own closings count that part. Their mean is true and useless.
    Unscreened,
    /// Its shared part has another shape.
    ForeignShape,
    /// When it closes a round, the mean is not the members' mean.
    FalseMean,
    /// The blobs it serves are corrupt.
    CorruptServer,
    /// It accuses whoever closes a round.
    FalseAccuser,
    /// It closes each round as soon as one other update is out.
    EarlyCloser,
    /// It closes each round with a member of enormous weight whom nobody knows.
    Ghost,
    /// It closes the round before once more.
    Rollback,
    /// It says that it has four billion samples.
    Inflated,
    /// It says that it has twenty times as many samples as it has; into a total it puts them twenty times.
    Repeated,
    /// Its step from what it was given is a hundred times as long.
    LongStep,
    /// Its step goes the other way.
    StepBack,
    /// It says the proxies of another node for its own, and its experts are turned round.
    Copied,
    /// It tells half of the others another update under the same number.
    Equivocator,
    /// It publishes what it trains, but serves nothing.
    Withholder,
    /// It says its update again and again, each time with a part that nobody has.
    Restless,
    /// Its updates follow a closed round that there is not, so nobody can count them.
    Uncountable,
    /// Under masks it reveals another seed than it offered.
    FalseSeed,
    /// Under masks it gives away shares that are not of its secrets, and is silent when they are needed.
    FalseShares,
    /// Under masks its part weighs twenty times what it should.
    HeavyPart,
    /// Under masks it agrees to one set of survivors after the other.
    AgreesTwice,
    /// It says random things at random times.
    Random,
    /// It keeps its private module to itself, which is its right.
    KeptModule,
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incident {
    /// A member dies without a word.
    Kill(usize),
    /// It comes back from its last checkpoint.
    Restart(usize),
    /// A member that was not there before joins.
    Join(usize),
    /// A member says goodbye and goes.
    Leave(usize),
    /// The members of the list can only talk to each other, the others likewise.
    Partition(Vec<usize>),
    /// Everybody can talk to everybody again.
    Heal,
}

/// A federation to play. Members are numbered; the aggregator, if there is one, has the number `nodes`.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// The federation's spec.
    pub spec: FederationSpec,
    /// Training nodes.
    pub nodes: usize,
    /// Whether there is an aggregator.
    pub aggregator: bool,
    /// Nodes that each node is directly connected with (with up to 64 nodes: everybody).
    pub degree: usize,
    /// The links.
    pub link: Link,
    /// Shortest and longest time of a local update.
    pub training: (Duration, Duration),
    /// Nodes that take this many times as long.
    pub slow: BTreeMap<usize, u32>,
    /// Members that misbehave.
    pub behaviours: BTreeMap<usize, Behaviour>,
    /// Members that are not there at the start.
    pub absent: Vec<usize>,
    /// What happens when.
    pub incidents: Vec<(Duration, Incident)>,
    /// Largest proxies that travel inside their advert, in bytes; larger ones are blobs.
    pub inline_proxy_bytes: usize,
    /// What an advert weighs on the wire; nothing, unless somebody who knows the encoding says so.
    pub advert_bytes: fn(&Advert) -> u64,
    /// Whether to keep everything that an omniscient observer sees, in memory.
    pub observe: bool,
    /// Virtual time after which the run ends whatever its state.
    pub time_limit: Duration,
}

impl Scenario {
    /// A federation of `nodes` over `rounds` rounds of FedMoE-DA (P = 2, I = 2) in which nothing goes wrong.
    pub fn new(seed: u64, nodes: usize, rounds: u32) -> Self {
        let spec = FederationSpec {
            name: format!("simulated-{seed}"),
            rounds,
            nodes: nodes as u32,
            seed,
            exchange: Exchange {
                averaging: Some(Averaging {
                    weighting: Weighting::Uniform,
                    rule: Rule::default(),
                }),
                experts: Some(ExpertExchange {
                    peers_per_expert: PeersPerExpert::Count(2),
                    refresh_every: 2,
                    temperature: 1.0,
                    weighting: Weighting::Uniform,
                    slots_per_node: None,
                    max_distance: None,
                    matching: Matching::default(),
                    noise: None,
                }),
                everybody_first: false,
                prepares: false,
                total: None,
            },
            round: RoundSpec {
                deadline_seconds: 60.0,
                grace_seconds: 3.0,
                ..RoundSpec::default()
            },
            ..FederationSpec::default()
        };
        Self {
            seed,
            spec,
            nodes,
            aggregator: true,
            degree: 16,
            link: Link::default(),
            training: (Duration::from_secs(2), Duration::from_secs(5)),
            slow: BTreeMap::new(),
            behaviours: BTreeMap::new(),
            absent: Vec::new(),
            incidents: Vec::new(),
            inline_proxy_bytes: 0,
            advert_bytes: |_| 0,
            observe: true,
            time_limit: Duration::from_secs(3600),
        }
    }

    /// Lets something happen at a time.
    #[must_use]
    pub fn at(mut self, seconds: f64, incident: Incident) -> Self {
        self.incidents
            .push((Duration::from_secs_f64(seconds), incident));
        self
    }

    /// Lets a member misbehave.
    #[must_use]
    pub fn with(mut self, member: usize, behaviour: Behaviour) -> Self {
        self.behaviours.insert(member, behaviour);
        self
    }
}
