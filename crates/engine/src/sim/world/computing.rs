//! What takes computing: local updates, merges, means, and where their numbers are kept.

use std::sync::Arc;

use fednode_core::{BlobId, BlobRef, ExpertOffer, LocalReport, ParamSet, Precision, ProxyOffer, ProxySet, Round};
use rand::Rng;

use super::super::scenario::Behaviour;
use super::{COMPUTING, Event, Machine, Member, World};
use crate::event::{AverageOrder, Input, MergeOrder, Purpose};
use crate::execute;

impl World<'_> {
    pub(super) fn begin_training(&mut self, member: usize, round: Round) {
        let (low, high) = self.scenario.training;
        let factor = self.scenario.slow.get(&member).copied().unwrap_or(1);
        let time = self.rng.random_range(low..=high) * factor;
        let life = self.members[member].life;
        self.forget_old_blobs();
        self.trainers.begin(member, round);
        self.schedule(time, Event::TrainingEnds(member, life, round));
    }

    pub(super) fn end_training(&mut self, member: usize, round: Round) {
        let update = match self.trainers.finish(member, round) {
            Ok(update) => update,
            Err(reason) => {
                self.outcome.failed = Some((member, reason));
                return;
            }
        };
        let behaviour = self.scenario.behaviours.get(&member).copied();
        let shared = match behaviour {
            Some(Behaviour::ForeignShape) => update.proxies.as_ref().map(|proxies| Arc::new(proxies.to_params())),
            _ => update.shared,
        };
        let shared = shared.map(|shared| self.put(member, round, shared));
        let (mut experts, mut own_experts) = (Vec::new(), Vec::new());
        for (mut params, samples_routed) in update.experts {
            let spoil = match behaviour {
                Some(Behaviour::NanExperts) => Some(f32::NAN),
                Some(Behaviour::HugeExperts) => Some(1e3),
                _ => None,
            };
            if let Some(spoil) = spoil {
                let params = Arc::make_mut(&mut params);
                params.iter_mut().for_each(|(_, tensor)| tensor.values_mut().iter_mut().for_each(|v| *v *= spoil));
            }
            if self.spec.transfer.precision != Precision::F32 {
                own_experts.push(self.put(member, round, Arc::clone(&params)));
            }
            let blob = self.put_to_send(member, round, params);
            if spoil.is_some() {
                self.outcome.invalid.insert(blob.id);
            }
            experts.push(ExpertOffer { blob, samples_routed });
        }
        let refreshes = self.spec.exchange.refreshes_in(round);
        let proxies = update.proxies.filter(|_| refreshes);
        let sketches = proxies.as_ref().filter(|_| self.spec.uses_sketches());
        let sketches = sketches.map(|proxies| fednode_mix::sketch::sketches(proxies, self.federation));
        let proxies = proxies.map(|proxies| self.offer(member, round, &proxies));
        let report = LocalReport {
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
        };
        self.give(member, Input::Trained(report));
    }

    /// Small proxies go inside the advert, others become a blob, as in the daemon.
    pub(super) fn offer(&mut self, member: usize, round: Round, proxies: &ProxySet) -> ProxyOffer {
        let params = proxies.to_params();
        let bytes = params.to_bytes();
        match bytes.len() <= self.scenario.inline_proxy_bytes {
            true => ProxyOffer::Inline(bytes),
            false => ProxyOffer::Blob(self.put(member, round, Arc::new(params))),
        }
    }

    pub(super) fn put(&mut self, member: usize, round: Round, params: Arc<ParamSet>) -> BlobRef {
        let (blob, _) = params.to_blob();
        self.put_as(member, round, blob, params)
    }

    /// Keeps what others may take over, as they will have it.
    pub(super) fn put_to_send(&mut self, member: usize, round: Round, params: Arc<ParamSet>) -> BlobRef {
        let precision = self.spec.transfer.precision;
        if precision == Precision::F32 {
            return self.put(member, round, params);
        }
        let (blob, _) = params.to_blob_as(precision);
        let narrowed = Arc::unwrap_or_clone(params).narrowed(precision);
        self.put_as(member, round, blob, Arc::new(narrowed))
    }

    fn put_as(&mut self, member: usize, round: Round, blob: BlobRef, params: Arc<ParamSet>) -> BlobRef {
        if self.contents.insert(blob.id, params).is_none() {
            self.born.entry(round).or_default().push(blob.id);
        }
        self.hold(member, blob.id);
        blob
    }

    pub(super) fn hold(&mut self, member: usize, blob: BlobId) {
        if self.members[member].held.insert(blob) {
            self.holders.entry(blob).or_default().push(member);
        }
    }

    pub(super) fn merge(&mut self, member: usize, order: &MergeOrder) {
        let spec = Arc::clone(&self.spec);
        let me = self.members[member].id;
        let own_shared = self.trainers.shared(member);
        let contents = &self.contents;
        let held = &self.members[member].held;
        let mut load = |blob: &BlobId| held.contains(blob).then(|| contents.get(blob).cloned()).flatten();
        let (adoption, report) = execute::merge(order, &spec, me, own_shared.as_deref(), &mut load);
        let honest = self.scenario.observe && !self.scenario.behaviours.contains_key(&member);
        for (_, sources) in adoption.used.iter().filter(|_| honest) {
            for (expert, _) in sources.iter().filter(|(expert, _)| expert.owner != me) {
                let blob = order.sources[expert].id;
                self.outcome.used.push((member, order.round, *expert, blob));
            }
        }
        if let (Some(_), Some(blob), true) = (&adoption.shared, order.adopt, self.scenario.observe) {
            self.outcome.adopted.push((member, order.round, blob.id));
        }
        self.trainers.adopt(member, order.round, adoption);
        self.input_after(COMPUTING, member, Input::Merged(report));
    }

    pub(super) fn average(&mut self, member: usize, order: &AverageOrder) {
        let spec = Arc::clone(&self.spec);
        let contents = &self.contents;
        let held = &self.members[member].held;
        let mut load = |blob: &BlobId| held.contains(blob).then(|| contents.get(blob).cloned()).flatten();
        let (mean, mut report) = execute::average(order, &spec, &mut load);
        if let Some(mut mean) = mean {
            let lies = self.scenario.behaviours.get(&member) == Some(&Behaviour::FalseMean);
            if lies && order.purpose == Purpose::Close {
                mean.iter_mut().for_each(|(_, tensor)| tensor.values_mut()[0] += 0.5);
                let blob = self.put(member, order.round, Arc::new(mean));
                self.outcome.false_means.insert(blob.id);
                report.mean = Some(blob);
            } else {
                self.put(member, order.round, Arc::new(mean));
            }
        }
        self.input_after(COMPUTING, member, Input::Averaged(report));
    }

    pub(super) fn save(&mut self, member: usize) {
        let Member { machine, checkpoint, head, .. } = &mut self.members[member];
        match machine {
            Machine::Node(node) => {
                *checkpoint = Some(node.state().clone());
                self.trainers.save(member);
            }
            Machine::Aggregator(aggregator) => *head = Some(aggregator.head()),
        }
    }
}
