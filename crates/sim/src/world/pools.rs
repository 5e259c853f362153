//! The stage after the last round: private modules and the pools made of them.

use std::sync::Arc;

use fednode_core::Round;
use fednode_core::work::Order;

use super::{Event, World};
use crate::history::Told;
use crate::scenario::Behaviour;
use fednode_engine::{Input, ModuleReport, PoolOrder, PoolReport};

impl World<'_> {
    pub(super) fn begin_module(&mut self, member: usize, round: Round) {
        let time = self.scenario.training.1;
        let ends = self.queue.now() + time;
        self.trainers().begin(member, Order::MakeModule, ends);
        let life = self.members[member].life;
        self.schedule(time, Event::ModuleEnds(member, life, round));
    }

    pub(super) fn end_module(&mut self, member: usize, round: Round) {
        if let Some(made) = self.answer(member, |world| {
            world.module(member, round).map(Told::Module)
        }) {
            self.give(member, made);
        }
    }

    fn module(&mut self, member: usize, round: Round) -> Result<Option<ModuleReport>, String> {
        let outcome = self.trainers.end(member)?;
        let module = outcome.into_module().map_err(|error| error.to_string())?;
        let behaviour = self.scenario.behaviours.get(&member);
        let (spoils, keeps) = (
            behaviour == Some(&Behaviour::NanExperts),
            behaviour == Some(&Behaviour::KeptModule),
        );
        Ok(module.map(|mut module| {
            if keeps {
                return ModuleReport {
                    kind: module.kind,
                    blob: None,
                    score: 0.0,
                };
            }
            if spoils {
                let params = Arc::make_mut(&mut module.params);
                params
                    .iter_mut()
                    .for_each(|(_, tensor)| tensor.values_mut()[0] = f32::NAN);
            }
            let blob = self.put_to_send(member, round, module.params);
            if spoils {
                self.outcome.invalid.insert(blob.id);
            }
            ModuleReport {
                kind: module.kind,
                blob: Some(blob),
                score: module.score,
            }
        }))
    }

    pub(super) fn begin_pool(&mut self, member: usize, order: PoolOrder) {
        let held = order
            .members
            .iter()
            .filter(|(_, blob)| self.members[member].held.contains(&blob.id));
        let modules = held
            .filter_map(|(node, blob)| Some((*node, Arc::clone(self.contents.get(&blob.id)?))))
            .collect();
        let time = self.scenario.training.1;
        let ends = self.queue.now() + time;
        self.trainers()
            .begin(member, Order::AssemblePool(modules), ends);
        let life = self.members[member].life;
        self.schedule(time, Event::PoolEnds(member, life, Box::new(order)));
    }

    pub(super) fn end_pool(&mut self, member: usize, order: &PoolOrder) {
        let pooled = self.answer(member, |world| {
            let outcome = world.trainers.end(member)?;
            let pool = outcome.into_pool().map_err(|error| error.to_string())?;
            Ok(Told::Pooled(PoolReport {
                refused: pool.refused,
            }))
        });
        let Some(Input::Pooled(report)) = pooled else {
            return;
        };
        let is_refused = |node| report.refused.iter().any(|(refused, _)| *refused == node);
        let members = order
            .members
            .iter()
            .filter(|(node, _)| !is_refused(*node))
            .copied()
            .collect();
        self.outcome.pools.push((member, members));
        self.give(member, Input::Pooled(report));
    }
}
