//! What all parts of a member work with: who it is, and the handles on network, store, books and tasks.
//!
//! The parts ([`crate::desk`], [`crate::checkpointing`], [`crate::fetches`], [`crate::publisher`]) own their state and are
//! lent this. Orders of the machine that need nothing else are carried out here.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{BlobId, FederationSpec, NodeId, Role, Round, Sequence, Timestamp};
use fednode_engine::book::Traffic;
use fednode_engine::masks::UnmaskOrder;
use fednode_engine::{AverageOrder, Head, Lacking, Note};
use fednode_net::{Handle, Wanted};
use fednode_store::Blobs;
use fednode_store::ledger::{ClosedRound, Event, EventLevel};
use tokio::task::JoinSet;
use tracing::info;

use crate::answers::Answer;
use crate::clock::Clock;
use crate::config::MemberConfig;
use crate::decoded::Decoded;
use crate::history::KEPT_AT_ONCE;
use crate::journal::{Entry, Journal};
use crate::masks::MaskKeeper;
use crate::notes::Notebook;
use crate::spans;
use crate::status;
use crate::work;

/// How long a machine's ban lasts: as long as the network keeps one.
const BAN: Duration = Duration::from_secs(3600);
/// Pause before something is tried again that failed for want of disk space.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(5);
/// Share of the quota up to which blobs that nobody needs are kept for others, and its limit in bytes.
const KEPT_SHARE: u64 = 2;
const KEPT_BYTES: u64 = 256 << 20;
/// The limit of an aggregator, whose parts are of use for a round or two only.
const KEPT_BY_AGGREGATOR: u64 = 32 << 20;

/// The common ground of a member's parts.
pub(crate) struct Base {
    pub(crate) clock: Clock,
    pub(crate) config: MemberConfig,
    pub(crate) spec: Arc<FederationSpec>,
    pub(crate) me: NodeId,
    pub(crate) role: Role,
    pub(crate) net: Handle,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) decoded: Arc<Decoded>,
    pub(crate) masks: Arc<MaskKeeper>,
    pub(crate) journal: Journal,
    pub(crate) notebook: Notebook,
    pub(crate) tasks: JoinSet<Answer>,
}

impl Base {
    /// Returns the time on the member's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the bytes moved so far.
    pub(crate) fn traffic(&self) -> Traffic {
        status::traffic(&self.net.traffic())
    }

    /// Logs trouble, and keeps it for `status`.
    pub(crate) fn warn(&mut self, text: impl Into<String>) {
        let now = self.now();
        self.notebook.warn(now, text);
    }

    /// Keeps a line for `status`.
    pub(crate) fn remark(&mut self, text: impl Into<String>) {
        let now = self.now();
        self.notebook.remark(now, text);
    }

    /// Starts a task. Its answer comes back through the loop.
    pub(crate) fn start(&mut self, task: impl Future<Output = Answer> + Send + 'static) {
        self.tasks.spawn(spans::follow(task));
    }

    /// Tells people about an address at which this member listens.
    pub(crate) fn listening(&self, address: String) {
        info!(address, "listening");
        if let Some(told) = &self.config.on_listening {
            // Whoever does not take the addresses reads them in the log and in `status`.
            let _ = told.try_send(address);
        }
    }

    /// Logs a note of the machine and enters it into the journal.
    pub(crate) fn note(&mut self, note: &Note) {
        let time = self.now();
        let text = self.notebook.note(time, note);
        self.journal.add(Entry::Event(Event {
            time,
            level: EventLevel::Info,
            text,
        }));
        if let Note::RoundStarted(round) = note {
            self.journal.add(Entry::Started {
                round: *round,
                at: time,
            });
        }
    }

    /// Enters a round that is over into the ledger, with all closed rounds that are followed since.
    pub(crate) fn enter_closed(&self, round: Round, head: Head, by: Option<NodeId>, members: u32) {
        // The ledger is the list of means that a restart may go on from.
        match (by, head.mean) {
            (Some(closed_by), Some(mean)) if head.round >= round => {
                let closed = ClosedRound {
                    closed_at: self.now(),
                    closed_by,
                    members,
                    mean,
                };
                self.journal.add(Entry::Closed {
                    round: head.round,
                    closed,
                });
            }
            // Nobody closed it, or its mean was refused or lost.
            _ => self.journal.add(Entry::Ended(round)),
        }
        // One input may lead a node over several closed rounds.
        let chain = head.closing.into_iter().chain(head.ancestors);
        self.journal
            .add(Entry::Follows(chain.take(KEPT_AT_ONCE).collect()));
    }

