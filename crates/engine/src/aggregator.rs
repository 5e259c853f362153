//! The bootstrap aggregator's round as a pure state machine.
//!
//! It listens to local updates, fetches the shared parts, closes the round when everybody expected is in, or at quorum
//! and the end of the grace time, or at the deadline with whoever is there (at least `min_members`), and says so. It
//! trains nothing and decides nothing that its signed announcement does not allow anybody to recompute. When another
//! node has acted in its place, it recomputes that and takes up the chain from there.

mod verifying;

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::{
    Advert, Audience, BlobId, Body, FederationSpec, Global, Lineage, Local, Member, NodeId, Round,
    Timestamp,
};

use crate::chain;
use crate::closing::Closing;
use crate::cohort::Cohort;
use crate::event::{
    AverageOrder, AverageReport, Fetch, FetchKind, Input, Note, Output, Purpose, Timer,
};
use crate::state::{Head, Phase};
use crate::status::{Status, Waiting};
use crate::view::View;

use self::verifying::Trial;

/// The aggregator of a federation.
#[derive(Debug)]
pub struct Aggregator {
    spec: Arc<FederationSpec>,
    draws: DrawSeed,
    me: NodeId,
    head: Head,
    view: View,
    closing: Closing,
    audience: Audience,
    /// Whose updates the open round waits for, with the view's change of company and the round that it was found for.
    expected: Option<(u64, Round, Vec<NodeId>)>,
    /// Members of the newest closed round.
    n_members: usize,
    averaging: bool,
    /// Whether what others know has been pulled; before that a round might be closed a second time.
    synced: bool,
    started: Option<Timestamp>,
    /// Whether a closed round of another chain waits for its members' confirmation.
    unconfirmed: bool,
    /// The closing of somebody else that is recomputed.
    trial: Option<Trial>,
    /// How many there have been.
    trials: u32,
    /// Means that could not be recomputed.
    unproven: BTreeSet<BlobId>,
    /// When the first update of the open round arrived, and when its quorum was there.
    opened: Option<Timestamp>,
    quorum_since: Option<Timestamp>,
    /// The round that too few had trained for when its time was over.
    overdue: Option<Round>,
    now: Timestamp,
    outputs: Vec<Output>,
}

impl Aggregator {
    /// Makes an aggregator that knows of no closed round yet.
    pub fn new(spec: Arc<FederationSpec>, me: NodeId) -> Self {
        Self::restore(spec, me, Head::initial(None))
    }

    /// Makes an aggregator that goes on after a closed round.
    pub fn restore(spec: Arc<FederationSpec>, me: NodeId, head: Head) -> Self {
        Self {
            draws: spec.draw_seed(),
            me,
            head,
            view: View::new(2),
            closing: Closing::new(Arc::clone(&spec)),
            audience: Audience::of(&spec),
            expected: None,
            n_members: 0,
            averaging: false,
            synced: false,
            started: None,
            unconfirmed: false,
            trial: None,
            trials: 0,
            unproven: BTreeSet::new(),
            opened: None,
            quorum_since: None,
            overdue: None,
            now: Timestamp::default(),
            outputs: Vec::new(),
            spec,
        }
    }

