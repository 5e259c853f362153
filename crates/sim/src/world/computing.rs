//! What is computed for members: local updates, merges and means.
//!
//! The first time the trainers compute it; in a run that is gone on with it comes from the history, and the trainers
//! hear of nothing.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{Order, WorkError};
use fednode_core::{
    BlobId, BlobRef, ExpertOffer, InlineProxies, LocalReport, ParamSet, Precision, ProxyOffer,
    ProxySet, Round,
};
use fednode_engine::masks::{Masked, UnmaskOrder};
use fednode_engine::{
    AverageOrder, AverageReport, Input, MergeOrder, MergeReport, Purpose, execute,
};
use rand::Rng;

use super::blobs::Blobs;
use super::ground::Ground;
use super::masking::Part;
use super::{COMPUTING, Event, masking, spoiling};
use crate::failure::Failure;
use crate::history::{Answer, Made, Moment, Past, Silent, Told};
use crate::scenario::Behaviour;
use crate::trainers::Trainers;

/// Whoever computes: the trainers, or the history of an interrupted run.
pub(super) struct Computing<'a> {
    trainers: &'a mut dyn Trainers,
    /// What is played again first, while the trainers are not to hear of it.
    past: Option<Past>,
    silent: Silent,
    /// Events that have happened.
    events: u64,
}

impl<'a> Computing<'a> {
    pub(super) fn new(trainers: &'a mut dyn Trainers, past: Option<Past>) -> Self {
        Self {
            trainers,
            past,
            silent: Silent,
            events: 0,
        }
    }

    /// Returns whoever trains, unless the past is played again.
    pub(super) fn trainers(&mut self) -> &mut dyn Trainers {
        match self.past {
            Some(_) => &mut self.silent,
            None => self.trainers,
        }
    }

    /// Counts an event that has happened.
    pub(super) fn count_event(&mut self) {
        self.events += 1;
    }

    /// Goes over from the past to the present when all events of the past have happened.
    pub(super) fn awake(&mut self, ground: &mut Ground<'_>, blobs: &mut Blobs) {
        let Some(mut past) = self.past.take_if(|past| past.events == self.events) else {
            return;
        };
        if !blobs.recall(past.contents) || past.answers.next().is_some() {
            ground.outcome.failed = Some((0, Failure::NotThisRun));
        }
    }

    /// Waits until what was begun last for a member is ready; tells whether to stop instead.
    pub(super) fn waits_in_vain(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &Blobs,
        member: usize,
    ) -> bool {
        while !self.trainers().is_ready(member) {
            if self.pauses(ground, blobs) {
                return true;
            }
        }
        false
    }

    /// Gives whoever trains a moment to look around; tells whether to stop.
    pub(super) fn pauses(&mut self, ground: &mut Ground<'_>, blobs: &Blobs) -> bool {
        let moment = Moment {
            events: self.events,
            contents: blobs.contents(),
            is_past: self.past.is_some(),
        };
        ground.outcome.stopped = self.trainers.pauses(&moment);
        ground.outcome.stopped
    }

