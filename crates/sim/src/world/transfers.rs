//! How blobs travel: somebody who holds it is looked for, it takes its time, it may turn out corrupt.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::{BlobId, ProxySet};

use super::{Event, RETRY, World};
use crate::scenario::Behaviour;
use fednode_engine::{Fetch, FetchKind, Input};

impl World<'_> {
    pub(super) fn seek(&mut self, member: usize, fetch: Box<Fetch>) {
        let life = self.members[member].life;
        if self.members[member].held.contains(&fetch.blob.id) {
            return self.answer_fetch(member, &fetch);
        }
        if self.queue.now() >= fetch.until {
            return self.give(member, Input::FetchFailed(fetch.blob.id));
        }
        match self.provider(member, &fetch) {
            Some(provider) => {
                let time = self.network.transfer_time(fetch.blob.size, &mut self.rng);
                self.schedule(time, Event::Arrive(member, life, fetch, provider));
            }
            None => self.schedule(RETRY, Event::Seek(member, life, fetch)),
        }
    }

    /// Returns a reachable holder that has not served this member corrupt bytes before.
    fn provider(&self, member: usize, fetch: &Fetch) -> Option<usize> {
        let named = fetch
            .from
            .iter()
            .filter_map(|node| self.numbers.get(node))
            .copied();
        let others = self
            .holders
            .get(&fetch.blob.id)
            .into_iter()
            .flatten()
            .copied();
        let serves = |other: &usize| {
            *other != member
                && self.members[*other].held.contains(&fetch.blob.id)
                && self.network.reaches(member, *other)
                && !self.members[member].corrupt_seen.contains(other)
        };
        named.chain(others).find(serves)
    }

    pub(super) fn arrive(&mut self, member: usize, fetch: Box<Fetch>, from: usize) {
        let life = self.members[member].life;
        if !self.network.reaches(member, from) {
            return self.schedule(RETRY, Event::Seek(member, life, fetch));
        }
        if self.scenario.behaviours.get(&from) == Some(&Behaviour::CorruptServer) {
            self.members[member].corrupt_seen.insert(from);
            self.outcome
                .strikes
                .push((member, self.members[from].id, "corrupt segment".into()));
            return self.schedule(Duration::ZERO, Event::Seek(member, life, fetch));
        }
        if self.members[member].held.contains(&fetch.blob.id) {
            return self.answer_fetch(member, &fetch);
        }
        self.outcome.blob_bytes += fetch.blob.size;
        let holds = |who: usize, blob: &BlobId| self.members[who].held.contains(blob);
        let both = fetch
            .base
            .is_some_and(|base| holds(member, &base) && holds(from, &base));
        self.outcome.fetched_after += u64::from(both);
        self.count_transfer(from, member, fetch.blob.size);
        if self.scenario.observe {
            *self
                .outcome
                .fetches
                .entry((member, fetch.blob.id))
                .or_default() += 1;
        }
        self.hold(member, fetch.blob.id);
        self.answer_fetch(member, &fetch);
    }

    fn count_transfer(&mut self, from: usize, to: usize, size: u64) {
        let with_aggregator = from.max(to) >= self.scenario.nodes;
        for (member, incoming) in [(from, false), (to, true)] {
            let member = &mut self.members[member];
            let bytes = if incoming {
                &mut member.received
            } else {
                &mut member.sent
            };
            let counter = if with_aggregator {
                &mut bytes.aggregator
            } else {
                &mut bytes.peer_to_peer
            };
            *counter += size;
        }
    }

    fn answer_fetch(&mut self, member: usize, fetch: &Fetch) {
        let blob = fetch.blob.id;
        let input = match fetch.kind {
            FetchKind::Proxies => match self.decoded_proxies(blob) {
                Some(proxies) => Input::Proxies { blob, proxies },
                None => Input::FetchFailed(blob),
            },
            FetchKind::Expert | FetchKind::Shared | FetchKind::Module => Input::Fetched(blob),
        };
        self.give(member, input);
    }

    /// Returns proxies decoded; all members that fetch them share one copy.
    fn decoded_proxies(&mut self, blob: BlobId) -> Option<Arc<ProxySet>> {
        if let Some(known) = self.proxies.get(&blob) {
            return Some(Arc::clone(known));
        }
        let set = Arc::new(ProxySet::from_params(self.contents.get(&blob)?).ok()?);
        self.proxies.insert(blob, Arc::clone(&set));
        Some(set)
    }
}
