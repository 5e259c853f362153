//! How adverts spread: to everybody, each after its own delay, to some only with a later sync.
//!
//! Most of what reaches a member changes nothing for it but what it knows of the author. Waking it for each would be a walk
//! through memory that nothing else has touched lately, millions of times. So such updates wait in its inbox, and are read
//! together before anything else is given to it. What begins to matter while it is under way arrives by itself, at its time;
//! so does everything while somebody is away or cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    ADVERT_LIFE, Accepted, Advert, AdvertId, Body, BroadcastSet, NodeId, ProxyOffer, ProxySet,
    Round, Sequence, Timestamp,
};
use fednode_engine::{Input, Lacking};

use super::ground::Ground;
use super::members::Machine;
use super::{Event, blobs::Blobs, lies};
use crate::attention::{Attention, is_mere_update};
use crate::scenario::Behaviour;

/// Most updates that wait for one member.
const MAX_WAITING: usize = 1024;
/// Adverts kept per member for those who come back; an author's last few are among them.
const KEPT_PER_MEMBER: usize = 40;
/// The same with a partial broadcast set: who comes back asks for the last rounds of those whom it follows.
const KEPT_WHERE_FEW_FOLLOW: usize = 2;
/// What is no update, such as a closing, is kept for longer, up to so many.
const KEPT_WORDS: usize = 256;
/// Adverts per author that peers keep for those who missed them, as in the daemon.
const KEPT_PER_AUTHOR: u32 = 16;
/// Adverts that somebody who comes back looks through, per member.
const LOOKED_THROUGH: usize = 20;

/// An advert that was published, with what everybody who receives it would look up.
#[derive(Debug)]
pub(super) struct Published {
    advert: Arc<Accepted>,
    author: usize,
    /// What it weighs on the wire.
    bytes: u64,
    /// Whether it is of the kind that may wait in an inbox.
    can_wait: bool,
}

/// What one member need not be given at once, and when each is there.
#[derive(Debug)]
struct Inbox {
    attention: Attention,
    waiting: Vec<(Timestamp, Arc<Published>)>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            attention: Attention::TO_ALL,
            waiting: Vec::new(),
        }
    }
}

/// The adverts under way, and the last ones that were published.
#[derive(Debug)]
pub(super) struct Gossip {
    inboxes: Vec<Inbox>,
    published: Vec<Arc<Published>>,
    kept_per_member: usize,
    /// Adverts under the number of another one, both ways.
    twins: BTreeMap<AdvertId, AdvertId>,
    /// Who heard the other one first, and so never hears this.
    told_otherwise: BTreeSet<(usize, AdvertId)>,
}

impl Gossip {
    pub(super) fn new(n_members: usize, broadcast_set: BroadcastSet) -> Self {
        let kept_per_member = if broadcast_set.is_partial() {
            KEPT_WHERE_FEW_FOLLOW
        } else {
            KEPT_PER_MEMBER
        };
        Self {
            kept_per_member,
            inboxes: (0..n_members).map(|_| Inbox::default()).collect(),
            published: Vec::new(),
            twins: BTreeMap::new(),
            told_otherwise: BTreeSet::new(),
        }
    }

    pub(super) fn publish(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &Blobs,
        member: usize,
        round: Round,
        body: Body,
    ) -> Arc<Accepted> {
        let now = ground.now();
        let author = &mut ground.members[member];
        author.counter += 1;
        let advert = Advert {
            federation: ground.federation,
            author: author.id,
            sequence: Sequence {
                incarnation: author.life,
                counter: author.counter,
            },
            round,
            issued_at: now,
            expires_at: now + ADVERT_LIFE,
            body,
        };
        let id = name_of(&advert);
        let advert = Arc::new(Accepted { id, advert });
        let bytes = (ground.scenario.advert_bytes)(&advert);
        author.sent.gossip += bytes;
        if ground.scenario.observe {
            observe_proxies(ground, blobs, &advert);
        }
        let published = Arc::new(Published {
            advert: Arc::clone(&advert),
            author: member,
            bytes,
            can_wait: is_mere_update(&advert, &ground.spec),
        });
        self.remember(Arc::clone(&published));
        // The author's own machine hears of it first.
        let own = Input::Advert(Arc::clone(&advert));
        ground.input_after(Duration::ZERO, member, own);
        if ground.behaviour(member) == Some(Behaviour::Equivocator)
            && let Some(twin) = lies::twin(&advert.body)
        {
            self.tell_half(ground, &advert, twin);
        }
        self.broadcast(ground, published);
        advert
    }