    /// Takes an input and returns what to do about it.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.now = now;
        match input {
            Input::PeerUp { node, role } => self.view.connect(node, role),
            Input::PeerDown { node } => self.view.disconnect(node),
            Input::Advert(advert) => self.handle_advert(&advert),
            Input::Fetched(blob) => self.resolve(blob, true),
            Input::FetchFailed(blob) => self.resolve(blob, false),
            Input::Averaged(report) => match report.purpose {
                Purpose::Close => self.on_averaged(report),
                Purpose::Verify(trial) => self.on_verified(trial, &report),
            },
            Input::Start => self.on_start(),
            Input::Synced => self.synced = true,
            // Timers only wake the machine: what they mean is read off `now` below.
            Input::Timer(_) => {}
            Input::Leave => self.outputs.push(Output::Publish {
                round: self.head.round,
                body: Body::Leave,
            }),
            Input::Trained(_)
            | Input::Merged(_)
            | Input::Proxies { .. }
            | Input::Module(_)
            | Input::Pooled(_) => {
                debug_assert!(false, "an aggregator neither trains nor merges");
            }
        }
        self.try_to_close();
        std::mem::take(&mut self.outputs)
    }

    /// Returns the newest closed round.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Returns the blobs that garbage collection must not take.
    pub fn needed_blobs(&self) -> BTreeSet<BlobId> {
        let means = self
            .head
            .mean
            .map(|mean| mean.id)
            .into_iter()
            .chain(self.head.parent);
        let tried = self.trial.iter().flat_map(Trial::blobs);
        means.chain(self.closing.blobs()).chain(tried).collect()
    }

    /// Returns what is being waited for.
    pub fn status(&self, now: Timestamp) -> Status {
        let since = self
            .opened
            .map(|opened| now.since(opened))
            .unwrap_or_default();
        let finished = self.head.round.0 >= self.spec.rounds;
        let phase = if finished {
            Phase::Serving
        } else {
            Phase::Exchanging
        };
        let waiting = match self.opened {
            _ if finished => vec![],
            None => vec![Waiting::new("the first local update of the round", since)],
            Some(_) => {
                vec![Waiting::from_peers(
                    "local updates",
                    self.closing.missing(self.expected().into_iter()),
                    since,
                )]
            }
        };
        let round = if finished {
            self.head.round
        } else {
            self.head.round.next()
        };
        Status {
            phase,
            round,
            head: self.head,
            waiting,
        }
    }

    fn resolve(&mut self, blob: BlobId, held: bool) {
        self.closing.resolve(blob, held);
        self.resolve_trial(blob, held);
    }

    fn on_start(&mut self) {
        self.started = Some(self.now);
        let at = self.now + self.spec.round.grace();
        self.outputs.push(Output::SetTimer {
            timer: Timer::Join,
            at,
        });
    }

    fn handle_advert(&mut self, advert: &Arc<Advert>) {
        if self.spec.exchange.averaging.is_none() || !self.view.record(advert) {
            return;
        }
        match &advert.body {
            Body::Local(local) => {
                self.handle_local(advert.author, advert.round, local);
                if self.unconfirmed {
                    self.consider_globals();
                }
            }
            Body::Global(_) => self.consider_globals(),
            Body::Leave => self.closing.remove(advert.author),
            Body::Fault(_) | Body::Pool(_) => {}
            Body::Withdraw(withdraw) => {
                let needed = self.needed_blobs();
                let mut forgotten = self.view.nobody_elses(advert.author, &withdraw.blobs);
                forgotten.retain(|blob| !needed.contains(blob));
                self.outputs.push(Output::Forget(forgotten));
            }
        }
    }

    fn handle_local(&mut self, author: NodeId, round: Round, local: &Local) {
        // A mean that changes nothing has the name of the one before: the round tells what was trained after it.
        if round <= self.head.round || author == self.me {
            return;
        }
        let most = chain::most_bytes(&self.head, round, &self.spec);
        if let Some(size) = local
            .shared
            .map(|shared| shared.size)
            .filter(|size| *size > most)
        {
            let reason =
                format!("announced a shared part of {size} bytes, far more than the mean has");
            return self.outputs.push(Output::Strike {
                node: author,
                reason,
            });
        }
        if self.spec.round.participation < 1.0
            && self.overdue.is_some_and(|overdue| round > overdue)
        {
            // Others train in this round, which has a time of its own.
            self.collect();
        }
        if let Some(blob) = self.closing.offer(author, round, local) {
            if self.opened.is_none() {
                self.opened = Some(self.now);
                let deadline = self.now + self.spec.round.deadline();
                self.outputs.push(Output::SetTimer {
                    timer: Timer::Deadline(self.head.round.next()),
                    at: deadline,
                });
            }
            let until = self.now + self.spec.round.deadline();
            let base = self.head.mean.map(|mean| mean.id);
            self.outputs.push(Output::Fetch(Fetch {
                blob,
                kind: FetchKind::Shared,
                from: vec![author],
                base,
                until,
            }));
        }
    }

    fn follow(&mut self, author: NodeId, round: Round, global: &Global) {
        let (mean, parent) = (Some(global.mean), Some(global.parent));
        self.head = Head {
            round,
            mean,
            parent,
            history: global.history,
        };
        self.n_members = global.members.len();
        let members = self.n_members as u32;
        self.outputs.push(Output::Note(Note::RoundClosed {
            round,
            by: Some(author),
            members,
        }));
        self.outputs.push(Output::Save);
        self.open_next();
    }

    /// Starts collecting for the next round, with the updates that already arrived.
    fn open_next(&mut self) {
        self.trial = None;
        self.unproven.clear();
        self.averaging = false;
        self.collect();
        let Some(mean) = self.head.mean else { return };
        let early: Vec<(NodeId, Round, Local)> = self
            .view
            .newest_locals()
            .filter(|(_, _, local)| local.parent == mean.id)
            .map(|(node, round, local)| (node, round, local.clone()))
            .collect();
        for (node, round, local) in early {
            self.handle_local(node, round, &local);
        }
    }

    /// Forgets which updates there are, and since when.
    fn collect(&mut self) {
        self.closing = Closing::new(Arc::clone(&self.spec));
        self.expected = None;
        (self.opened, self.quorum_since, self.overdue) = (None, None, None);
    }

    /// Returns the round that the others are in: rounds that nobody closed are gone by.
    fn open_round(&self) -> Round {
        self.closing
            .round()
            .unwrap_or_default()
            .max(self.head.round.next())
    }

    /// Returns the nodes whose update is waited for: those connected that have not left, that are drawn to train in this
    /// round and that all hear.
    fn expected(&self) -> Vec<NodeId> {
        let round = self.open_round();
        let cohort = Cohort::draw(&self.spec, round, self.view.known());
        let counts = |node: &NodeId| self.audience.hears(*node, round) && cohort.contains(*node);
        self.view.neighbours().filter(counts).collect()
    }

    /// Returns how many updates a round has at least, whoever is connected: the first round waits for the planned number
    /// of nodes, later ones for those that are there. Of a large federation only some are connected with an aggregator;
    /// there the last round says how many speak. Where chance draws the cohort, no more are counted on than surely come.
    fn planned(&self) -> usize {
        match self.head.round {
            Round::ZERO => self.spec.surely_trained(),
            _ if self.audience.is_partial() => self.n_members.min(self.spec.surely_trained()),
            _ => 0,
        }
    }

    fn try_to_close(&mut self) {
        let patient = self
            .started
            .is_some_and(|started| self.now < started + self.spec.round.grace());
        let Some(opened) = self
            .opened
            .filter(|_| !self.averaging && (self.synced || !patient))
        else {
            return;
        };
        let (company, round) = (self.view.changes_of_company(), self.open_round());
        let known = self
            .expected
            .take()
            .filter(|(then, of, _)| (*then, *of) == (company, round));
        let expected = known.map_or_else(|| self.expected(), |(.., expected)| expected);
        let quorum = self
            .spec
            .round
            .quorum_of(expected.len().max(self.planned()));
        let enough = self.closing.n_held() >= quorum;
        if enough && self.quorum_since.is_none() {
            self.quorum_since = Some(self.now);
            let at = self.now + self.spec.round.grace();
            self.outputs.push(Output::SetTimer {
                timer: Timer::Grace(self.head.round.next()),
                at,
            });
        }
        let grace_over = self
            .quorum_since
            .is_some_and(|since| self.now >= since + self.spec.round.grace());
        let deadline_over = self.now >= opened + self.spec.round.deadline();
        let in_time = enough && (grace_over || self.closing.all_in(expected.iter().copied()));
        self.expected = Some((company, round, expected));
        if in_time || deadline_over {
            self.close();
        }
        self.overdue = (deadline_over && !self.averaging).then_some(round);
        // Too few came for a round of its own: what others closed will do, proven or not.
        if deadline_over && !self.averaging && !self.unproven.is_empty() {
            self.consider_globals();
        }
    }

    fn close(&mut self) {
        let Some(parent) = self.parent() else { return };
        let (round, members) = self.closing.members(parent, self.draws);
        if members.len() < self.spec.fewest_members() as usize {
            return;
        }
        self.averaging = true;
        self.outputs.push(Output::Average(AverageOrder {
            round,
            purpose: Purpose::Close,
            members,
        }));
    }

    /// Returns the mean that the open round follows; before the first, what most nodes started from.
    fn parent(&self) -> Option<Lineage> {
        self.head
            .mean
            .map(|mean| mean.id)
            .or_else(|| self.closing.common_parent())
    }

    fn on_averaged(&mut self, report: AverageReport) {
        if !self.averaging {
            return;
        }
        self.averaging = false;
        for node in report.lost {
            self.closing.remove(node);
        }
        for (node, reason) in report.rejected {
            self.closing.remove(node);
            let reason = format!("shared part refused: {reason}");
            self.outputs.push(Output::Strike { node, reason });
        }
        let enough = report.members.len() >= self.spec.fewest_members() as usize;
        let (Some(mean), Some(parent), true) = (report.mean, self.parent(), enough) else {
            return;
        };
        self.announce(report.round, mean, parent, report.members);
    }

    fn announce(
        &mut self,
        round: Round,
        mean: fednode_core::BlobRef,
        parent: Lineage,
        members: Vec<Member>,
    ) {
        let history = self.head.history + members.len() as u64;
        let global = Global {
            members,
            mean,
            parent,
            history,
        };
        self.outputs.push(Output::Publish {
            round,
            body: Body::Global(global.clone()),
        });
        self.follow(self.me, round, &global);
    }
}
