//! How a member ends: all rounds done, told to stop, told to leave, or failed.
//!
//! ```text
//!  Working ──all rounds──► Completing ──records written──► Finalising ──model written──► Serving ──linger──► Over
//!     └────leave───► Leaving ──said──► Over                                                 └──stop──► Over
//! ```
//!
//! A finished member goes on serving its blobs, because others may be a round behind. A member may leave at any
//! time before it is over; what its trainer then abandons, in a round or in the last stage, is no failure.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{NodeId, Role, Round, Timestamp};
use fednode_engine::Input;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::answers::Answer;
use crate::driver::Driver;
use crate::effects::{flatten, on_worker};
use crate::error::RunError;
use crate::final_model::{self, ModelCard};
use crate::machine::Machine;
use crate::status::RoundRecord;
use crate::trainer::{LastStage, Timed};

/// A finished member is no longer needed when nobody trains any more and nothing was asked of it for so long.
const QUIET: Duration = Duration::from_secs(3);
/// A goodbye is given so long to spread.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long a stopping member waits for its last checkpoint; with what follows, less than five seconds.
const LAST_SAVE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it waits for the last lines of its books and for everybody who works for it.
const LAST_PATIENCE: Duration = Duration::from_millis(1500);
/// How often it looks whether the last worker is done.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How a run that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All rounds are done.
    AllRounds,
    /// It left the federation.
    Left,
    /// It was asked to stop, and had no rounds of its own to finish.
    Stopped,
}

/// A run that did not fail.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Who ran.
    pub node_id: NodeId,
    /// How it ended.
    pub outcome: Outcome,
    /// The round it had reached.
    pub round: Round,
    /// The newest complete record.
    pub last_record: Option<RoundRecord>,
}

/// How far the end is.
#[derive(Debug)]
pub(crate) struct Ending {
    stage: Stage,
    look_again: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Working,
    Completing,
    Finalising,
    Serving {
        since: Timestamp,
        quiet_since: Timestamp,
        sent: u64,
    },
    Leaving {
        until: Timestamp,
    },
    Over(Outcome),
}

impl Ending {
    pub(crate) const fn new() -> Self {
        Self {
            stage: Stage::Working,
            look_again: true,
        }
    }

    /// The machine may just have finished.
    pub(crate) const fn look_again(&mut self) {
        self.look_again = true;
    }

    pub(crate) const fn outcome(&self) -> Option<Outcome> {
        match self.stage {
            Stage::Over(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Tells whether the goodbye has been said.
    pub(crate) const fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    /// Tells whether all rounds are done and the result is on the disk.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(
            self.stage,
            Stage::Serving { .. } | Stage::Over(Outcome::AllRounds)
        )
    }
}

impl<M: Machine> Driver<M> {
    /// Takes the next step towards the end, if its time has come.
    pub(crate) fn advance_ending(&mut self) {
        if self.ending.stage == Stage::Working
            && std::mem::take(&mut self.ending.look_again)
            && self.is_serving()
        {
            self.ending.stage = Stage::Completing;
            self.records.give_up_unclosed();
        }
        match self.ending.stage {
            Stage::Completing if self.records.all_complete() => self.finalise(),
            Stage::Serving {
                since,
                quiet_since,
                sent,
            } => self.look_whether_needed(since, quiet_since, sent),
            Stage::Leaving { until } if self.publishing.is_idle() && self.clock.now() >= until => {
                self.ending.stage = Stage::Over(Outcome::Left);
            }
            _ => {}
        }
    }

    fn finalise(&mut self) {
        let Some(trainer) = &self.trainer else {
            return self.start_serving();
        };
        self.ending.stage = Stage::Finalising;
        let card = ModelCard::new(
            &self.spec,
            self.me,
            self.card.clone(),
            self.records.last().cloned(),
        );
        let (state, journal) = (self.config.state.clone(), self.journal.clone());
        // A daemon that was started again after its end has nothing left to train.
        if let Some(card) = final_model::read_card(&state, &self.spec) {
            self.last_stage = LastStage {
                evaluations: card.finished,
                pool: card.pool,
            };
            return self.start_serving();
        }
        self.finishing = true;
        // With a pool, what the algorithm trains after the last round came before it.
        let finishing =
            (!self.spec.pool.is_enabled()).then(|| trainer.finish(Round(self.spec.rounds)));
        let mut last_stage = self.last_stage.clone();
        let copying = trainer.call(|trainer| trainer.state());
        self.tasks.spawn(async move {
            if let Some(finishing) = finishing {
                match flatten(finishing.await) {
                    Ok(Timed { value, .. }) => last_stage.evaluations = value,
                    Err(error) => return Answer::Finalised(Err(error.into())),
                }
            }
            let Timed { value: model, .. } = match copying.await {
                Ok(model) => model,
                Err(error) => return Answer::Finalised(Err(error.into())),
            };
            let LastStage {
                evaluations: finished,
                pool,
            } = last_stage.clone();
            let card = ModelCard {
                finished,
                pool,
                ..card
            };
            let written = on_worker(move || final_model::write(&state, &model, &card)).await;
            journal.flush().await;
            let unwritten = |error: io::Error| {
                RunError::StateContent(format!("the final model cannot be made: {error}"))
            };
            Answer::Finalised(written.map(|()| Box::new(last_stage)).map_err(unwritten))
        });
    }

