//! All that a member has opened before its machine runs, and how the driver is put together of it.
//!
//! ```text
//! folder ─► store, key, book of members, checkpoint, records ─► Opened ─► network, control API, journal ─► Driver
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use fednode_core::{
    Accepted, FederationSpec, NodeId, Role, Round, Sequence, SignedAdvert, Timestamp,
};
use fednode_engine::book::{Pages, RoundBook};
use fednode_engine::{Head, State};
use fednode_net::{Handle, Identity, Network, StartError};
use fednode_store::{Ledger, LedgerError, Options, Store};
use tokio::task::JoinSet;

use crate::addresses;
use crate::base::{Base, on_worker};
use crate::beginning::{self, Found};
use crate::checkpointing::{self, Keeper, OwnBlobs, Restored};
use crate::clock::Clock;
use crate::config::MemberConfig;
use crate::control::{self, Server};
use crate::decoded::Decoded;
use crate::desk::{Desk, Staff};
use crate::driver::{Inlets, Parts, Past};
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
use crate::records::{self, Newest};
use crate::watched::Watched;
use crate::whereabouts;

/// Everything that a member of either kind needs before its machine can run.
pub(crate) struct Opened {
    pub(crate) me: NodeId,
    role: Role,
    store: Store,
    pub(crate) identity: Identity,
    membership: Option<Membership>,
    pub(crate) restored: Option<Restored>,
    /// What its records say.
    newest: Newest,
}

impl Opened {
    pub(crate) async fn open(
        config: &MemberConfig,
        role: Role,
        partition_hash: String,
    ) -> Result<Self, RunError> {
        let (federation, quota, key) = (config.spec.id(), config.quota_bytes, config.key_path());
        let config = config.clone();
        on_worker(move || {
            let options = Options {
                quota_bytes: quota,
                ..Options::default()
            };
            // Before anything is written.
            membership::check(&config)?;
            reach::check(&config)?;
            let folder = &config.state;
            let mut store = Store::open(folder, federation, &options)?;
            // Looked at now: the key that is made below would hide that the old one is gone.
            let has_key = key.exists();
            let newest = store.ledger.last_round();
            let newest = newest.map_err(|e| RunError::StateContent(e.to_string()))?;
            // Members are known by their keys, so a new one would only be turned away.
            if !has_key && newest.is_some() && config.spec.organiser.is_some() {
                let text = format!(
                    "the key `{}` is gone, and with it the membership: put it back from a backup, or join anew in another folder",
                    key.display()
                );
                return Err(RunError::StateContent(text));
            }
            let identity = Identity::load_or_create(&key)
                .map_err(|e| RunError::StateContent(e.to_string()))?;
            let membership =
                membership::open(&config, identity.node_id(), role, fednode_net::now())?;
            let restored = checkpointing::load(&store.checkpoints, &partition_hash)?;
            let found = Found {
                has_key,
                has_checkpoint: restored.is_some(),
                newest: newest.map(|record| record.round),
            };
            store.warnings.extend(found.missing());
            let newest = records::newest(&records::path_in(folder))
                .map_err(|e| RunError::StateContent(e.to_string()))?;
            Ok(Self {
                me: identity.node_id(),
                role,
                store,
                identity,
                membership,
                restored,
                newest,
            })
        })
        .await
    }

    /// Ends at once if the node has been in rounds that its spec does not know of: it is to be started with all of them.
    pub(crate) fn past(&self, spec: &FederationSpec) -> Result<Option<Finished>, RunError> {
        let state = self.restored.as_ref().map(Restored::machine::<State>);
        let Some(state) = state.transpose()?.filter(|state| state.is_past(spec)) else {
            return Ok(None);
        };
        let done = Round(state.round.0.saturating_sub(1).max(spec.rounds));
        // Started again without those rounds, the member would come here again without end.
        if self.extended(spec, done).rounds <= spec.rounds {
            return Err(RunError::StateContent(format!(
                "the checkpoint is of round {}, and of the rounds after {} nothing is known: put `members` of the state folder back",
                state.round, spec.rounds
            )));
        }
        Ok(Some(self.to_go_on(state.round, done)))
    }

    /// Ends at once if an aggregator has closed rounds after which its spec knows of more: it need not go through all ends again.
    pub(crate) fn past_of_aggregator(
        &self,
        spec: &FederationSpec,
    ) -> Result<Option<Finished>, RunError> {
        let head = self.restored.as_ref().map(Restored::machine::<Head>);
        let Some(head) = head.transpose()? else {
            return Ok(None);
        };
        let is_past = head.round.0 >= spec.rounds;
        let has_more = || self.extended(spec, head.round).rounds > spec.rounds;
        Ok((is_past && has_more()).then(|| self.to_go_on(head.round, head.round)))
    }

    /// Returns the spec with all rounds that were added after the ends up to `done`.
    fn extended(&self, spec: &FederationSpec, done: Round) -> FederationSpec {
        match &self.membership {
            Some(membership) => membership.book.extended(spec, done).spec,
            None => spec.extended_by([], done).spec,
        }
    }

    /// What a member that is to be started again with more rounds ends with.
    fn to_go_on(&self, round: Round, done: Round) -> Finished {
        Finished {
            node_id: self.me,
            outcome: Outcome::Extended { done },
            round,
            last_record: None,
            useless: None,
        }
    }

    /// Stores what everybody starts from: under masks it is the part of whoever is not on a roster, so others ask for it.
    pub(crate) async fn keep(&self, bytes: Vec<u8>) -> Result<(), RunError> {
        let blobs = Arc::clone(&self.store.blobs);
        let put = on_worker(move || blobs.put(&bytes)).await;
        put.map(|_| ())
            .map_err(|error| RunError::StateContent(error.to_string()))
    }

