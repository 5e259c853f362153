//! What goes wrong in a scenario: deaths and returns, comings and goings, partitions and their end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_engine::Input;

use super::ground::Ground;
use super::{Event, World};
use crate::scenario::Incident;

/// How long after a death the others notice.
const DETECTION: Duration = Duration::from_secs(2);

impl World<'_> {
    pub(super) fn handle_incident(&mut self, incident: Incident) {
        self.gossip.empty_inboxes(&mut self.ground);
        self.end.incident_is_over();
        match incident {
            Incident::Kill(member) => take_down(&mut self.ground, member),
            Incident::Restart(member) => self.bring_back(member),
            Incident::Join(member) => self.bring_up(member),
            Incident::Leave(member) => {
                self.give(member, Input::Leave);
                take_down(&mut self.ground, member);
            }
            Incident::Partition(island) => split(&mut self.ground, island.into_iter().collect()),
            Incident::Heal => heal(&mut self.ground),
        }
    }

    fn bring_back(&mut self, member: usize) {
        let (spec, initial) = (Arc::clone(&self.ground.spec), self.ground.initial);
        self.ground.members[member].restart(&spec, initial);
        if self.ground.is_node(member) {
            self.computing.trainers().restore(member);
        }
        self.bring_up(member);
    }

    fn bring_up(&mut self, member: usize) {
        self.ground.network.set_up(member, true);
        self.ground.greet(member);
        self.gossip.catch_up(&mut self.ground, member);
    }
}

fn take_down(ground: &mut Ground<'_>, member: usize) {
    let connections = ground.network.connections(member);
    ground.network.set_up(member, false);
    for other in connections {
        ground.schedule(DETECTION, Event::Notice(other, member));
    }
}

fn split(ground: &mut Ground<'_>, island: BTreeSet<usize>) {
    let members = 0..ground.members.len();
    let before: Vec<Vec<usize>> = members
        .map(|member| ground.network.connections(member))
        .collect();
    ground.network.set_island(Some(island));
    for (member, connections) in before.into_iter().enumerate() {
        for other in connections {
            ground.schedule(DETECTION, Event::Notice(member, other));
        }
    }
}

fn heal(ground: &mut Ground<'_>) {
    ground.network.set_island(None);
    for member in 0..ground.members.len() {
        let connections = ground.network.connections(member);
        for other in connections.into_iter().filter(|other| *other < member) {
            let delay = ground.latency();
            ground.introduce(delay, member, other);
        }
    }
}
