//! A member from its configuration to its end: opens what it needs, puts the driver together, runs it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::work::{Order, WorkError};
use fednode_core::{Accepted, Body, FederationSpec, NodeId, ParamSet, Role, Schedule, Sequence};
use fednode_engine::book::Pages;
use fednode_engine::{Aggregator, Head, Node, State};
use fednode_store::{OpenError, Store};
use tracing::info;

use crate::checkpointing::{self, Restored};
use crate::config::MemberConfig;
use crate::desk::Staff;
use crate::ending::Finished;
use crate::error::RunError;
use crate::machine::Machine;
use crate::opened::{Assembled, Memories, Opened};
use crate::process::Process;
use crate::releases::Releases;
use crate::status::WaitingFor;
use crate::trainer::{Trainer, TrainerThread};

/// Runs a training node until all rounds are done (and it has lingered), or until it is stopped.
///
/// Goes on from the state folder's checkpoint if there is one. When the process is stopped, the batch under way is
/// abandoned and the last checkpoint completed. If it is to go on after an end, `process` stays open for the next call.
///
/// # Errors
/// Why it could not start or go on; [`RunError::exit_code`] names the exit code.
pub async fn run_node(
    config: MemberConfig,
    trainer: Trainer,
    process: &mut Process,
) -> Result<Finished, RunError> {
    let bind = process.to_bind(&config);
    let begun = begin_node(config, trainer, bind);
    begin_and_run(begun, process).await
}

/// What comes of a start.
enum Begun<M> {
    /// There is nothing to run: rounds were added that are to be known first.
    Over(Box<Finished>),
    /// A member that can run.
    Ready(Box<Assembled<M>>),
}

/// Answers for a member while it begins, and runs it.
async fn begin_and_run<M: Machine>(
    begun: impl Future<Output = Result<Begun<M>, RunError>>,
    process: &mut Process,
) -> Result<Finished, RunError> {
    let waits = WaitingFor::of_nobody("its start");
    match process.answer_through(waits, begun).await? {
        Begun::Over(finished) => Ok(*finished),
        Begun::Ready(member) => process.run(*member).await,
    }
}

async fn begin_node(
    config: MemberConfig,
    trainer: Trainer,
    bind: Option<SocketAddr>,
) -> Result<Begun<Node>, RunError> {
    let Trainer { mut worker, card } = trainer;
    let releases = Releases::new(&config.spec, config.privacy.clone(), worker.noisy_steps());
    // Before the folder is opened: what may not be published need not be trained, and nothing is left behind.
    releases
        .check()
        .map_err(|error| RunError::Configuration(error.to_string()))?;
    let initial = worker.initial_shared().map(|shared| shared.to_blob());
    let partition_hash = card.borrow().partition_hash.clone();
    let mut opened = Opened::open(&config, Role::Node, partition_hash).await?;
    if let Some(finished) = opened.past(&config.spec)? {
        return Ok(Begun::Over(Box::new(finished)));
    }
    let initial = match initial {
        Some((blob, bytes)) if Schedule::of(&config.spec).masks() => {
            opened.keep(bytes).await?;
            Some(blob)
        }
        initial => initial.map(|(blob, _)| blob),
    };
    // Noise is drawn from the key. So a round that is repeated after a restart is no new release.
    worker.take_secret(&opened.identity.noise_secret());
    let no_thread = |error| RunError::Internal(format!("no thread for the trainer: {error}"));
    let thread = TrainerThread::spawn(worker).map_err(no_thread)?;
    let spec = Arc::clone(&config.spec);
    let machine = match &mut opened.restored {
        None => Node::new(spec, opened.me, initial),
        Some(restored) => {
            let state: State = restored.machine()?;
            info!(round = %state.round, phase = state.phase.name(), "going on from the checkpoint");
            restore_model(&thread, restored).await?;
            if state.is_before_added_rounds(&spec) {
                info!(
                    "rounds {} to {} follow the end after round {}",
                    spec.since().next(),
                    spec.rounds,
                    spec.since()
                );
                thread.perform(Order::GoOn).await?.value.into_went_on()?;
                restored.meta.books = Pages {
                    last_record: restored.meta.books.last_record.take(),
                    ..Pages::default()
                };
            }
            Node::restore(spec, opened.me, initial, state)
        }
    };
    let machine = machine.auditing_by(DrawSeed::of(opened.identity.audit_secret()));
    let staff = Staff {
        thread,
        card,
        releases,
    };
    let member = opened.assembled(config, machine, Some(staff), bind).await?;
    Ok(Begun::Ready(Box::new(member)))
}

