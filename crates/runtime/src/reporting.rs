//! What people see: answers to the control API, put together when they are asked for.

use fednode_core::BlobStore;
use fednode_engine::State;
use fednode_net::{Absent, PeerInfo};

use crate::answers::Answer;
use crate::base::Base;
use crate::control::Request;
use crate::driver::Driver;
use crate::error::RunError;
use crate::machine::Machine;
use crate::resources;
use crate::status::{ExpertRow, ExpertSource, Experts, Peer, Status};

impl<M: Machine> Driver<'_, M> {
    /// Answers a request of the control API. Whoever asked may be gone, which is no error.
    ///
    /// # Errors
    /// A request to stop ends the run.
    pub(crate) fn on_request(&mut self, request: Request) -> Result<(), RunError> {
        match request {
            Request::Status(answer) => drop(answer.send(status(self))),
            Request::Experts(answer) => drop(answer.send(experts(self))),
            Request::Peers(answer) => {
                let net = self.base.net.clone();
                self.base.start(async move {
                    let connected = net.peers().await.into_iter().map(describe_peer);
                    let absent = net.absent().await.into_iter().map(describe_absent);
                    let _ = answer.send(connected.chain(absent).collect());
                    Answer::Done
                });
            }
            Request::Leave(answer) => {
                self.on_leave_request();
                let _ = answer.send(());
            }
            Request::Withdraw(answer) => {
                self.withdraw();
                self.on_leave_request();
                let _ = answer.send(());
            }
            Request::Stop(answer) => {
                // Answered first: what follows may end the loop, and nobody would answer after it.
                let _ = answer.send(());
                return self.on_stop_request();
            }
        }
        Ok(())
    }
}

/// Says what the member does.
pub(crate) fn status<M: Machine>(driver: &Driver<'_, M>) -> Status {
    let Driver { base, desk, .. } = driver;
    let machine = driver.machine.status(base.now());
    let memory = resources::memory();
    Status {
        node_id: base.me,
        role: base.role,
        federation: base.spec.id(),
        name: base.spec.name.clone(),
        algorithm: base.spec.algorithm.clone(),
        score: base.spec.score_name().to_owned(),
        phase: machine.phase,
        round: machine.round,
        rounds: base.spec.rounds,
        closed_round: machine.head.round,
        waiting_for: driver.waits(),
        training: desk.trainer.as_ref().and_then(|trainer| trainer.progress()),
        last_record: desk.book.last().cloned(),
        peers: driver.standing.n_present(),
        traffic: base.traffic(),
        trainer: desk.card(),
        uptime_seconds: driver.process.uptime_seconds(),
        version: base.config.software.clone(),
        listeners: base
            .net
            .listeners()
            .iter()
            .map(ToString::to_string)
            .collect(),
        notes: base.notebook.lines(),
        finished: driver.ending.is_finished(),
        finished_evaluation: desk.book.last_stage().evaluations.clone(),
        pool: desk.book.last_stage().pool.clone(),
        rss_bytes: memory.rss_bytes,
        peak_rss_bytes: memory.peak_rss_bytes,
        blob_bytes: base.blobs.used_bytes(),
        disk_free_bytes: fednode_store::disk_free(&base.config.state).ok(),
        state_folder: base.config.state.display().to_string(),
    }
}

fn experts<M: Machine>(driver: &Driver<'_, M>) -> Experts {
    let Some(state) = driver.machine.training_state() else {
        return Experts::default();
    };
    let composition = driver.desk.book.composition().cloned();
    let Some(plan) = &state.plan else {
        return Experts {
            composition,
            ..Experts::default()
        };
    };
    let row = |row: &fednode_core::PlanRow| ExpertRow {
        slot: row.slot,
        sources: row
            .sources
            .iter()
            .map(|source| describe_source(&driver.base, &state, source))
            .collect(),
    };
    Experts {
        planned_in: Some(plan.round),
        rows: plan.rows.iter().map(row).collect(),
        composition,
    }
}

fn describe_source(base: &Base, state: &State, source: &fednode_core::Source) -> ExpertSource {
    let own = source.expert.owner == base.me;
    let trained_in = state.report.as_ref().map(|report| report.round);
    let held = state
        .held
        .get(&source.expert)
        // A plan may name what was taken back or collected since.
        .filter(|held| base.blobs.held(&held.blob.id).is_some());
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

fn describe_peer(peer: PeerInfo) -> Peer {
    Peer {
        node_id: peer.node,
        role: Some(peer.role),
        route: peer.route,
        relay: peer.relay,
        why: None,
        addresses: peer.addresses.iter().map(ToString::to_string).collect(),
        connected_seconds: peer.since.as_secs_f64(),
        rtt_milliseconds: peer.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
        software: peer.software,
        holds: peer.holds,
        score: peer.score,
    }
}

fn describe_absent(absent: Absent) -> Peer {
    Peer {
        node_id: absent.node,
        role: absent.role,
        route: absent.route,
        relay: None,
        why: Some(absent.why),
        addresses: Vec::new(),
        connected_seconds: 0.0,
        rtt_milliseconds: None,
        software: String::new(),
        holds: 0,
        score: 0.0,
    }
}
