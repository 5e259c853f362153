//! What takes computing: local updates, merges, means, and where their numbers are kept.

use std::sync::Arc;

use fednode_core::{BlobId, ExpertOffer, LocalReport, Precision, ProxyOffer, ProxySet, Round};
use rand::Rng;

use super::{COMPUTING, Event, Machine, Member, World};
use crate::history::Told;
use crate::scenario::Behaviour;
use fednode_engine::execute;
use fednode_engine::{AverageOrder, AverageReport, Input, MergeOrder, MergeReport, Purpose};

impl World<'_> {
    pub(super) fn begin_training(&mut self, member: usize, round: Round) {
        let (low, high) = self.scenario.training;
        let factor = self.scenario.slow.get(&member).copied().unwrap_or(1);
        let time = self.rng.random_range(low..=high) * factor;
        let life = self.members[member].life;
        let ends = self.queue.now() + time;
        self.trainers().begin(member, round, ends);
        self.schedule(time, Event::TrainingEnds(member, life, round));
    }

    pub(super) fn end_training(&mut self, member: usize, round: Round) {
        if let Some(trained) = self.answer(member, |world| {
            world.trained(member, round).map(Told::Trained)
        }) {
            if let Input::Trained(LocalReport {
                shared: Some(part), ..
            }) = &trained
            {
                self.set_apart(round, *part);
            }
            self.give(member, trained);
            self.forget_old_blobs();
        }
    }

    fn trained(&mut self, member: usize, round: Round) -> Result<LocalReport, String> {
        let update = self.trainers.finish(member, round)?;
        let behaviour = self.scenario.behaviours.get(&member).copied();
        let shared = match behaviour {
            Some(Behaviour::ForeignShape) => update
                .proxies
                .as_ref()
                .map(|proxies| Arc::new(proxies.to_params())),
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
                params.iter_mut().for_each(|(_, tensor)| {
                    tensor.values_mut().iter_mut().for_each(|v| *v *= spoil)
                });
            }
            if self.spec.transfer.precision != Precision::F32 {
                own_experts.push(self.put(member, round, Arc::clone(&params)));
            }
            let blob = self.put_to_send(member, round, params);
            if spoil.is_some() {
                self.outcome.invalid.insert(blob.id);
            }
            experts.push(ExpertOffer {
                blob,
                samples_routed,
            });
        }
        let refreshes = self.spec.refreshes_in(round);
        let proxies = update.proxies.filter(|_| refreshes);
        let sketches = proxies.as_ref().filter(|_| self.spec.uses_sketches());
        let sketches =
            sketches.map(|proxies| fednode_mix::sketch::sketches(proxies, self.spec.draw_seed()));
        let proxies = proxies.map(|proxies| self.offer(member, round, &proxies));
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
        })
    }

    /// Small proxies go inside the advert, others become a blob, as in the daemon.
    pub(super) fn offer(&mut self, member: usize, round: Round, proxies: &ProxySet) -> ProxyOffer {
        let params = proxies.to_params();
        let bytes = params.to_bytes();
        match bytes.len() <= self.scenario.inline_proxy_bytes {
            true => ProxyOffer::Inline(bytes),
            false => ProxyOffer::Blob(self.put_proxies(member, round, params)),
        }
    }

    pub(super) fn hold(&mut self, member: usize, blob: BlobId) {
        if self.members[member].held.insert(blob) {
            self.holders.entry(blob).or_default().push(member);
        }
    }

    pub(super) fn merge(&mut self, member: usize, order: &MergeOrder) {
        if let Some(merged) = self.answer(member, |world| {
            Ok(Told::Merged(world.merged(member, order)))
        }) {
            self.input_after(COMPUTING, member, merged);
        }
    }

    fn merged(&mut self, member: usize, order: &MergeOrder) -> MergeReport {
        let spec = Arc::clone(&self.spec);
        let me = self.members[member].id;
        let own_shared = self.trainers.shared(member);
        let contents = &self.contents;
        let held = &self.members[member].held;
        let mut load = |blob: &BlobId| {
            held.contains(blob)
                .then(|| contents.get(blob).cloned())
                .flatten()
        };
        let (adoption, report) = execute::merge(order, &spec, me, own_shared.as_deref(), &mut load);
        let honest = self.scenario.observe && !self.scenario.behaviours.contains_key(&member);
        for (_, sources) in adoption.used.iter().filter(|_| honest) {
            for (expert, _) in sources.iter().filter(|(expert, _)| expert.owner != me) {
                let blob = order.sources[expert].id;
                self.outcome.used.push((member, order.round, *expert, blob));
            }
        }
        if let (Some(_), Some(blob), true) = (&adoption.shared, order.adopt, self.scenario.observe)
        {
            self.outcome.adopted.push((member, order.round, blob.id));
        }
        self.trainers.adopt(member, order.round, adoption);
        report
    }

    pub(super) fn average(&mut self, member: usize, order: &AverageOrder) {
        if let Some(averaged) = self.answer(member, |world| {
            Ok(Told::Averaged(world.averaged(member, order)))
        }) {
            self.input_after(COMPUTING, member, averaged);
        }
    }

    fn averaged(&mut self, member: usize, order: &AverageOrder) -> AverageReport {
        let spec = Arc::clone(&self.spec);
        let contents = &self.contents;
        let held = &self.members[member].held;
        let mut load = |blob: &BlobId| {
            held.contains(blob)
                .then(|| contents.get(blob).cloned())
                .flatten()
        };
        let (mean, mut report) = execute::average(order, &spec, &mut load);
        if let Some(mut mean) = mean {
            let lies = self.scenario.behaviours.get(&member) == Some(&Behaviour::FalseMean);
            let lies = lies && order.purpose == Purpose::Close;
            if lies {
                mean.iter_mut()
                    .for_each(|(_, tensor)| tensor.values_mut()[0] += 0.5);
            }
            let blob = self.put(member, order.round, Arc::new(mean));
            if lies {
                self.outcome.false_means.insert(blob.id);
            }
            report.mean = Some(blob);
        }
        report
    }

    pub(super) fn save(&mut self, member: usize) {
        let Member {
            machine,
            checkpoint,
            head,
            ..
        } = &mut self.members[member];
        let mut is_node = false;
        match machine {
            Machine::Node(node) => {
                *checkpoint = Some(node.checkpoint());
                is_node = true;
            }
            Machine::Aggregator(aggregator) => *head = Some(aggregator.head()),
        }
        if is_node {
            self.trainers().save(member);
        }
    }
}
