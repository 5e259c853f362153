//! What came of a run, put together from what its nodes keep.

use std::sync::Arc;

use fednode_cli::everyone::EveryonesTest;
use fednode_cli::failure::{OrFail, no_learner};
use fednode_cli::initial;
use fednode_learn::{Learner, own_model};
use fednode_runtime::exit::ExitCode;
use fednode_sim as sim;

use super::{Means, Played, Prepared};
use crate::control::{self, Compared, Worth};
use crate::simulate::play::Play;
use crate::swarm::collect::{self, Observed};
use crate::swarm::summary::Summary;

/// What came of a run: the result, and the records of all nodes.
pub(super) struct Finished {
    pub(super) summary: Summary,
    pub(super) records: Vec<fednode_runtime::status::RoundRecord>,
}

impl Prepared {
    /// Puts the result together.
    pub(super) fn finish(&self, played: &Played, banned: Vec<u32>, means: &Means<'_>) -> Finished {
        let took = played.models.saver().took();
        let nodes = played.shards.len();
        let memory = fednode_runtime::memory().peak_rss_bytes.unwrap_or(0) / nodes as u64;
        let observed: Vec<Observed> = self
            .honest()
            .map(|member| self.observe(played, member, memory))
            .collect();
        let records = observed
            .iter()
            .flat_map(|observed| observed.records.clone())
            .collect();
        let run = collect::Run {
            spec: &self.spec,
            data: &self.sources.to_string(),
            device: &played.device,
            cores: None,
            wall_seconds: took.as_secs_f64(),
            effective_config: self.effective(),
        };
        let worth = if self.run.control {
            control::or_say(self.worth(played, means))
        } else {
            None
        };
        let mut summary = collect::summarise(run, &observed, Vec::new()).judged(worth);
        summary.banned = banned;
        summary.partition_hash.clone_from(&self.honest_hash);
        Finished { summary, records }
    }

    /// Compares what the nodes serve with what each does alone.
    fn worth(&self, played: &Played, means: &Means<'_>) -> anyhow::Result<Option<Worth>> {
        let device = means.device.open(means.threads)?;
        let mut nodes = Vec::new();
        for member in self.honest() {
            let own = own_model::by_number(&self.spec, member);
            let split = played.models.data(member);
            let mut learner = Learner::new(&own, member as u64, Arc::clone(&split), &device)
                .map_err(no_learner)?;
            let knowledge = played.models.knowledge(member);
            knowledge
                .give_to(&mut learner, member as u64, Arc::clone(&split))
                .or_fail(ExitCode::Internal)?;
            nodes.push(Compared {
                shard: member as u32 + 1,
                node_seed: member as u64,
                served: learner.predict(&split.test).or_fail(ExitCode::Data)?,
                split,
            });
        }
        let initial = initial::of(&self.spec, self.run.federation.initial.as_deref())?;
        let initial = initial.as_deref();
        control::compare(&self.spec, initial, &nodes, means.device, means.interrupts)
    }

    /// Returns what is known of a node in the end; `memory` is its share of the whole.
    fn observe(&self, played: &Played, member: usize, memory: u64) -> Observed {
        let Played {
            models,
            shards,
            sizes,
            device,
        } = played;
        let (shard, traffic) = (&shards[member], models.traffic(member));
        let model = self.spec.model.name.of_node(member).to_owned();
        Observed {
            shard: member as u32 + 1,
            node_id: sim::node_id(self.spec.seed, member),
            card: shard.card(device, model, sizes[member % sizes.len()] as u64),
            bytes_sent: traffic.sent.wire,
            bytes_received: traffic.received.wire,
            peak_rss_bytes: memory,
            last_stage: models.last_stage(member).clone(),
            everyones_test: models
                .on_everyone(member)
                // Of a number there are no classes.
                .filter(|classes| !classes.is_empty())
                .map(|classes| EveryonesTest::new(classes, &shard.own())),
            parameters_hash: Some(models.parameters_hash(member)),
            records: models.records(member).to_vec(),
            yardstick: self
                .division
                .yardsticks
                .get(member)
                .copied()
                .unwrap_or_default(),
        }
    }
}
