//! The stage after the last round: private modules and the pools made of them.

use std::sync::Arc;

use fednode_core::Round;

use super::super::scenario::Behaviour;
use super::{Event, World};
use crate::event::{Input, ModuleReport, PoolOrder};

impl World<'_> {
    pub(super) fn begin_module(&mut self, member: usize, round: Round) {
        self.trainers.begin_module(member, round);
        let life = self.members[member].life;
        self.schedule(self.scenario.training.1, Event::ModuleEnds(member, life, round));
    }

    pub(super) fn end_module(&mut self, member: usize, round: Round) {
        let module = match self.trainers.finish_module(member) {
            Ok(module) => module,
            Err(reason) => {
                self.outcome.failed = Some((member, reason));
                return;
            }
        };
        let spoils = self.scenario.behaviours.get(&member) == Some(&Behaviour::NanExperts);
        let report = module.map(|mut module| {
            if spoils {
                let params = Arc::make_mut(&mut module.params);
                params.iter_mut().for_each(|(_, tensor)| tensor.values_mut()[0] = f32::NAN);
            }
            let blob = self.put_to_send(member, round, module.params);
            if spoils {
                self.outcome.invalid.insert(blob.id);
            }
            ModuleReport { kind: module.kind, blob, score: module.score }
        });
        self.give(member, Input::Module(report));
    }

    pub(super) fn begin_pool(&mut self, member: usize, order: PoolOrder) {
        let held = order.members.iter().filter(|(_, blob)| self.members[member].held.contains(&blob.id));
        let modules = held.filter_map(|(node, blob)| Some((*node, Arc::clone(self.contents.get(&blob.id)?)))).collect();
        self.trainers.begin_pool(member, modules);
        let life = self.members[member].life;
        self.schedule(self.scenario.training.1, Event::PoolEnds(member, life, Box::new(order)));
    }

    pub(super) fn end_pool(&mut self, member: usize, order: &PoolOrder) {
        let report = match self.trainers.finish_pool(member) {
            Ok(report) => report,
            Err(reason) => {
                self.outcome.failed = Some((member, reason));
                return;
            }
        };
        let is_refused = |node| report.refused.iter().any(|(refused, _)| *refused == node);
        let members = order.members.iter().filter(|(node, _)| !is_refused(*node)).copied().collect();
        self.outcome.pools.push((member, members));
        self.give(member, Input::Pooled(report));
    }
}
