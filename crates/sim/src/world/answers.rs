//! What is computed for members: the first time by the trainers, in a run that is gone on with from its history.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use fednode_core::{BlobRef, ParamSet, Precision, Round};

use super::{Event, World};
use crate::history::{Answer, Made, Moment, NOT_THIS_RUN, Past, Told};
use crate::trainers::Trainers;
use fednode_engine::Input;

impl World<'_> {
    /// Returns whoever trains, unless the past is played again.
    pub(super) fn trainers(&mut self) -> &mut dyn Trainers {
        match self.past {
            Some(_) => &mut self.silent,
            None => self.trainers,
        }
    }

    /// Tells a member what was computed for it, or returns that to be told later.
    pub(super) fn answer(
        &mut self,
        member: usize,
        compute: impl FnOnce(&mut Self) -> Result<Told, String>,
    ) -> Option<Input> {
        let answer = match &mut self.past {
            Some(past) => past
                .answers
                .next()
                .filter(|answer| answer.member == member)
                .ok_or(NOT_THIS_RUN.to_owned()),
            None => compute(self).map(|told| Answer {
                member,
                told,
                made: std::mem::take(&mut self.made),
            }),
        };
        match answer {
            Ok(answer) if self.past.is_some() => {
                let kept = answer
                    .made
                    .iter()
                    .try_for_each(|made| self.make_again(member, made));
                kept.map_err(|reason| self.outcome.failed = Some((member, reason)))
                    .ok()?;
                Some(answer.told.into())
            }
            Ok(answer) => {
                self.trainers.remember(&answer);
                Some(answer.told.into())
            }
            Err(reason) => {
                self.outcome.failed = Some((member, reason));
                None
            }
        }
    }

    fn make_again(&mut self, member: usize, made: &Made) -> Result<(), String> {
        let params = match &made.proxies {
            Some(bytes) => ParamSet::decode(bytes).map_err(|error| error.to_string())?,
            // What it holds is known at the end of the past, if it is still held then.
            None => ParamSet::new(),
        };
        self.keep(member, made.round, made.blob, Arc::new(params));
        Ok(())
    }

    /// Puts a blob into the network.
    pub(super) fn put(&mut self, member: usize, round: Round, params: Arc<ParamSet>) -> BlobRef {
        let (blob, _) = params.to_blob();
        self.put_as(member, round, blob, params)
    }

    /// Puts a blob into the network that others may take over, as they will have it.
    pub(super) fn put_to_send(
        &mut self,
        member: usize,
        round: Round,
        params: Arc<ParamSet>,
    ) -> BlobRef {
        let precision = self.spec.transfer.precision;
        if precision == Precision::F32 {
            return self.put(member, round, params);
        }
        let (blob, _) = params.to_blob_as(precision);
        let narrowed = Arc::unwrap_or_clone(params).narrowed(precision);
        self.put_as(member, round, blob, Arc::new(narrowed))
    }

    fn put_as(
        &mut self,
        member: usize,
        round: Round,
        blob: BlobRef,
        params: Arc<ParamSet>,
    ) -> BlobRef {
        self.made.push(Made {
            blob,
            round,
            proxies: None,
        });
        self.keep(member, round, blob, params);
        blob
    }

    /// Puts proxies into the network.
    pub(super) fn put_proxies(&mut self, member: usize, round: Round, params: ParamSet) -> BlobRef {
        let (blob, _) = params.to_blob();
        self.made.push(Made {
            blob,
            round,
            proxies: Some(params.to_bytes()),
        });
        self.keep(member, round, blob, Arc::new(params));
        blob
    }

    /// Keeps what is new: where many compute the same mean, all have the first one's.
    fn keep(&mut self, member: usize, round: Round, blob: BlobRef, params: Arc<ParamSet>) {
        if let Entry::Vacant(vacant) = self.contents.entry(blob.id) {
            vacant.insert(params);
            self.born.entry(round).or_default().push(blob.id);
        }
        self.hold(member, blob.id);
    }

    /// Goes over from the past to the present when all events of the past have happened.
    pub(super) fn awake(&mut self) {
        let Some(past) = self.past.take_if(|past| past.events == self.events) else {
            return;
        };
        let Past {
            mut answers,
            mut contents,
            ..
        } = past;
        let is_known = self
            .contents
            .iter_mut()
            .all(|(blob, params)| match contents.remove(blob) {
                Some(known) => {
                    *params = known;
                    true
                }
                None => false,
            });
        if !is_known || answers.next().is_some() {
            self.outcome.failed = Some((0, NOT_THIS_RUN.into()));
        }
    }

    /// Waits for what an event needs; tells whether to stop instead.
    pub(super) fn waits_in_vain(&mut self, event: &Event) -> bool {
        let (Event::TrainingEnds(member, life, _)
        | Event::ModuleEnds(member, life, _)
        | Event::PoolEnds(member, life, _)) = event
        else {
            return false;
        };
        while self.lives(*member, *life) && !self.trainers().is_ready(*member) {
            if self.pauses() {
                return true;
            }
        }
        false
    }

    /// Gives whoever trains a moment to look around; tells whether to stop.
    pub(super) fn pauses(&mut self) -> bool {
        let moment = Moment {
            events: self.events,
            contents: &self.contents,
            is_past: self.past.is_some(),
        };
        self.outcome.stopped = self.trainers.pauses(&moment);
        self.outcome.stopped
    }
}
