//! What people see: answers to the control API, put together when they are asked for.

use fednode_core::BlobStore;
use fednode_engine::State;
use fednode_net::PeerInfo;

use crate::answers::Answer;
use crate::control::Request;
use crate::driver::Driver;
use crate::error::RunError;
use crate::machine::Machine;
use crate::resources;
use crate::status::{ExpertRow, ExpertSource, Experts, Peer, Status, WaitingFor, traffic};

impl<M: Machine> Driver<M> {
    /// Answers a request of the control API. Whoever asked may be gone, which is no error.
    ///
    /// # Errors
    /// A request to stop ends the run.
    pub(crate) fn on_request(&mut self, request: Request) -> Result<(), RunError> {
        match request {
            Request::Status(answer) => drop(answer.send(self.status())),
            Request::Experts(answer) => drop(answer.send(self.experts())),
            Request::Peers(answer) => {
                let net = self.net.clone();
                self.tasks.spawn(async move {
                    let _ = answer.send(net.peers().await.into_iter().map(describe_peer).collect());
                    Answer::Done
                });
            }
            Request::Leave(answer) => {
                self.on_leave_request();
                let _ = answer.send(());
            }
            Request::Stop(answer) => {
                let _ = answer.send(());
                return self.on_stop_request();
            }
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let machine = self.machine.status(self.clock.now());
        let waiting = machine.waiting.into_iter();
        let memory = resources::memory();
        Status {
            node_id: self.me,
            role: self.role,
            federation: self.spec.id(),
            name: self.spec.name.clone(),
            algorithm: self.spec.algorithm.clone(),
            phase: machine.phase,
            round: machine.round,
            rounds: self.spec.rounds,
            closed_round: machine.head.round,
            waiting_for: waiting
                .map(|w| WaitingFor {
                    what: w.what,
                    whom: w.whom,
                    seconds: w.since.as_secs_f64(),
                })
                .collect(),
            training: self.trainer.as_ref().and_then(|trainer| trainer.progress()),
            last_record: self.book.last().cloned(),
            peers: self.standing.n_present(),
            traffic: traffic(&self.net.traffic()),
            trainer: self.trainer.as_ref().map(|_| self.card.clone()),
            uptime_seconds: self.clock.uptime_seconds(),
            version: self.config.software.clone(),
            listeners: self
                .net
                .listeners()
                .iter()
                .map(ToString::to_string)
                .collect(),
            notes: self.notebook.lines(),
            finished: self.ending.is_finished(),
            finished_evaluation: self.book.last_stage().evaluations.clone(),
            pool: self.book.last_stage().pool.clone(),
            rss_bytes: memory.rss_bytes,
            peak_rss_bytes: memory.peak_rss_bytes,
            blob_bytes: self.blobs.used_bytes(),
            disk_free_bytes: fednode_store::disk_free(&self.config.state).ok(),
            state_folder: self.config.state.display().to_string(),
        }
    }

    fn experts(&self) -> Experts {
        let Some(state) = self.machine.training_state() else {
            return Experts::default();
        };
        let Some(plan) = &state.plan else {
            return Experts::default();
        };
        let row = |row: &fednode_core::PlanRow| ExpertRow {
            slot: row.slot,
            sources: row
                .sources
                .iter()
                .map(|source| self.describe_source(&state, source))
                .collect(),
        };
        Experts {
            planned_in: Some(plan.round),
            rows: plan.rows.iter().map(row).collect(),
        }
    }

    fn describe_source(&self, state: &State, source: &fednode_core::Source) -> ExpertSource {
        let own = source.expert.owner == self.me;
        let trained_in = state.report.as_ref().map(|report| report.round);
        let held = state
            .held
            .get(&source.expert)
            .filter(|held| self.blobs.held(&held.blob.id).is_some());
        let held_from = if own {
            trained_in
        } else {
            held.map(|held| held.round)
        };
        let (expert, similarity, weight) = (source.expert, source.similarity, source.weight);
        ExpertSource {
            expert,
            own,
            similarity,
            weight,
            held_from,
        }
    }
}

fn describe_peer(peer: PeerInfo) -> Peer {
    Peer {
        node_id: peer.node,
        role: peer.role,
        addresses: peer.addresses.iter().map(ToString::to_string).collect(),
        connected_seconds: peer.since.as_secs_f64(),
        rtt_milliseconds: peer.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        software: peer.software,
        holds: peer.holds,
        score: peer.score,
    }
}
