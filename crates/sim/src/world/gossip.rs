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
    ADVERT_LIFE, Advert, BlobId, Body, Fault, NodeId, ProxyOffer, ProxySet, Round, Sequence,
    Timestamp,
};
use fednode_engine::Input;

use super::Event;
use super::blobs::Blobs;
use super::ground::Ground;
use super::members::Machine;
use crate::attention::{Attention, is_mere_update};
use crate::scenario::Behaviour;

/// Most updates that wait for one member.
const MAX_WAITING: usize = 1024;
/// Adverts kept per member for those who come back; an author's last few are among them.
const KEPT_PER_MEMBER: usize = 40;
/// Adverts per author that peers keep for those who missed them, as in the daemon.
const KEPT_PER_AUTHOR: u32 = 16;
/// Adverts that somebody who comes back looks through, per member.
const LOOKED_THROUGH: usize = 20;

/// An advert that was published, with what everybody who receives it would look up.
#[derive(Debug)]
pub(super) struct Published {
    advert: Arc<Advert>,
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
}

impl Gossip {
    pub(super) fn new(n_members: usize) -> Self {
        Self {
            inboxes: (0..n_members).map(|_| Inbox::default()).collect(),
            published: Vec::new(),
        }
    }

    pub(super) fn publish(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &Blobs,
        member: usize,
        round: Round,
        body: Body,
    ) {
        let now = ground.now();
        let author = &mut ground.members[member];
        author.counter += 1;
        let advert = Arc::new(Advert {
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
        });
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
        self.broadcast(ground, published);
        self.accuse_if_false_accuser(ground, blobs, member, &advert);
    }

    fn remember(&mut self, published: Arc<Published>) {
        self.published.push(published);
        let most = KEPT_PER_MEMBER * self.inboxes.len();
        if self.published.len() > 2 * most {
            self.published.drain(..most);
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
        if to != published.author {
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

    /// A liar that receives a closed round accuses its author.
    fn accuse_if_false_accuser(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &Blobs,
        author: usize,
        advert: &Advert,
    ) {
        let Body::Global(global) = &advert.body else {
            return;
        };
        let behaviours = ground.scenario.behaviours.iter();
        let liars = behaviours.filter(|(member, behaviour)| {
            **behaviour == Behaviour::FalseAccuser && **member != author
        });
        for (liar, _) in liars {
            let body = Body::Fault(Fault {
                accused: ground.members[author].id,
                evidence: global.clone(),
                actual: BlobId::of(b"a lie"),
            });
            self.publish(ground, blobs, *liar, advert.round, body);
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