    /// Tells peers that these blobs can be had here.
    pub(crate) fn announce(&mut self, blobs: Vec<BlobId>) {
        let net = self.net.clone();
        self.start(async move {
            for blob in blobs {
                net.announce_held(blob).await;
            }
            Answer::Done
        });
    }

    /// Receives the updates of these nodes too, of nodes outside the broadcast set no others.
    pub(crate) fn follow(&mut self, nodes: Vec<NodeId>) {
        let net = self.net.clone();
        self.start(async move {
            net.follow(nodes).await;
            Answer::Done
        });
    }

    /// Asks for adverts by name.
    pub(crate) fn ask(&mut self, lacking: &[Lacking]) {
        let net = self.net.clone();
        let wanted = lacking.iter().map(|lacking| Wanted {
            advert: lacking.advert,
            author: lacking.author,
            named_by: lacking.named_by,
        });
        let wanted = wanted.collect();
        self.start(async move {
            net.ask(wanted).await;
            Answer::Done
        });
    }

    /// Takes this node's masks off a sum.
    pub(crate) fn unmask(&mut self, order: UnmaskOrder) {
        let (round, masks) = (order.sum.round(), Arc::clone(&self.masks));
        self.start(async move {
            let word = on_worker(move || masks.unmask(order)).await;
            Answer::Unmasked { round, word }
        });
    }

    /// Lowers a peer's score.
    pub(crate) fn strike(&mut self, node: NodeId, reason: String) {
        let net = self.net.clone();
        self.remark(format!("peer {}: {reason}", node.short()));
        self.start(async move {
            net.strike(node, reason).await;
            Answer::Done
        });
    }

    /// Drops a peer.
    pub(crate) fn ban(&mut self, node: NodeId, reason: String) {
        let net = self.net.clone();
        self.start(async move {
            net.ban(node, BAN, reason).await;
            Answer::Done
        });
    }

    /// Looks up what a node published before an advert, also in rounds long ago, because it took something back then.
    pub(crate) fn look_up_published(&mut self, owner: NodeId, before: Sequence) {
        let journal = self.journal.clone();
        self.start(async move {
            let blobs = journal.published_by(owner, before).await;
            Answer::PublishedBefore { owner, blobs }
        });
    }

    /// Deletes blobs that their owner takes back.
    pub(crate) fn forget(&mut self, forgotten: Vec<BlobId>) {
        let blobs = Arc::clone(&self.blobs);
        self.start(async move {
            on_worker(move || {
                for blob in forgotten {
                    if let Err(error) = blobs.remove(&blob) {
                        tracing::warn!(%blob, %error, "a withdrawn blob is not removed");
                    }
                }
            })
            .await;
            // Also if some stay: the owner is told how many are left.
            Answer::Forgotten
        });
    }

    /// Computes a mean and stores it.
    pub(crate) fn average(&mut self, order: AverageOrder) {
        let (spec, blobs) = (Arc::clone(&self.spec), Arc::clone(&self.blobs));
        let (decoded, net) = (Arc::clone(&self.decoded), self.net.clone());
        self.start(async move {
            let round = order.round;
            let (report, error) =
                on_worker(move || work::average(&order, &spec, &decoded, &blobs)).await;
            if let Some(mean) = report.mean {
                net.announce_held(mean.id).await;
            }
            let mut trouble = None;
            if let Some(error) = error {
                // The machine tries again at once; a full disk does not empty itself that fast.
                tokio::time::sleep(FULL_PAUSE).await;
                trouble = Some(format!(
                    "the mean of round {round} cannot be stored: {error}"
                ));
            }
            let report = Box::new(report);
            Answer::Averaged { report, trouble }
        });
    }

    /// Removes blobs that nobody needs, beyond what is kept for others.
    pub(crate) fn collect_garbage(&mut self, keep: BTreeSet<BlobId>) {
        let blobs = Arc::clone(&self.blobs);
        // Others may still fetch what this node needs no more, so not everything goes at once.
        let most = match self.role {
            Role::Node => KEPT_BYTES,
            Role::Aggregator => KEPT_BY_AGGREGATOR,
        };
        let target = (blobs.quota_bytes() / KEPT_SHARE).min(most);
        self.start(async move {
            let collected = on_worker(move || work::collect(&keep, target, &blobs)).await;
            if let Err(error) = collected {
                tracing::warn!(%error, "unneeded blobs cannot be removed");
            }
            Answer::Done
        });
    }
}

/// Runs blocking work on a worker thread.
pub(crate) async fn on_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(spans::carry(work)).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going away, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}
