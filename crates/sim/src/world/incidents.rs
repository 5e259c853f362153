//! What goes wrong in a scenario: deaths and returns, comings and goings, partitions and their end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{DETECTION, Event, KEPT_ADVERTS, Machine, World, new_machine};
use crate::scenario::Incident;
use fednode_engine::Aggregator;
use fednode_engine::Input;
use fednode_engine::Node;

impl World<'_> {
    pub(super) fn strike_with(&mut self, incident: Incident) {
        self.empty_inboxes();
        (self.pending_incidents, self.changed) = (self.pending_incidents - 1, true);
        match incident {
            Incident::Kill(member) => self.take_down(member),
            Incident::Restart(member) => self.bring_back(member),
            Incident::Join(member) => {
                self.network.set_up(member, true);
                self.greet(member);
                self.catch_up(member);
            }
            Incident::Leave(member) => {
                self.give(member, Input::Leave);
                self.take_down(member);
            }
            Incident::Partition(island) => self.split(island.into_iter().collect()),
            Incident::Heal => self.heal(),
        }
    }

    fn take_down(&mut self, member: usize) {
        let connections = self.network.connections(member);
        self.network.set_up(member, false);
        for other in connections {
            self.schedule(DETECTION, Event::Notice(other, member));
        }
    }

    fn bring_back(&mut self, number: usize) {
        let member = &mut self.members[number];
        member.life += 1;
        member.counter = 0;
        member.timers.clear();
        let initial = self.initial;
        let is_node = number < self.scenario.nodes;
        member.machine = match (&member.checkpoint, member.head) {
            (Some(state), _) if is_node => {
                let spec = Arc::clone(&self.spec);
                Machine::Node(Box::new(Node::restore(
                    spec,
                    member.id,
                    initial,
                    state.clone(),
                )))
            }
            (_, Some(head)) if !is_node => Machine::Aggregator(Box::new(Aggregator::restore(
                Arc::clone(&self.spec),
                member.id,
                head,
            ))),
            _ => new_machine(&self.spec, member.id, is_node, initial),
        };
        if is_node {
            self.trainers().restore(number);
        }
        self.network.set_up(number, true);
        self.greet(number);
        self.catch_up(number);
    }

    /// Sync brings a member what was said while it was away: everybody's last few adverts.
    fn catch_up(&mut self, member: usize) {
        let mut per_author: BTreeMap<usize, u32> = BTreeMap::new();
        let mut missed = Vec::new();
        for said in self.adverts.iter().rev().take(20 * self.members.len()) {
            let author = self.members[said.author].id;
            let is_heard = self
                .audience
                .is_everybody(author, said.advert.round, &said.advert.body);
            if !is_heard && !self.members[member].follows.contains(&said.author) {
                continue;
            }
            let count = per_author.entry(said.author).or_default();
            *count += 1;
            if *count <= KEPT_ADVERTS {
                missed.push(Arc::clone(&said.advert));
            }
        }
        for advert in missed.into_iter().rev() {
            let delay = self.network.latency(&mut self.rng);
            self.input_after(delay, member, Input::Advert(advert));
        }
    }

    fn split(&mut self, island: BTreeSet<usize>) {
        let before: Vec<Vec<usize>> = (0..self.members.len())
            .map(|member| self.network.connections(member))
            .collect();
        self.network.set_island(Some(island));
        for (member, connections) in before.into_iter().enumerate() {
            for other in connections {
                self.schedule(DETECTION, Event::Notice(member, other));
            }
        }
    }

    fn heal(&mut self) {
        self.network.set_island(None);
        for member in 0..self.members.len() {
            for other in self
                .network
                .connections(member)
                .into_iter()
                .filter(|other| *other < member)
            {
                let delay = self.network.latency(&mut self.rng);
                self.introduce(delay, member, other);
            }
        }
    }
}
