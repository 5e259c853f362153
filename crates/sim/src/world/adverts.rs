//! How adverts spread: to everybody, each after its own delay, to some only with a later sync.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    ADVERT_LIFE, Advert, BlobId, Body, Fault, NodeId, ParamSet, ProxyOffer, ProxySet, Round,
    Sequence,
};

use super::{Event, Said, World};
use crate::attention::is_mere_update;
use crate::scenario::Behaviour;
use fednode_engine::Input;

impl World<'_> {
    pub(super) fn publish(&mut self, member: usize, round: Round, body: Body) {
        let author = &mut self.members[member];
        author.counter += 1;
        let sequence = Sequence {
            incarnation: author.life,
            counter: author.counter,
        };
        let advert = Arc::new(Advert {
            federation: self.federation,
            author: author.id,
            sequence,
            round,
            issued_at: self.queue.now(),
            expires_at: self.queue.now() + ADVERT_LIFE,
            body,
        });
        if self.scenario.observe {
            self.record_proxies(&advert);
        }
        let bytes = (self.scenario.advert_bytes)(&advert);
        self.members[member].sent.gossip += bytes;
        let can_wait = is_mere_update(&advert, &self.spec);
        let said = Arc::new(Said {
            advert: Arc::clone(&advert),
            author: member,
            bytes,
            can_wait,
        });
        self.adverts.push(Arc::clone(&said));
        self.forget_old_adverts();
        self.input_after(Duration::ZERO, member, Input::Advert(Arc::clone(&advert)));
        match self
            .audience
            .is_everybody(advert.author, round, &advert.body)
        {
            true => (0..self.members.len()).for_each(|other| self.send(&said, other)),
            false => {
                let followers = std::mem::take(&mut self.members[member].followers);
                followers
                    .iter()
                    .for_each(|follower| self.send(&said, *follower));
                let author = &mut self.members[member];
                (author.followers, author.whispered) = (followers, Some(said));
            }
        }
        self.accuse_if_false_accuser(member, &advert);
    }

    fn send(&mut self, said: &Arc<Said>, to: usize) {
        if to != said.author {
            let delay = self.network.gossip_time(&mut self.rng);
            self.post(to, self.queue.now() + delay, said);
        }
    }

    /// A member hears these from now on beside those whom everybody hears, and first what each of them said last.
    pub(super) fn follow(&mut self, member: usize, nodes: &[NodeId]) {
        let authors: BTreeSet<usize> = nodes
            .iter()
            .filter_map(|node| self.numbers.get(node))
            .copied()
            .collect();
        let before = std::mem::replace(&mut self.members[member].follows, authors.clone());
        for author in before.difference(&authors) {
            self.members[*author].followers.remove(&member);
        }
        for author in authors.difference(&before) {
            self.members[*author].followers.insert(member);
            if let Some(said) = self.members[*author].whispered.clone() {
                let delay = 2 * self.network.latency(&mut self.rng);
                self.schedule(delay, Event::Deliver(member, said));
            }
        }
    }

    /// What an omniscient observer sees.
    pub(super) fn record_proxies(&mut self, advert: &Advert) {
        let Body::Local(local) = &advert.body else {
            return;
        };
        let set = match &local.proxies {
            Some(ProxyOffer::Inline(bytes)) => ParamSet::decode(bytes)
                .and_then(|params| ProxySet::from_params(&params))
                .ok(),
            Some(ProxyOffer::Blob(blob)) => self
                .contents
                .get(&blob.id)
                .and_then(|p| ProxySet::from_params(p).ok()),
            None => None,
        };
        if let Some(set) = set {
            let round = self
                .outcome
                .proxies
                .entry((advert.round, local.lineage))
                .or_default();
            round.insert(advert.author, Arc::new(set));
        }
    }

    /// A liar that hears a closed round accuses its author.
    pub(super) fn accuse_if_false_accuser(&mut self, author: usize, advert: &Advert) {
        let Body::Global(global) = &advert.body else {
            return;
        };
        let liars: Vec<usize> = self
            .scenario
            .behaviours
            .iter()
            .filter(|(member, behaviour)| {
                **behaviour == Behaviour::FalseAccuser && **member != author
            })
            .map(|(member, _)| *member)
            .collect();
        for liar in liars {
            let accused = self.members[author].id;
            let actual = BlobId::of(b"a lie");
            let body = Body::Fault(Fault {
                accused,
                evidence: global.clone(),
                actual,
            });
            self.publish(liar, advert.round, body);
        }
    }

    pub(super) fn deliver(&mut self, member: usize, said: Arc<Said>) {
        if !self.network.is_up(member) {
            return; // It gets what it missed when it comes back.
        }
        let same_side =
            self.network.reaches(member, said.author) || !self.network.is_up(said.author);
        if !same_side {
            let delay = self.network.sync_time(&mut self.rng);
            return self.schedule(delay, Event::Deliver(member, said));
        }
        self.outcome.deliveries += 1;
        self.members[member].received.gossip += said.bytes;
        self.give(member, Input::Advert(Arc::clone(&said.advert)));
    }
}