    /// A member tells half of the others another thing under the same number.
    fn tell_half(&mut self, ground: &mut Ground<'_>, said: &Accepted, body: Body) {
        let Some(member) = ground.number_of(said.author) else {
            return;
        };
        let advert = Advert {
            body,
            ..said.advert.clone()
        };
        let id = AdvertId::of(&[said.id.as_bytes().as_slice(), b"told otherwise"].concat());
        let published = Arc::new(Published {
            advert: Arc::new(Accepted { id, advert }),
            author: member,
            bytes: 0,
            can_wait: false,
        });
        self.remember(Arc::clone(&published));
        self.twins.insert(said.id, id);
        self.twins.insert(id, said.id);
        // It is the first that they hear: what comes later under the same number is taken for a repetition.
        for other in (0..ground.members.len()).filter(|other| *other != member && other % 2 == 0) {
            self.told_otherwise.insert((other, said.id));
            ground.schedule(
                Duration::ZERO,
                Event::Deliver(other, Arc::clone(&published)),
            );
        }
    }

    /// Tells whether a member takes an advert for the repetition of one that it has heard.
    fn is_repetition(&self, member: usize, advert: AdvertId) -> bool {
        self.told_otherwise.contains(&(member, advert))
    }

    fn remember(&mut self, published: Arc<Published>) {
        self.published.push(published);
        let most = self.kept_per_member * self.inboxes.len();
        if self.published.len() > 2 * most {
            let older = self.published.drain(..most);
            let words = older.filter(|published| !matches!(published.advert.body, Body::Local(_)));
            let words: Vec<Arc<Published>> = words.collect();
            let newest = words.len().saturating_sub(KEPT_WORDS.min(most / 4));
            self.published.splice(..0, words.into_iter().skip(newest));
        }
    }

    /// Sends an advert to those whom it is for: everybody, or the author's followers.
    fn broadcast(&mut self, ground: &mut Ground<'_>, published: Arc<Published>) {
        let advert = &published.advert;
        let is_for_all =
            ground
                .broadcast_set
                .is_for_everybody(advert.author, advert.round, &advert.body);
        if is_for_all {
            for other in 0..ground.members.len() {
                self.send(ground, &published, other);
            }
            return;
        }
        let author = published.author;
        for follower in ground.members[author].followers.clone() {
            self.send(ground, &published, follower);
        }
        ground.members[author].last_to_followers = Some(published);
    }

    fn send(&mut self, ground: &mut Ground<'_>, published: &Arc<Published>, to: usize) {
        if to != published.author && !self.is_repetition(to, published.advert.id) {
            let delay = ground.network.gossip_time(&mut ground.rng);
            self.post(ground, to, ground.now() + delay, published);
        }
    }

    /// Lets an advert arrive at a time: in the inbox, if it can wait there.
    fn post(
        &mut self,
        ground: &mut Ground<'_>,
        to: usize,
        at: Timestamp,
        published: &Arc<Published>,
    ) {
        let inbox = &mut self.inboxes[to];
        let author = published.advert.author;
        let is_awaited = inbox.attention.is_paid_to(author);
        if !published.can_wait || is_awaited || !ground.network.is_whole() {
            let deliver = Event::Deliver(to, Arc::clone(published));
            return ground.queue.push(at, deliver);
        }
        inbox.waiting.push((at, Arc::clone(published)));
        if inbox.waiting.len() >= MAX_WAITING {
            self.read_inbox(ground, to);
        }
    }

    /// Gives a member what has arrived and could wait, in the order in which it was published.
    pub(super) fn read_inbox(&mut self, ground: &mut Ground<'_>, member: usize) {
        let now = ground.now();
        let reader = &mut ground.members[member];
        let Machine::Node(node) = &mut reader.machine else {
            return;
        };
        let waiting = &mut self.inboxes[member].waiting;
        for (_, published) in waiting.extract_if(.., |(at, _)| *at <= now) {
            ground.outcome.deliveries += 1;
            reader.received.gossip += published.bytes;
            let input = Input::Advert(Arc::clone(&published.advert));
            ground.observer.input(now, member, &input);
            node.record_update(&published.advert);
        }
    }

    /// Looks whose updates matter to a member now; those of them that are under way will arrive by themselves.
    pub(super) fn attend(&mut self, ground: &mut Ground<'_>, member: usize) {
        let Some(node) = ground.members[member].machine.node() else {
            return;
        };
        let inbox = &mut self.inboxes[member];
        inbox.attention = Attention::of(node);
        let attention = inbox.attention;
        let matters = |published: &Published| attention.is_paid_to(published.advert.author);
        for (at, published) in inbox
            .waiting
            .extract_if(.., |(_, published)| matters(published))
        {
            let deliver = Event::Deliver(member, published);
            ground.queue.push(at, deliver);
        }
    }

    /// Lets all that waits arrive by itself, before anybody goes, comes or is cut off.
    pub(super) fn empty_inboxes(&mut self, ground: &mut Ground<'_>) {
        for member in 0..ground.members.len() {
            self.read_inbox(ground, member);
            for (at, published) in self.inboxes[member].waiting.drain(..) {
                let deliver = Event::Deliver(member, published);
                ground.queue.push(at, deliver);
            }
            self.inboxes[member].attention = Attention::TO_ALL;
        }
    }