    /// # Errors
    /// Without its result a run has failed, whatever else it did.
    pub(crate) fn on_finalised(
        &mut self,
        result: Result<Box<LastStage>, RunError>,
    ) -> Result<(), RunError> {
        self.last_stage = *result?;
        self.finishing = false;
        // Who has said goodbye meanwhile does not come back to serve.
        if !self.ending.is_leaving() {
            self.start_serving();
        }
        Ok(())
    }

    fn start_serving(&mut self) {
        let now = self.clock.now();
        self.ending.stage = Stage::Serving {
            since: now,
            quiet_since: now,
            sent: 0,
        };
    }

    fn look_whether_needed(&mut self, since: Timestamp, quiet_since: Timestamp, sent_before: u64) {
        if !self.config.exit_when_finished {
            return;
        }
        let now = self.clock.now();
        let sent = self.net.traffic();
        let sent = sent.blob_sent_to_nodes + sent.blob_sent_to_aggregators;
        let quiet_since = match sent == sent_before && self.standing.nobody_trains() {
            true => quiet_since,
            false => now,
        };
        let over = now.since(since) >= self.config.linger
            || now.since(quiet_since) >= QUIET.min(self.config.linger);
        self.ending.stage = match over {
            true => Stage::Over(Outcome::AllRounds),
            false => Stage::Serving {
                since,
                quiet_since,
                sent,
            },
        };
    }

    /// Somebody asks this member to stop.
    ///
    /// # Errors
    /// A node that has rounds left is interrupted.
    pub(crate) fn on_stop_request(&mut self) -> Result<(), RunError> {
        let outcome = match () {
            () if self.ending.is_finished() => Outcome::AllRounds,
            () if self.role == Role::Aggregator => Outcome::Stopped,
            () => return Err(RunError::Interrupted),
        };
        self.ending.stage = Stage::Over(outcome);
        Ok(())
    }

    /// Somebody asks this member to leave for good.
    pub(crate) fn on_leave_request(&mut self) {
        info!("leaving the federation");
        self.feed(Input::Leave);
        if let Some(trainer) = &self.trainer {
            trainer.abandon();
        }
        self.ending.stage = Stage::Leaving {
            until: self.clock.now() + GOODBYE,
        };
    }

    /// Saves what can be saved, says goodbye, ends.
    ///
    /// A batch under way is abandoned: the checkpoint from the start of its round is on the disk already. A merge or a last
    /// stage under way leaves the model between two states, so the checkpoint from before it stands.
    pub(crate) async fn shut_down(
        mut self,
        outcome: Result<Outcome, RunError>,
    ) -> Result<Finished, RunError> {
        if let Some(trainer) = &self.trainer {
            trainer.abandon();
        }
        let orderly = matches!(outcome, Ok(_) | Err(RunError::Interrupted));
        if orderly && !self.training && !self.merging && !self.finishing {
            self.save();
        }
        if tokio::time::timeout(LAST_SAVE_PATIENCE, self.finish_saving())
            .await
            .is_err()
        {
            warn!("the last checkpoint took too long and was given up; the one before it stands");
        }
        let round = self.machine.status(self.clock.now()).round;
        let last_record = self.records.last().cloned();
        let node_id = self.me;
        if tokio::time::timeout(LAST_PATIENCE, self.let_go())
            .await
            .is_err()
        {
            warn!("some work still holds the state folder; it is free when the process ends");
        }
        outcome.map(|outcome| Finished {
            node_id,
            outcome,
            round,
            last_record,
        })
    }

    /// Ends everything that works for this member and gives the state folder free.
    async fn let_go(self) {
        let Self {
            net,
            net_task,
            blobs,
            checkpoints,
            journal,
            mut tasks,
            control,
            ..
        } = self;
        drop((control, checkpoints));
        net.shutdown().await;
        drop(net);
        tasks.shutdown().await;
        journal.close().await;
        // Its error would be a panic, which was reported when it happened.
        let _ = net_task.await;
        // Workers cannot be interrupted; each holds the blobs for as long as one look at the disk takes.
        while Arc::strong_count(&blobs) > 1 {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Waits until everything ordered is on the disk.
    ///
    /// If a task of the save itself has failed, it waits for all other tasks, too: the caller's patience bounds it.
    ///
    /// Cancel-safe: what has not been written by then is not written.
    async fn finish_saving(&mut self) {
        while !self.saving.is_idle() {
            match next_answer(&mut self.tasks).await {
                Some(Answer::Copied {
                    snapshot,
                    round,
                    took,
                }) => self.on_copied(snapshot, round, took),
                Some(Answer::NotCopied(error)) => {
                    warn!(%error, "the model cannot be copied for a checkpoint");
                    self.saving.not_copied();
                }
                Some(Answer::Saved(result)) => self.on_saved(&result),
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// Returns the next answer, whichever tasks fail before it; `None` if no task is left.
///
/// Cancel-safe: no answer is lost.
async fn next_answer(tasks: &mut JoinSet<Answer>) -> Option<Answer> {
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(answer) => return Some(answer),
            Err(error) => warn!(%error, "a task ended without its answer"),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn broken() -> Answer {
        panic!("a defect of the test's own")
    }

    #[tokio::test]
    async fn a_task_that_fails_does_not_keep_the_next_answer_back() {
        let mut tasks = JoinSet::new();
        tasks.spawn(broken());
        tasks.spawn(async { Answer::Done });
        assert!(matches!(next_answer(&mut tasks).await, Some(Answer::Done)));
        assert!(next_answer(&mut tasks).await.is_none());
    }
}
