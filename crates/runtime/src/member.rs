//! A member from its configuration to its end: opens what it needs, puts the driver together, runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::work::{Order, WorkError};
use fednode_core::{
    Accepted, Body, FederationSpec, NodeId, ParamSet, Role, Round, Schedule, Sequence,
    SignedAdvert, Timestamp,
};
use fednode_engine::book::{Pages, RoundBook};
use fednode_engine::{Aggregator, Head, Node, State};
use fednode_net::{Handle, Identity, Network};
use fednode_store::{Ledger, LedgerError, OpenError, Options, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::base::{Base, on_worker};
use crate::beginning::{self, Found};
use crate::checkpointing::{self, Keeper, OwnBlobs, Restored};
use crate::clock::Clock;
use crate::config::{Control, MemberConfig};
use crate::control::Server;
use crate::decoded::Decoded;
use crate::desk::{Desk, Staff};
use crate::driver::{Driver, Inlets, Parts, Past};
use crate::ending::{Finished, Outcome};
use crate::error::RunError;
use crate::joining::SPEC_FILE;
use crate::journal::Journal;
use crate::kept_port;
use crate::machine::Machine;
use crate::masks::MaskKeeper;
use crate::membership::{self, Membership};
use crate::notes::Notebook;
use crate::reach;
use crate::recording::{self, Origin, Recorder};
use crate::records;
use crate::releases::Releases;
use crate::token;
use crate::trainer::{Trainer, TrainerThread};
use crate::watched::Watched;

/// Runs a training node until all rounds are done (and it has lingered), or until it is stopped.
///
/// Goes on from the state folder's checkpoint if there is one. When `stop` is cancelled, the batch under way is
/// abandoned and the last checkpoint completed.
///
/// # Errors
/// Why it could not start or go on; [`RunError::exit_code`] names the exit code.
pub async fn run_node(
    config: MemberConfig,
    trainer: Trainer,
    stop: CancellationToken,
) -> Result<Finished, RunError> {
    let Trainer { mut worker, card } = trainer;
    let releases = Releases::new(&config.spec, config.privacy.clone(), worker.noisy_steps());
    releases
        .check()
        .map_err(|error| RunError::Configuration(error.to_string()))?;
    let initial = worker.initial_shared().map(|shared| shared.to_blob());
    let mut opened = Opened::open(&config, Role::Node, card.partition_hash.clone()).await?;
    if let Some(finished) = opened.past(&config.spec)? {
        return Ok(finished);
    }
    let initial = match initial {
        Some((blob, bytes)) if Schedule::of(&config.spec).masks() => {
            opened.keep(bytes).await?;
            Some(blob)
        }
        initial => initial.map(|(blob, _)| blob),
    };
    worker.take_secret(&opened.identity.noise_secret());
    let no_thread = |error| RunError::Internal(format!("no thread for the trainer: {error}"));
    let thread = TrainerThread::spawn(worker).map_err(no_thread)?;
    let spec = Arc::clone(&config.spec);
    let machine = match &mut opened.restored {
        None => Node::new(spec, opened.me, initial),
        Some(restored) => {
            let state: State = machine_state(restored)?;
            info!(round = %state.round, phase = state.phase.name(), "going on from the checkpoint");
            restore_model(&thread, restored).await?;
            if state.is_before_added_rounds(&spec) {
                info!(rounds = spec.rounds, "the organiser has added rounds");
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
    opened.run(config, machine, Some(staff), stop).await
}

/// Runs an aggregator until it is stopped, or until all rounds are done if it is configured to end then.
///
/// # Errors
/// As [`run_node`].
pub async fn run_aggregator(
    config: MemberConfig,
    stop: CancellationToken,
) -> Result<Finished, RunError> {
    let opened = Opened::open(&config, Role::Aggregator, String::new()).await?;
    let spec = Arc::clone(&config.spec);
    let machine = match &opened.restored {
        None => Aggregator::new(spec, opened.me),
        Some(restored) => {
            let head: Head = machine_state(restored)?;
            info!(round = %head.round, "going on after the last closed round");
            Aggregator::restore(spec, opened.me, head)
        }
    };
    opened.run(config, machine, None, stop).await
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
    let node: State = machine_state(&restored)?;
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

fn machine_state<T: serde::de::DeserializeOwned>(restored: &Restored) -> Result<T, RunError> {
    let damaged =
        |error| RunError::StateContent(format!("the checkpoint cannot be understood: {error}"));
    serde_json::from_value(restored.meta.machine.clone()).map_err(damaged)
}

async fn restore_model(thread: &TrainerThread, restored: &Restored) -> Result<(), RunError> {
    let Some(bytes) = &restored.model else {
        return Err(RunError::StateContent(
            "the checkpoint holds no model: remove the state folder".into(),
        ));
    };
    let model = decode_model(bytes)?;
    match thread.restore(model).await {
        Err(WorkError::Misfit(reason)) => {
            let text = format!(
                "the checkpoint's model does not fit: {reason}; was the configuration changed?"
            );
            Err(RunError::StateContent(text))
        }
        result => Ok(result?),
    }
}

/// Everything that a member of either kind needs before its machine can run.
struct Opened {
    me: NodeId,
    role: Role,
    store: Store,
    identity: Identity,
    membership: Option<Membership>,
    restored: Option<Restored>,
    /// Rounds whose records were written.
    written: BTreeSet<Round>,
}

impl Opened {
    async fn open(
        config: &MemberConfig,
        role: Role,
        partition_hash: String,
    ) -> Result<Self, RunError> {
        reach::check(config)?;
        let (federation, quota, key) = (config.spec.id(), config.quota_bytes, config.key_path());
        let config = config.clone();
        on_worker(move || {
            let options = Options {
                quota_bytes: quota,
                ..Options::default()
            };
            let folder = &config.state;
            let mut store = Store::open(folder, federation, &options)?;
            let has_key = key.exists();
            let identity = Identity::load_or_create(&key)
                .map_err(|e| RunError::StateContent(e.to_string()))?;
            let membership =
                membership::open(&config, identity.node_id(), role, fednode_net::now())?;
            let restored = checkpointing::load(&store.checkpoints, &partition_hash)?;
            let newest = store.ledger.last_round();
            let newest = newest.map_err(|e| RunError::StateContent(e.to_string()))?;
            let found = Found {
                has_key,
                has_checkpoint: restored.is_some(),
                newest: newest.map(|record| record.round),
            };
            store.warnings.extend(found.missing());
            let written = records::read(&records::path_in(folder))
                .map_err(|e| RunError::StateContent(e.to_string()))?;
            let written = written.iter().map(|record| record.round).collect();
            Ok(Self {
                me: identity.node_id(),
                role,
                store,
                identity,
                membership,
                restored,
                written,
            })
        })
        .await
    }

    /// Ends at once if the node has been in rounds that its spec does not know of: it is to be started with all of them.
    fn past(&self, spec: &FederationSpec) -> Result<Option<Finished>, RunError> {
        let state = self.restored.as_ref().map(machine_state::<State>);
        let Some(state) = state.transpose()?.filter(|state| state.is_past(spec)) else {
            return Ok(None);
        };
        let done = Round(state.round.0.saturating_sub(1).max(spec.rounds));
        let book = self.membership.as_ref().map(|one| &one.book);
        let extended = book.and_then(|book| book.extended(spec, done).ok());
        if extended.is_none_or(|extended| extended.rounds <= spec.rounds) {
            return Err(RunError::StateContent(format!(
                "the checkpoint is of round {}, and of the rounds after {} nothing is known: put `members` of the state folder back",
                state.round, spec.rounds
            )));
        }
        Ok(Some(Finished {
            node_id: self.me,
            outcome: Outcome::Extended { done },
            round: state.round,
            last_record: None,
            useless: None,
        }))
    }

    /// Stores what everybody starts from: under masks it is the part of whoever is not on a roster, so others ask for it.
    async fn keep(&self, bytes: Vec<u8>) -> Result<(), RunError> {
        let blobs = Arc::clone(&self.store.blobs);
        let put = on_worker(move || blobs.put(&bytes)).await;
        put.map(|_| ())
            .map_err(|error| RunError::StateContent(error.to_string()))
    }

    async fn run<M: Machine>(
        self,
        config: MemberConfig,
        machine: M,
        staff: Option<Staff>,
        stop: CancellationToken,
    ) -> Result<Finished, RunError> {
        let Self {
            me,
            role,
            store,
            identity,
            membership,
            restored,
            written,
        } = self;
        let clock = Clock::start();
        let mut notebook = healed(&config, &store, restored.as_ref(), clock.now());
        // Read before the network starts, which must know at once what it has heard and said before.
        let memories = Memories::read(&store.ledger)?;
        let known = memories.adverts();
        let members = membership.as_ref();
        let masks = Arc::new(MaskKeeper::new(&identity, config.spec.id()));
        let network = start_network(&config, role, &store, identity, memories, members).await?;
        let inlets = Inlets {
            // After the network, so that an answer to `status` never shows a member without one.
            control: start_control(&config).await?,
            events: network.events,
            net_task: network.task,
            stop,
            book: membership.as_ref().map(|one| Arc::clone(&one.book)),
            roll: membership.map(Membership::keep),
        };
        // Only now nothing refuses this start any more.
        settle(&config, &mut notebook, clock.now(), &network.handle).await?;
        let journal = Journal::start(store.ledger, &config.state).map_err(no_journal)?;
        let recorder = start_recorder(&config, me, role)?;
        let (own, book) = books(me, &config, restored);
        let base = Base {
            spec: Arc::clone(&config.spec),
            config,
            clock,
            me,
            role,
            net: network.handle,
            blobs: store.blobs,
            decoded: Arc::new(Decoded::of(role)),
            masks,
            journal,
            notebook,
            tasks: JoinSet::new(),
        };
        let driver = Driver::new(Parts {
            machine: Watched::new(machine, recorder),
            base,
            desk: Desk::new(staff, book),
            keeper: Keeper::new(store.checkpoints, own),
            inlets,
        });
        driver.run(Past { known, written }).await
    }
}

/// Reopens the books of an earlier life, and names the own blobs that others may still want of it.
fn books(me: NodeId, config: &MemberConfig, restored: Option<Restored>) -> (OwnBlobs, RoundBook) {
    let (own, pages) = match restored {
        Some(Restored { meta, .. }) => (meta.own, meta.books),
        None => (OwnBlobs::default(), Pages::default()),
    };
    (own, RoundBook::reopen(me, config.calendar(), pages))
}

/// Begins the notebook with what was mended when the folder was opened.
fn healed(
    config: &MemberConfig,
    store: &Store,
    restored: Option<&Restored>,
    now: Timestamp,
) -> Notebook {
    let mut notebook = Notebook::of(&config.spec.fingerprints.class_names);
    let warnings = store
        .warnings
        .iter()
        .chain(restored.and_then(|restored| restored.warning.as_ref()));
    warnings.for_each(|warning| notebook.warn(now, warning.clone()));
    notebook
}

/// Writes what a start leaves in the state folder.
async fn settle(
    config: &MemberConfig,
    notebook: &mut Notebook,
    now: Timestamp,
    network: &Handle,
) -> Result<(), RunError> {
    let (state, mut facts) = (config.state.clone(), config.facts.clone());
    facts.push((SPEC_FILE, config.spec.to_toml()));
    let untidy = on_worker(move || beginning::settle(&state, &facts)).await?;
    untidy.into_iter().for_each(|line| notebook.warn(now, line));
    keep_port(config, network)
}

fn no_journal(error: std::io::Error) -> RunError {
    RunError::Internal(format!("no thread for the journal: {error}"))
}

fn start_recorder(config: &MemberConfig, me: NodeId, role: Role) -> Result<Recorder, RunError> {
    let recorder = Recorder::start(Origin {
        folder: recording::path_in(&config.state),
        bytes: config.recording_bytes,
        spec: Arc::clone(&config.spec),
        node: me,
        role,
    });
    recorder.map_err(|error| RunError::Internal(format!("no thread for the recorder: {error}")))
}

/// What was heard in earlier lives.
struct Memories {
    known: Vec<SignedAdvert>,
    heard: Vec<(NodeId, Sequence)>,
}

impl Memories {
    fn read(ledger: &Ledger) -> Result<Self, RunError> {
        let unreadable = |error: LedgerError| RunError::StateContent(error.to_string());
        let known = ledger.known_adverts().map_err(unreadable)?;
        let heard = ledger.highest().map_err(unreadable)?.into_iter().collect();
        Ok(Self { known, heard })
    }

    /// Returns the adverts that still carry their author's signature: a disk is believed no more than a peer.
    fn adverts(&self) -> Vec<Accepted> {
        let accepted = |signed: &SignedAdvert| {
            let (id, advert) = (signed.id(), fednode_net::verify(signed).ok()?);
            Some(Accepted { id, advert })
        };
        self.known.iter().filter_map(accepted).collect()
    }
}

async fn start_network(
    config: &MemberConfig,
    role: Role,
    store: &Store,
    identity: Identity,
    memories: Memories,
    membership: Option<&Membership>,
) -> Result<Network, RunError> {
    let mut network = fednode_net::Config::new(Arc::clone(&config.spec), role);
    network.software.clone_from(&config.software);
    let mut listen = config.listen.clone();
    kept_port::take_up(&mut listen, &config.state);
    network.listen = addresses("listen", &listen)?;
    network.external = addresses("external", &config.external)?;
    network.peers = addresses("peers", &config.peers)?;
    network.allow.clone_from(&config.allow);
    network.members = membership.map(|membership| Arc::clone(&membership.book));
    network.registrar = membership.and_then(|one| one.registrar(config.spec.to_toml()));
    network.network_key.clone_from(&config.network_key);
    network.mdns = config.mdns;
    network.compression = config.compression;
    network.relay = config.relay;
    network.max_peers = config.max_peers;
    network.incarnation = store.folder.incarnation();
    network.known = memories.known;
    network.heard = memories.heard;
    let blobs = Arc::clone(&store.blobs);
    fednode_net::start(network, identity, blobs)
        .await
        .map_err(|error| RunError::Network(error.to_string()))
}

fn keep_port(config: &MemberConfig, network: &Handle) -> Result<(), RunError> {
    let got = network.listeners();
    let got: Vec<String> = got.iter().map(ToString::to_string).collect();
    kept_port::keep(&config.listen, &got, &config.state).map_err(|error| {
        RunError::StateContent(format!(
            "the port cannot be kept in the state folder: {error}"
        ))
    })
}

fn addresses<A: FromStr<Err: Display>>(key: &str, texts: &[String]) -> Result<Vec<A>, RunError> {
    let example = "expected a multiaddress like /ip4/192.0.2.1/tcp/4001";
    let parse = |text: &String| {
        text.parse().map_err(|error| {
            RunError::Network(format!(
                "{key}: `{text}` is no address ({error}): {example}"
            ))
        })
    };
    texts.iter().map(parse).collect()
}

/// The file in the state folder with the token that opens the figures for Prometheus.
const METRICS_TOKEN: &str = "metrics.token";

async fn start_control(config: &MemberConfig) -> Result<Option<Server>, RunError> {
    let Control::At(address) = config.control else {
        return Ok(None);
    };
    let failed = |error| {
        RunError::Network(format!(
            "the control API cannot be served at {address}: {error}"
        ))
    };
    let metrics_token = token::kept(&config.state.join(METRICS_TOKEN)).map_err(|error| {
        RunError::StateContent(format!("{METRICS_TOKEN} in the state folder: {error}"))
    })?;
    Server::start(address, &config.state, metrics_token)
        .await
        .map(Some)
        .map_err(failed)
}