    /// A member asks for adverts by name: whoever has them sends them.
    pub(super) fn answer(&self, ground: &mut Ground<'_>, member: usize, lacking: &[Lacking]) {
        for asked in lacking {
            let mut published = self.published.iter().rev();
            let found = published.find(|published| published.advert.id == asked.advert);
            let Some(published) = found else {
                continue;
            };
            let delay = 2 * ground.latency();
            ground.schedule(delay, Event::Deliver(member, Arc::clone(published)));
            if self.twins.contains_key(&asked.advert) {
                prove(ground, asked.author);
            }
        }
    }

    /// Sync brings a member what was published while it was away: everybody's last few adverts.
    pub(super) fn catch_up(&self, ground: &mut Ground<'_>, member: usize) {
        let mut per_author: BTreeMap<usize, u32> = BTreeMap::new();
        let mut missed = Vec::new();
        let newest_first = self.published.iter().rev();
        for published in newest_first.take(LOOKED_THROUGH * ground.members.len()) {
            let (author, advert) = (published.author, &published.advert);
            let broadcast_set = &ground.broadcast_set;
            let is_for_all =
                broadcast_set.is_for_everybody(advert.author, advert.round, &advert.body);
            if !is_for_all && !ground.members[member].follows.contains(&author) {
                continue;
            }
            let count = per_author.entry(author).or_default();
            *count += 1;
            if *count <= KEPT_PER_AUTHOR {
                missed.push(Arc::clone(advert));
            }
        }
        for advert in missed.into_iter().rev() {
            let delay = ground.latency();
            ground.input_after(delay, member, Input::Advert(advert));
        }
    }
}

/// Somebody has both of two adverts that were signed under one number: everybody hears of it.
fn prove(ground: &mut Ground<'_>, liar: NodeId) {
    for other in 0..ground.members.len() {
        let delay = 2 * ground.latency();
        ground.input_after(delay, other, Input::Equivocated { node: liar });
    }
}

/// Names an advert. Nothing is signed here, so its number stands for its bytes.
fn name_of(advert: &Advert) -> AdvertId {
    let Sequence {
        incarnation,
        counter,
    } = advert.sequence;
    let bytes = [
        advert.author.as_bytes().as_slice(),
        &incarnation.to_le_bytes(),
        &counter.to_le_bytes(),
    ];
    AdvertId::of(&bytes.concat())
}

/// A member receives from these from now on, beside those from whom everybody does, and first what each published last.
pub(super) fn follow(ground: &mut Ground<'_>, member: usize, nodes: &[NodeId]) {
    let authors: BTreeSet<usize> = nodes
        .iter()
        .filter_map(|node| ground.number_of(*node))
        .collect();
    let before = std::mem::replace(&mut ground.members[member].follows, authors.clone());
    for author in before.difference(&authors) {
        ground.members[*author].followers.remove(&member);
    }
    for author in authors.difference(&before) {
        ground.members[*author].followers.insert(member);
        if let Some(published) = ground.members[*author].last_to_followers.clone() {
            let delay = 2 * ground.latency();
            ground.schedule(delay, Event::Deliver(member, published));
        }
    }
}

/// An advert is there. Returns the input that it is, unless nobody is there to take it.
pub(super) fn deliver(
    ground: &mut Ground<'_>,
    member: usize,
    published: Arc<Published>,
) -> Option<Input> {
    let network = &ground.network;
    if !network.is_up(member) {
        return None; // It gets what it missed when it comes back.
    }
    let author = published.author;
    if !network.reaches(member, author) && network.is_up(author) {
        // The author is on the other side of a partition.
        let delay = network.sync_time(&mut ground.rng);
        ground.schedule(delay, Event::Deliver(member, published));
        return None;
    }
    ground.outcome.deliveries += 1;
    ground.members[member].received.gossip += published.bytes;
    Some(Input::Advert(Arc::clone(&published.advert)))
}

/// What an omniscient observer sees.
fn observe_proxies(ground: &mut Ground<'_>, blobs: &Blobs, advert: &Advert) {
    let Body::Local(local) = &advert.body else {
        return;
    };
    let set = match &local.proxies {
        Some(ProxyOffer::Inline(inline)) => inline.decoded().ok(),
        Some(ProxyOffer::Blob(blob)) => blobs
            .content(&blob.id)
            .and_then(|params| ProxySet::from_params(params).ok())
            .map(Arc::new),
        None => None,
    };
    if let Some(set) = set {
        let seen = &mut ground.outcome.observed.proxies;
        let of_round = seen.entry((advert.round, local.lineage)).or_default();
        of_round.insert(advert.author, set);
    }
}
