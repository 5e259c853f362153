//! The stage after the last round: private modules and the pools made of them.

use fednode_core::Round;
use fednode_core::work::{Order, WorkError};
use fednode_engine::{Input, ModuleReport, PoolOrder, PoolReport};

use super::blobs::Blobs;
use super::computing::Computing;
use super::ground::Ground;
use super::{Event, spoiling};
use crate::history::Told;
use crate::scenario::Behaviour;
use crate::trainers::Trainers;

impl Computing<'_> {
    pub(super) fn begin_module(&mut self, ground: &mut Ground<'_>, member: usize, round: Round) {
        let time = ground.scenario.training.1;
        let ends = ground.now() + time;
        self.trainers().begin(member, Order::MakeModule, ends);
        let life = ground.members[member].life;
        ground.schedule(time, Event::ModuleEnds(member, life, round));
    }

    pub(super) fn end_module(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        round: Round,
    ) -> Option<Input> {
        self.answer(ground, blobs, member, |trainers, ground, blobs| {
            module(trainers, ground, blobs, member, round).map(Told::Module)
        })
    }

    pub(super) fn begin_pool(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &Blobs,
        member: usize,
        order: PoolOrder,
    ) {
        let offered = order.members.iter();
        let modules = offered
            .filter_map(|(node, blob)| Some((*node, blobs.load(member, &blob.id)?)))
            .collect();
        let time = ground.scenario.training.1;
        let ends = ground.now() + time;
        self.trainers()
            .begin(member, Order::AssemblePool(modules), ends);
        let life = ground.members[member].life;
        ground.schedule(time, Event::PoolEnds(member, life, Box::new(order)));
    }

    pub(super) fn end_pool(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        order: &PoolOrder,
    ) -> Option<Input> {
        let pooled = self.answer(ground, blobs, member, |trainers, _, _| {
            let outcome = trainers.end(member)?;
            let pool = outcome.into_pool()?;
            Ok(Told::Pooled(PoolReport {
                refused: pool.refused,
            }))
        })?;
        if let Input::Pooled(report) = &pooled {
            let is_refused = |node| report.refused.iter().any(|(refused, _)| *refused == node);
            let members = order.members.iter();
            let taken_in = members.filter(|(node, _)| !is_refused(*node)).copied();
            let pool = (member, taken_in.collect());
            ground.outcome.observed.pools.push(pool);
        }
        Some(pooled)
    }
}

/// Ends the making of a module: it becomes a blob, spoiled by those that misbehave, unless its owner keeps it.
fn module(
    trainers: &mut dyn Trainers,
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    round: Round,
) -> Result<Option<ModuleReport>, WorkError> {
    let outcome = trainers.end(member)?;
    let module = outcome.into_module()?;
    let Some(mut module) = module else {
        return Ok(None);
    };
    let behaviour = ground.behaviour(member);
    if behaviour == Some(Behaviour::KeptModule) {
        return Ok(Some(ModuleReport {
            kind: module.kind,
            blob: None,
            score: 0.0,
        }));
    }
    let spoiling = spoiling::of_module(behaviour);
    if let Some(spoiling) = spoiling {
        module.params = spoiling.apply(module.params, None);
    }
    let precision = ground.spec.transfer.precision;
    let blob = blobs.put_to_send(member, round, module.params, precision);
    if spoiling.is_some() && spoiling::is_invalid(behaviour) {
        ground.outcome.observed.invalid.insert(blob.id);
    }
    Ok(Some(ModuleReport {
        kind: module.kind,
        blob: Some(blob),
        score: module.score,
    }))
}