/// Runs an aggregator until it is stopped, or until all rounds are done if it is configured to end then.
///
/// # Errors
/// As [`run_node`].
pub async fn run_aggregator(
    config: MemberConfig,
    process: &mut Process,
) -> Result<Finished, RunError> {
    let bind = process.to_bind(&config);
    let begun = begin_aggregator(config, bind);
    begin_and_run(begun, process).await
}

async fn begin_aggregator(
    config: MemberConfig,
    bind: Option<SocketAddr>,
) -> Result<Begun<Aggregator>, RunError> {
    // An aggregator has no samples, so its checkpoints belong to no partition.
    let opened = Opened::open(&config, Role::Aggregator, String::new()).await?;
    if let Some(finished) = opened.past_of_aggregator(&config.spec)? {
        return Ok(Begun::Over(Box::new(finished)));
    }
    let spec = Arc::clone(&config.spec);
    let machine = match &opened.restored {
        None => Aggregator::new(spec, opened.me),
        Some(restored) => {
            let head: Head = restored.machine()?;
            info!(round = %head.round, "going on after the last closed round");
            Aggregator::restore(spec, opened.me, head)
        }
    };
    let member = opened.assembled(config, machine, None, bind).await?;
    Ok(Begun::Ready(Box::new(member)))
}

/// What a state folder's newest checkpoint holds of the node's model.
#[derive(Debug, Clone)]
pub struct StoredModel {
    /// All parameters. After a local update and before the exchange is over the shared part is the node's own.
    pub params: ParamSet,
    /// The shared part that the node adopted last, the same on all nodes of its lineage, if it is still held here.
    pub common: Option<ParamSet>,
}

/// Returns the newest model in a state folder's checkpoints, whether or not a daemon runs with it; `None` if there is
/// none yet. Blocks.
///
/// # Errors
/// Fails if there is no such state folder, if it is of another federation, and if nothing in it can be read.
pub fn stored_model(state: &Path, spec: &FederationSpec) -> Result<Option<StoredModel>, RunError> {
    let store = Store::open_read_only(state)?;
    let (found, expected) = (store.folder.federation(), spec.id());
    if found != expected {
        let (folder, found, expected) =
            (state.display().to_string(), found.short(), expected.short());
        return Err(OpenError::Federation {
            folder,
            found,
            expected,
        }
        .into());
    }
    let Some(restored) = checkpointing::look(&store.checkpoints, spec.partition_hash())? else {
        return Ok(None);
    };
    let Some(bytes) = &restored.model else {
        return Ok(None);
    };
    let params = decode_model(bytes)?;
    let node: State = restored.machine()?;
    if !node.has_learned() {
        return Ok(None);
    }
    let common = store
        .blobs
        .get(&node.lineage)
        .ok()
        .and_then(|bytes| ParamSet::decode(&bytes).ok());
    Ok(Some(StoredModel { params, common }))
}

/// Returns on how many samples each node trains, as their newest updates say that a state folder holds. Blocks.
///
/// # Errors
/// As [`stored_model`].
pub fn training_samples(state: &Path) -> Result<BTreeMap<NodeId, u32>, RunError> {
    let store = Store::open_read_only(state)?;
    let mut newest: BTreeMap<NodeId, (Sequence, u32)> = BTreeMap::new();
    for Accepted { advert, .. } in Memories::read(&store.ledger)?.adverts() {
        if let Body::Local(local) = advert.body {
            let of_author = newest.entry(advert.author).or_default();
            // By the author's own numbers: its clock may have been wrong.
            *of_author = (*of_author).max((advert.sequence, local.n_samples));
        }
    }
    let samples = newest
        .into_iter()
        .map(|(node, (_, samples))| (node, samples));
    Ok(samples.collect())
}

fn decode_model(bytes: &[u8]) -> Result<ParamSet, RunError> {
    let damaged =
        |error| RunError::StateContent(format!("the checkpoint's model cannot be read: {error}"));
    ParamSet::decode(bytes).map_err(damaged)
}

async fn restore_model(thread: &TrainerThread, restored: &Restored) -> Result<(), RunError> {
    let Some(bytes) = &restored.model else {
        return Err(RunError::StateContent(
            "the checkpoint holds no model: put a copy of the folder `checkpoints` back, or move that folder of the state folder \
             away: the node begins anew, and key and membership stay"
                .into(),
        ));
    };
    let model = decode_model(bytes)?;
    match thread.restore(model).await {
        Err(WorkError::Misfit(reason)) => {
            let text = format!(
                "the checkpoint's model does not fit: {reason}. Put the node's configuration back as it was, or move the folder \
                 `checkpoints` of the state folder away: the node begins anew, and key and membership stay"
            );
            Err(RunError::StateContent(text))
        }
        result => Ok(result?),
    }
}
