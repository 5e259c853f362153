//! The seeded simulator: the state machines of the daemon in a virtual network and virtual time.
//!
//! A [`Scenario`] says how many nodes there are, what the links are like, who lies and what goes wrong when;
//! [`run`] plays it and returns an [`Outcome`]. Everything is drawn from the scenario's seed, so a failing run is
//! replayed by it. Signatures are not simulated: who can speak in whose name is settled before an advert reaches the
//! engine. Contents are: experts, means and proxies are real parameters, small ones from a [`Toy`] trainer, and they
//! go through the same screening and averaging as in the daemon.
//!
//! ```
//! let outcome = fednode_sim::run(&fednode_sim::Scenario::new(7, 3, 2));
//! assert!(outcome.unfinished().is_empty(), "three nodes finish two rounds");
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `scenario` | what is played |
//! | `trainers` | who trains the nodes: toys, or real learners from outside |
//! | `wrapped` | trainers around others, for whoever looks at what goes by |
//! | `toy` | a trainer of a few floats whose nodes fall into clusters |
//! | `network` | latency, loss, partitions, who is up |
//! | `world` | what happens next to whom, and the carrying out of what the machines ask for |
//! | `world/ground`, `world/members` | what all parts stand on: members, time, network |
//! | `world/gossip` | how adverts spread; updates that can wait |
//! | `world/blobs`, `world/transfers` | who holds which blob; how blobs travel |
//! | `world/computing`, `world/pools` | local updates, merges and means; the stage after the last round |
//! | `world/lies` | what liars say, by name and at random |
//! | `world/incidents`, `world/ending` | what goes wrong; when all is done, and what nobody can want any more |
//! | `attention` | whose updates a node must be given at once |
//! | `observer` | who watches the inputs and outputs of the machines |
//! | `queue` | what happens next |
//! | `history` | going on with a run that was interrupted |
//! | `outcome` | what came of it, and the omniscient comparison |

#![cfg_attr(test, allow(clippy::unwrap_used))]

use fednode_core::{BlobId, NodeId};

mod attention;
mod failure;
mod history;
mod network;
mod observer;
mod outcome;
mod queue;
mod scenario;
mod toy;
mod trainers;
mod world;
mod wrapped;

pub use failure::Failure;
pub use history::{Answer, Contents, Made, Moment, Past, Told};
pub use observer::{Nobody, Observer};
pub use outcome::{Agreement, Fetches, Observed, Outcome, PlanRecord};
pub use scenario::{Behaviour, Incident, Link, Scenario};
pub use toy::Toy;
pub use trainers::{Bytes, ClosedRound, Toys, Trainers};
pub use world::KEPT_ROUNDS;
pub use wrapped::Wrapped;

/// Plays a scenario with toys to its end: every honest node is done, or the time limit is reached.
pub fn run(scenario: &Scenario) -> Outcome {
    run_with(scenario, &mut Toys::new(scenario.seed, scenario.nodes + 1))
}

/// Returns the name of a simulated member.
pub fn node_id(seed: u64, member: usize) -> NodeId {
    let number = [seed.to_le_bytes(), (member as u64).to_le_bytes()].concat();
    NodeId::from_bytes(*BlobId::of(&number).as_bytes())
}

/// Plays a scenario with other models.
pub fn run_with(scenario: &Scenario, trainers: &mut dyn Trainers) -> Outcome {
    run_observed(scenario, trainers, &mut Nobody)
}

/// Plays a scenario with other models while somebody watches all inputs and outputs of the machines.
pub fn run_observed(
    scenario: &Scenario,
    trainers: &mut dyn Trainers,
    observer: &mut dyn Observer,
) -> Outcome {
    world::World::new(scenario, trainers, observer, None).play()
}

/// Goes on with a run that was interrupted: plays its past again and takes over from there. The trainers are those of the
/// last event of the past; they hear of nothing before.
pub fn go_on(scenario: &Scenario, trainers: &mut dyn Trainers, past: Past) -> Outcome {
    world::World::new(scenario, trainers, &mut Nobody, Some(past)).play()
}
