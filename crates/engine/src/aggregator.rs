//! The bootstrap aggregator's round as a pure state machine.
//!
//! It listens to local updates, fetches the shared parts, closes the round and says so. The round closes when everybody
//! expected is in, or at quorum and the end of the grace time, which is longer for stragglers. At the deadline it closes with
//! whoever is there (at least two of them). It trains nothing and decides nothing that its signed announcement does not allow
//! anybody to recompute. When another node has acted in its place, it recomputes that and takes up the chain from there.

mod asking;
mod closing;
mod expecting;
mod image;
mod straggling;
mod verifying;
mod waiting;

use self::asking::Asking;
use self::expecting::Expected;
pub use image::AggregatorImage;

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::{
    Accepted, BlobId, Body, BroadcastSet, ClosingId, FederationSpec, Global, NodeId, Round,
    Schedule, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::chain;
use crate::closing::{Closer, Offered};
use crate::event::{Arrival, Fetch, FetchKind, Input, Note, Output, Timer};
use crate::follower::Follower;
use crate::light;
use crate::masks::Sums;
use crate::outbox::Outbox;
use crate::state::{Head, Phase};
use crate::stragglers::Stragglers;
use crate::trials::Trials;
use crate::view::{Recorded, Update, View};

/// What trace lines call this machine.
const ROLE: &str = "aggregator";

/// The aggregator of a federation.
#[derive(Debug)]
pub struct Aggregator {
    spec: Arc<FederationSpec>,
    schedule: Arc<Schedule>,
    draws: DrawSeed,
    broadcast_set: BroadcastSet,
    me: NodeId,
    view: View,
    chain: Follower,
    /// The round that is collected for.
    open: OpenRound,
    /// How long members take.
    stragglers: Stragglers,
    /// Members of the newest closed round.
    n_members: usize,
    /// Whether what others know has been pulled; before that a round might be closed a second time.
    synced: bool,
    started: Option<Timestamp>,
    /// The closing of somebody else that is recomputed: one at a time.
    trials: Trials,
    /// Closings whose mean could not be recomputed.
    unproven: BTreeSet<ClosingId>,
    now: Timestamp,
    outbox: Outbox,
}

/// The updates of the round that is to be closed next, and since when there are some.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OpenRound {
    /// When it began to collect.
    since: Timestamp,
    closer: Closer,
    /// Whose updates it waits for, and what that was found for.
    expected: Option<Expected>,
    /// When the first update arrived, and when the quorum was there.
    opened: Option<Timestamp>,
    quorum_since: Option<Timestamp>,
    /// When the newest of those who were not in when the quorum was said its update.
    straggled: Option<Timestamp>,
    /// When it is looked at next whether the stragglers have had their time.
    looks_at: Option<Timestamp>,
    /// The round that too few had trained for when its time was over.
    overdue: Option<Round>,
    /// Whether those who held it up until its deadline were noted.
    #[serde(default)]
    is_blamed: bool,
    /// The most bytes that a part could have by what others had announced when it was looked at last.
    #[serde(default)]
    compared: Option<u64>,
    #[serde(default)]
    asked: Asking,
}

impl OpenRound {
    fn new(spec: &Arc<FederationSpec>, schedule: &Arc<Schedule>, since: Timestamp) -> Self {
        Self {
            since,
            closer: Closer::new(Arc::clone(spec), Arc::clone(schedule)),
            expected: None,
            opened: None,
            quorum_since: None,
            straggled: None,
            looks_at: None,
            overdue: None,
            is_blamed: false,
            compared: None,
            asked: Asking::default(),
        }
    }

    /// Takes the spec back, which no image holds.
    fn adopt_spec(&mut self, spec: &Arc<FederationSpec>, schedule: &Arc<Schedule>) {
        self.closer.adopt_spec(spec, schedule);
    }
}

impl Aggregator {
    /// Makes an aggregator that knows of no closed round yet.
    pub fn new(spec: Arc<FederationSpec>, me: NodeId) -> Self {
        Self::restore(spec, me, Head::initial(None))
    }