    /// Returns what a member is told that was computed for it; nothing if that failed, which ends the run.
    pub(super) fn answer(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        compute: impl FnOnce(&mut dyn Trainers, &mut Ground<'_>, &mut Blobs) -> Result<Told, WorkError>,
    ) -> Option<Input> {
        let told = match &mut self.past {
            Some(past) => remembered(past, blobs, member),
            None => compute(self.trainers, ground, blobs)
                .map_err(Failure::Work)
                .map(|told| {
                    let made = blobs.take_made();
                    let answer = Answer { member, told, made };
                    self.trainers.remember(&answer);
                    answer.told
                }),
        };
        match told {
            Ok(told) => Some(told.into()),
            Err(failure) => {
                ground.outcome.failed = Some((member, failure));
                None
            }
        }
    }

    pub(super) fn begin_training(&mut self, ground: &mut Ground<'_>, member: usize, round: Round) {
        let (low, high) = ground.scenario.training;
        let factor = ground.scenario.slow.get(&member).copied().unwrap_or(1);
        let time = ground.rng.random_range(low..=high) * factor;
        let life = ground.members[member].life;
        let ends = ground.now() + time;
        self.trainers().begin(member, Order::Train(round), ends);
        ground.schedule(time, Event::TrainingEnds(member, life, round));
    }

    pub(super) fn end_training(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        round: Round,
    ) -> Option<Input> {
        let trained = self.answer(ground, blobs, member, |trainers, ground, blobs| {
            trained(trainers, ground, blobs, member, round).map(Told::Trained)
        })?;
        if let Input::Trained(LocalReport {
            shared: Some(part), ..
        }) = &trained
        {
            blobs.set_apart(round, *part);
        }
        Some(trained)
    }

    pub(super) fn merge(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        order: &MergeOrder,
    ) {
        let merged = self.answer(ground, blobs, member, |trainers, ground, blobs| {
            Ok(Told::Merged(merged(trainers, ground, blobs, member, order)))
        });
        if let Some(merged) = merged {
            ground.input_after(COMPUTING, member, merged);
        }
    }

    pub(super) fn average(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        order: &AverageOrder,
    ) {
        let averaged = self.answer(ground, blobs, member, |_, ground, blobs| {
            Ok(Told::Averaged(averaged(ground, blobs, member, order)))
        });
        if let Some(averaged) = averaged {
            ground.input_after(COMPUTING, member, averaged);
        }
    }

    pub(super) fn unmask(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        member: usize,
        order: UnmaskOrder,
    ) {
        let said = self.answer(ground, blobs, member, |_, ground, _| {
            let round = order.sum.round();
            Ok(Told::Unmasked(
                round,
                masking::unmask(ground, member, order),
            ))
        });
        if let Some(said) = said {
            ground.input_after(Duration::ZERO, member, said);
        }
    }

    pub(super) fn save(&mut self, ground: &mut Ground<'_>, member: usize) {
        ground.members[member].save();
        if ground.is_node(member) {
            self.trainers().save(member);
        }
    }
}

/// Returns what a member was told the first time, and makes the blobs again that it had since.
fn remembered(past: &mut Past, blobs: &mut Blobs, member: usize) -> Result<Told, Failure> {
    let answer = past.answers.next();
    let answer = answer.filter(|answer| answer.member == member);
    let answer = answer.ok_or(Failure::NotThisRun)?;
    for Made {
        blob,
        round,
        proxies,
    } in answer.made
    {
        let params = match proxies {
            Some(bytes) => ParamSet::decode(&bytes).map_err(|_| Failure::NotThisRun)?,
            // What it holds is known at the end of the past, if it is still held then.
            None => ParamSet::new(),
        };
        blobs.keep(member, round, blob, Arc::new(params));
    }
    Ok(answer.told)
}

/// Ends a local update: what the trainer made becomes blobs, spoiled by those that misbehave.
fn trained(
    trainers: &mut dyn Trainers,
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    round: Round,
) -> Result<LocalReport, WorkError> {
    let outcome = trainers.end(member)?;
    let update = outcome.into_update()?;
    let shared = match ground.behaviour(member) {
        Some(Behaviour::ForeignShape) => {
            let proxies = update.proxies.as_ref();
            proxies.map(|proxies| Arc::new(proxies.to_params()))
        }
        behaviour => match spoiling::of_part(behaviour) {
            Some(spoiling) => {
                let given = given_to(ground, blobs, member);
                let given = given.as_deref();
                update.shared.map(|part| spoiling.apply(part, given))
            }
            None => update.shared,
        },
    };
    let masked = masking::mask(ground, member, round, shared, update.n_samples)?;
    let shared = match masked.part {
        Some(Part::Own(part)) => Some(blobs.put(member, round, part)),
        Some(Part::Mean(blob)) => Some(blob),
        None => None,
    };
    let (experts, own_experts) = offer_experts(update.experts, ground, blobs, member, round);
    let refreshes = ground.schedule.refreshes_in(round);
    let proxies = update.proxies.filter(|_| refreshes);
    let sketched = proxies.as_ref().filter(|_| ground.spec.uses_sketches());
    let sketches =
        sketched.map(|proxies| fednode_mix::sketch::sketches(proxies, ground.spec.draw_seed()));
    let proxies = proxies.map(|proxies| offer(ground, blobs, member, round, &proxies));
    Ok(LocalReport {
        round,
        lineage: BlobId::of(b""),
        shared,
        experts,
        own_experts,
        proxies,
        sketches,
        n_samples: update.n_samples,
        train_loss: update.train_loss,
        expert_share: update.expert_share,
        offer: masked.offer,
    })
}

/// Returns the mean that a member trained from.
fn given_to(ground: &Ground<'_>, blobs: &Blobs, member: usize) -> Option<Arc<ParamSet>> {
    let node = ground.members[member].machine.node()?;
    let mean = node.head().mean.or(ground.initial)?;
    blobs.content(&mean.id).cloned()
}

/// Turns experts into blobs: those that are offered, and the exact ones where others are sent.
fn offer_experts(
    experts: Vec<(Arc<ParamSet>, u32)>,
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    round: Round,
) -> (Vec<ExpertOffer>, Vec<BlobRef>) {
    let precision = ground.spec.transfer.precision;
    let behaviour = ground.behaviour(member);
    let spoiling = spoiling::of_experts(behaviour);
    let (mut offers, mut own_experts) = (Vec::new(), Vec::new());
    for (mut params, samples_routed) in experts {
        if let Some(spoiling) = spoiling {
            params = spoiling.apply(params, None);
        }
        if precision != Precision::F32 {
            own_experts.push(blobs.put(member, round, Arc::clone(&params)));
        }
        let blob = blobs.put_to_send(member, round, params, precision);
        if spoiling::is_invalid(behaviour) {
            ground.outcome.observed.invalid.insert(blob.id);
        }
        offers.push(ExpertOffer {
            blob,
            samples_routed,
        });
    }
    (offers, own_experts)
}

/// Small proxies go inside the advert, others become a blob, as in the daemon.
fn offer(
    ground: &Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    round: Round,
    proxies: &ProxySet,
) -> ProxyOffer {
    let params = proxies.to_params();
    let bytes = params.to_bytes();
    if bytes.len() <= ground.scenario.inline_proxy_bytes {
        ProxyOffer::Inline(InlineProxies::new(bytes))
    } else {
        ProxyOffer::Blob(blobs.put_proxies(member, round, params))
    }
}

fn merged(
    trainers: &mut dyn Trainers,
    ground: &mut Ground<'_>,
    blobs: &Blobs,
    member: usize,
    order: &MergeOrder,
) -> MergeReport {
    let me = ground.members[member].id;
    let own_shared = trainers.shared(member);
    let mut load = |blob: &BlobId| blobs.load(member, blob);
    let own_shared = own_shared.as_deref();
    let (adoption, report) = execute::merge(order, &ground.spec, me, own_shared, &mut load);
    if ground.scenario.observe {
        let observed = &mut ground.outcome.observed;
        let is_honest = !ground.scenario.behaviours.contains_key(&member);
        let used = adoption.used.iter().flat_map(|(_, sources)| sources);
        let foreign = used.filter(|(expert, _)| expert.owner != me);
        for (expert, _) in foreign.filter(|_| is_honest) {
            let blob = order.sources[expert].id;
            observed.used.push((member, order.round, *expert, blob));
        }
        if let (Some(_), Some(BlobRef { id, .. })) = (&adoption.shared, order.adopt) {
            observed.adopted.push((member, order.round, id));
        }
    }
    trainers.adopt(member, order.round, adoption);
    report
}

fn averaged(
    ground: &mut Ground<'_>,
    blobs: &mut Blobs,
    member: usize,
    order: &AverageOrder,
) -> AverageReport {
    let mut load = |blob: &BlobId| blobs.load(member, blob);
    let behaviour = ground.behaviour(member);
    let mut order = order.clone();
    let purpose = order.purpose;
    if behaviour == Some(Behaviour::Unscreened) {
        // Whoever verifies takes all that was counted, as it is.
        order.purpose = Purpose::Verify(0);
    }
    let (mean, mut report) = execute::average(&order, &ground.spec, &mut load);
    report.purpose = purpose;
    let Some(mut mean) = mean else {
        return report;
    };
    // Where nothing is added up, everybody knows what the mean is: the one that all started from.
    let adds_up = |masked: &Masked| !masked.sum().summed(&order.members).is_empty();
    let adds_up = order.masked.as_deref().is_none_or(adds_up);
    let lies = behaviour == Some(Behaviour::FalseMean) && purpose == Purpose::Close && adds_up;
    if lies {
        mean.iter_mut()
            .for_each(|(_, tensor)| tensor.values_mut()[0] += 0.5);
    }
    let blob = blobs.put(member, order.round, Arc::new(mean));
    if lies {
        ground.outcome.observed.false_means.insert(blob.id);
    }
    report.mean = Some(blob);
    report
}