    /// Puts a member together around its machine, and connects it. The control API is opened at `bind`, if it is not open yet.
    pub(crate) async fn assembled<M: Machine>(
        self,
        config: MemberConfig,
        machine: M,
        staff: Option<Staff>,
        bind: Option<SocketAddr>,
    ) -> Result<Assembled<M>, RunError> {
        let Self {
            me,
            role,
            store,
            identity,
            membership,
            restored,
            newest,
        } = self;
        let clock = Clock::start();
        let mut notebook = healed(&config, &store, restored.as_ref(), clock.now());
        let masks = Arc::new(MaskKeeper::new(&identity, config.spec.id()));
        let connected = connect(&config, role, &store, identity, membership).await?;
        let Connected { net, known, inlets } = connected;
        // The network is there already, so no answer to `status` shows a member without one.
        let control = match bind {
            Some(address) => Some(control::start(address, &config.state).await?),
            None => None,
        };
        // Only now nothing refuses this start any more.
        settle(&config, &mut notebook, clock.now(), &net).await?;
        let journal = Journal::start(store.ledger, &config.state).map_err(no_journal)?;
        let recorder = start_recorder(&config, me, role)?;
        let (own, book) = books(me, &config, restored);
        let base = Base {
            spec: Arc::clone(&config.spec),
            config,
            clock,
            me,
            role,
            net,
            blobs: store.blobs,
            decoded: Arc::new(Decoded::of(role)),
            masks,
            journal,
            notebook,
            tasks: JoinSet::new(),
        };
        let parts = Parts {
            machine: Watched::new(machine, recorder),
            base,
            desk: Desk::new(staff, book),
            keeper: Keeper::new(store.checkpoints, own),
            inlets,
        };
        Ok(Assembled {
            parts,
            past: Past { known, newest },
            control,
        })
    }
}

/// A member that can run.
pub(crate) struct Assembled<M> {
    pub(crate) parts: Parts<M>,
    pub(crate) past: Past,
    /// The control API, if it was opened just now.
    pub(crate) control: Option<Server>,
}

/// A member's place in the network.
struct Connected {
    net: Handle,
    /// What was heard in earlier lives.
    known: Vec<Accepted>,
    inlets: Inlets,
}

/// Starts the network, and whatever keeps its news.
async fn connect(
    config: &MemberConfig,
    role: Role,
    store: &Store,
    identity: Identity,
    membership: Option<Membership>,
) -> Result<Connected, RunError> {
    // Read before the network starts, which must know at once what it has heard and said before.
    let memories = Memories::read(&store.ledger)?;
    let known = memories.adverts();
    let members = membership.as_ref();
    let network = start_network(config, role, store, identity, memories, members).await?;
    let net = network.handle;
    let (book, roll) = membership.map(Membership::keep).unzip();
    let inlets = Inlets {
        events: network.events,
        net_task: network.task,
        roll,
        whereabouts: Some(whereabouts::keep(&net, &config.state)),
        book,
    };
    Ok(Connected { net, known, inlets })
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
    // A node without it works as well. Only its next start may take another port.
    if let Err(error) = keep_port(config, network) {
        let text = format!(
            "the port cannot be kept in the state folder, so the next start may take another one: {error}"
        );
        notebook.warn(now, text);
    }
    Ok(())
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
pub(crate) struct Memories {
    known: Vec<SignedAdvert>,
    heard: Vec<(NodeId, Sequence)>,
}

impl Memories {
    pub(crate) fn read(ledger: &Ledger) -> Result<Self, RunError> {
        let unreadable = |error: LedgerError| RunError::StateContent(error.to_string());
        let known = ledger.known_adverts().map_err(unreadable)?;
        let heard = ledger.highest().map_err(unreadable)?.into_iter().collect();
        Ok(Self { known, heard })
    }

    /// Returns the adverts that still carry their author's signature: a disk is believed no more than a peer.
    pub(crate) fn adverts(&self) -> Vec<Accepted> {
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
    network.listen = addresses::read("listen", &listen)?;
    network.external = addresses::read("external", &config.external)?;
    network.peers = addresses::read("peers", &config.peers)?;
    network.remembered = whereabouts::read(&config.state);
    network.allow.clone_from(&config.allow);
    network.members = membership.map(|membership| Arc::clone(&membership.book));
    network.registrar = membership.and_then(|one| one.registrar(config.spec.to_toml()));
    network.network_key.clone_from(&config.network_key);
    network.mdns = config.mdns;
    network.upnp = config.upnp;
    network.compression = config.compression;
    network.relay = config.relay;
    network.max_peers = config.max_peers;
    // A number of its own for each life: two adverts under one number would convict this member.
    network.incarnation = store.folder.incarnation();
    network.known = memories.known;
    // Numbers outlive their adverts: what was heard once must not pass for news after a restart.
    network.heard = memories.heard;
    let blobs = Arc::clone(&store.blobs);
    fednode_net::start(network, identity, blobs)
        .await
        .map_err(|error| RunError::Network(way_out(&error)))
}

/// Says why the network does not start, and which setting helps.
fn way_out(error: &StartError) -> String {
    let text = error.to_string();
    match error {
        StartError::Listen { .. } => {
            let end = if text.ends_with('?') { "" } else { "." };
            format!("{text}{end} Another address is set with --listen, or `network.listen`")
        }
        StartError::Setup(_) => text,
    }
}

fn keep_port(config: &MemberConfig, network: &Handle) -> io::Result<()> {
    let got = network.listeners();
    let got: Vec<String> = got.iter().map(ToString::to_string).collect();
    kept_port::keep(&config.listen, &got, &config.state)
}