    /// Makes an aggregator that goes on after a closed round.
    pub fn restore(spec: Arc<FederationSpec>, me: NodeId, head: Head) -> Self {
        let schedule = Arc::new(Schedule::of(&spec));
        let masked = Sums::of(&spec, &schedule);
        Self {
            draws: spec.draw_seed(),
            broadcast_set: BroadcastSet::of(&spec),
            me,
            // It mixes no experts, so it needs no older ones to stand in.
            view: View::new(2),
            chain: Follower::new(head, masked),
            open: OpenRound::new(&spec, &schedule, Timestamp::default()),
            stragglers: Stragglers::default(),
            n_members: 0,
            synced: false,
            started: None,
            trials: Trials::default(),
            unproven: BTreeSet::new(),
            now: Timestamp::default(),
            outbox: Outbox::default(),
            spec,
            schedule,
        }
    }

    /// Takes an input and returns what to do about it.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.now = now;
        light::input(ROLE, self.phase(), self.open_round(), &input);
        match input {
            Input::PeerUp { node, role } => {
                self.view.connect(node, role);
                self.begin_first_round_anew();
            }
            Input::PeerDown { node } => self.view.disconnect(node),
            Input::Advert(advert) => self.handle_advert(&advert),
            Input::Equivocated { node } => {
                if !self.view.is_banned(node) {
                    self.outbox.note(Note::Equivocated(node));
                    self.convict(node, "told some one thing and others another".to_owned());
                }
            }
            Input::Revoked { node } => {
                if !self.view.is_banned(node) {
                    self.outbox.note(Note::Revoked(node));
                    // It is shut out where its certificate is looked at.
                    self.view.ban(node);
                    self.open.closer.remove(node);
                }
            }
            Input::Fetched(blob) => self.handle_arrival(Arrival::Held(blob)),
            Input::FetchFailed { blob, kind } => {
                self.handle_arrival(Arrival::Failed(blob, kind));
            }
            Input::Averaged(report) => self.handle_averaged(report),
            Input::Joined(report) => self.handle_joined(&report),
            Input::Start => self.on_start(),
            Input::Synced => self.synced = true,
            // What did not count enough members a moment ago may do so now.
            Input::Timer(Timer::Look(_)) => self.consider_globals(),
            Input::Timer(Timer::Opened(round)) => self.on_masks_that_stay(round),
            // Other timers only wake the machine: what they mean is read off `now` below.
            Input::Timer(_) => {}
            Input::Leave => self.outbox.publish(self.head().round, Body::Leave),
            Input::Trained(_)
            | Input::Merged(_)
            | Input::Proxies { .. }
            | Input::Unmasked { .. }
            | Input::Sliced(_)
            | Input::Module(_)
            | Input::Pooled(_) => {
                debug_assert!(false, "an aggregator neither trains nor merges");
            }
        }
        self.try_to_close();
        let outputs = self.outbox.take();
        light::outputs(ROLE, self.phase(), self.open_round(), &outputs);
        outputs
    }

    /// Returns the phase: an aggregator exchanges until all rounds are closed.
    pub fn phase(&self) -> Phase {
        if self.head().round.0 >= self.spec.rounds {
            Phase::Serving
        } else {
            Phase::Exchanging
        }
    }

    /// Returns the newest closed round.
    pub fn head(&self) -> &Head {
        self.chain.head()
    }

    /// Returns the blobs that garbage collection must not take.
    pub fn needed_blobs(&self) -> BTreeSet<BlobId> {
        let head = self.head();
        let means = head.mean.map(|mean| mean.id).into_iter().chain(head.parent);
        let parts = self.open.closer.blobs();
        means.chain(parts).chain(self.trials.blobs()).collect()
    }

    /// Leaves those blobs of an owner that may be deleted if it takes them back: nobody else needs them.
    pub fn free_of(&self, owner: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        self.view.free_of(owner, blobs, &self.needed_blobs())
    }

    /// Returns the blobs that were taken back and that nobody needs any more, which are to be deleted.
    pub fn taken_back(&self) -> Vec<BlobId> {
        self.view.taken_back(&self.needed_blobs())
    }

    fn handle_arrival(&mut self, arrival: Arrival) {
        self.view.on_arrival(arrival);
        let blob = arrival.id();
        if arrival.is_held() && self.view.was_withdrawn(blob) {
            let needed = self.needed_blobs();
            if self.view.came_too_late(blob, &needed) {
                self.outbox.push(Output::Forget(vec![blob]));
            }
        }
        self.open.closer.resolve(arrival);
        self.resolve_trial(arrival);
    }

    fn on_start(&mut self) {
        self.started = Some(self.now);
        self.open.since = self.now;
        self.stragglers.begin(self.head().closing, self.now);
        let patience = self.now + self.spec.round.grace();
        self.outbox.set_timer(Timer::Join, patience);
    }

    fn handle_advert(&mut self, advert: &Arc<Accepted>) {
        // Where nothing is averaged there is nothing to close, and an aggregator need not remember anybody. What it passed
        // on it deletes like everybody.
        let is_withdrawal = matches!(advert.body, Body::Withdraw(_));
        if self.spec.exchange.averaging.is_none() && !is_withdrawal {
            return;
        }
        match self.view.record(advert) {
            Recorded::Nothing => return,
            Recorded::Evidence => return self.consider_globals(),
            Recorded::News => {}
        }
        match &advert.body {
            Body::Local(local) => {
                self.handle_local(Update {
                    node: advert.author,
                    round: advert.round,
                    id: advert.id,
                    local,
                });
                if self.chain.waits_for_updates() {
                    self.consider_globals();
                }
            }
            Body::Global(_) => self.consider_globals(),
            Body::Leave => self.open.closer.remove(advert.author),
            Body::Propose(_) | Body::Agree(_) | Body::Unmask(_) => {
                self.on_word(advert.author, advert.round);
            }
            // It is kept, and looked at when the round is.
            Body::Slices(_) => {}
            Body::Fault(_) | Body::Pool(_) | Body::Removed(_) => {}
            Body::Withdraw(withdraw) => {
                let needed = self.needed_blobs();
                let blobs = &withdraw.blobs;
                let forgotten =
                    self.view
                        .withdraw((advert.author, advert.sequence), blobs, &needed);
                self.outbox.push(Output::Forget(forgotten));
            }
        }
    }

    fn handle_local(&mut self, update: Update<'_>) {
        let (author, round, local) = (update.node, update.round, update.local);
        self.note_pace(update);
        let head = self.head();
        // A mean that changes nothing has the name of the one before: the round tells what was trained after it.
        if round <= head.round || author == self.me {
            return;
        }
        let size = local.shared.map_or(0, |shared| shared.size);
        match chain::most_bytes(head, round, &self.schedule) {
            Some(most) if size > most => {
                let reason =
                    format!("announced a shared part of {size} bytes, far more than the mean has");
                self.outbox.strike(author, reason);
            }
            None if size > chain::UNCOMPARED_BYTES / 4 => self.compare(update),
            Some(_) | None => self.take_part(update),
        }
    }

    /// Takes the parts that are no larger than what others have. Of larger ones more must be announced first.
    fn compare(&mut self, update: Update<'_>) {
        let most = chain::most_by_others(&self.view, self.spec.nodes);
        let fits = |update: &Update<'_>| update.local.shared.is_some_and(|it| it.size <= most);
        if fits(&update) {
            self.take_part(update);
        }
        // Of some that came before enough were not announced then.
        if most > self.open.compared.replace(most).unwrap_or(most) {
            let head = self.head().round;
            for update in self.view.nodes().newest_adverts() {
                if let Some(update) = Update::of(&update)
                    && (update.round > head && update.node != self.me && fits(&update))
                {
                    self.take_part(update);
                }
            }
        }
    }

    /// Fetches a part, if it is new and counts.
    fn take_part(&mut self, update: Update<'_>) {
        let (author, round) = (update.node, update.round);
        let head = self.head().clone();
        let some_rest = self.spec.round.participation < 1.0;
        if some_rest && self.open.overdue.is_some_and(|overdue| round > overdue) {
            // Others train in this round, which has a time of its own.
            self.open = OpenRound::new(&self.spec, &self.schedule, self.now);
        }
        let patience = self.spec.round.deadline();
        if !self.open.asked.may_ask(author, self.now, patience) {
            return;
        }
        let offered = self.open.closer.offer(update, &self.view);
        if offered == Offered::Nothing {
            return;
        }
        let deadline = self.now + patience;
        // The first update opens the round: until then nobody waits for anybody.
        if self.open.opened.is_none() {
            self.open.opened = Some(self.now);
            let timer = Timer::Deadline(head.round.next());
            self.outbox.set_timer(timer, deadline);
        }
        let Offered::Part(blob) = offered else {
            return;
        };
        self.open.asked.note(author, self.now, patience);
        self.outbox.push(Output::Fetch(Fetch {
            blob,
            kind: FetchKind::Shared,
            from: vec![author],
            base: head.mean.map(|mean| mean.id),
            until: deadline,
        }));
    }

    fn follow(&mut self, author: NodeId, round: Round, global: &Global) {
        let counts_again = self.spec.round.participation >= 1.0 && !self.broadcast_set.is_partial();
        self.note_silent();
        self.chain.follow(&self.view, round, global, counts_again);
        self.stragglers.begin(Some(global.id(round)), self.now);
        self.view.on_followed(author, global);
        self.n_members = global.members.len();
        self.outbox.note(Note::RoundClosed {
            round,
            by: Some(author),
            members: self.n_members as u32,
        });
        self.outbox.push(Output::Save);
        self.open_next(global.id(round));
        if author != self.me {
            // The last look judged from the former head. Seen from this one, another chain may be the stronger by now, and
            // without a look no update would tell.
            let moment = self.spec.round.grace() / 4;
            let look = Timer::Look(self.open_round());
            self.outbox.set_timer(look, self.now + moment);
        }
    }

    /// Starts collecting for the next round, with the updates that already arrived.
    fn open_next(&mut self, closing: ClosingId) {
        self.trials.clear();
        self.unproven.clear();
        self.open = OpenRound::new(&self.spec, &self.schedule, self.now);
        for update in self.view.nodes().newest_adverts() {
            // What follows another closing cannot be counted beside these.
            if let Some(update) = Update::of(&update)
                && update.local.follows == Some(closing)
            {
                self.handle_local(update);
            }
        }
    }

    /// Returns the round that the others are in: rounds that nobody closed are gone by.
    pub fn open_round(&self) -> Round {
        let offered = self.open.closer.round().unwrap_or_default();
        offered.max(self.head().round.next())
    }

    /// Closes the round if it is time: everybody expected is in, or a quorum and the grace time over, or the deadline.
    fn try_to_close(&mut self) {
        let grace = self.spec.round.grace();
        // After a restart the aggregator first finds out what others closed meanwhile, but not for ever.
        let may_be_behind = !self.synced && self.started.is_some_and(|at| self.now < at + grace);
        let Some(opened) = self.open.opened else {
            return;
        };
        if self.open.closer.is_averaging() || may_be_behind {
            return;
        }
        if self.open.closer.has_proposed() {
            // Members were asked already, so nobody else is waited for or counted.
            return self.order_mean();
        }
        let expected = self.renew_expected();
        let (round, n_expected) = (expected.round, expected.nodes.len());
        // The larger of both: those who are here may be few because the others have not arrived yet.
        let all = n_expected.max(self.planned());
        // Who follows another closing has spoken and is not waited for, but is in no mean of this one.
        let quorum = self.spec.round.quorum_of(all);
        let is_quorum = self.open.closer.n_held() >= quorum;
        if is_quorum && self.open.quorum_since.is_none() {
            self.open.quorum_since = Some(self.now);
        }
        let grace_over = is_quorum && self.is_grace_over(&expected.nodes);
        let deadline_over = self.now >= opened + self.spec.round.deadline();
        let all_in = |nodes: &[NodeId]| self.open.closer.all_in(nodes.iter().copied());
        // Members follow no closing of fewer before the deadline.
        let counted = self.n_counted();
        let are_enough = is_quorum && (counted >= quorum || 2 * counted > all);
        let in_time = are_enough && (grace_over || all_in(&expected.nodes));
        if deadline_over && !in_time && !std::mem::replace(&mut self.open.is_blamed, true) {
            let has_part = |node: &NodeId| self.open.closer.holds(*node);
            let nodes = expected.nodes.iter().copied();
            let late: Vec<NodeId> = nodes.filter(|node| !has_part(node)).collect();
            self.view.note_held_up(late);
        }
        // Kept before the mean is ordered: ordering does not change who is expected.
        self.open.expected = Some(expected);
        if in_time || deadline_over && self.is_most_of_heard() {
            self.order_mean();
        }
        let too_few = deadline_over && !self.open.closer.is_averaging();
        self.open.overdue = too_few.then_some(round);
        // Too few came for a round of its own: what others closed will do, proven or not.
        if too_few && !self.unproven.is_empty() {
            self.consider_globals();
        }
    }
}
