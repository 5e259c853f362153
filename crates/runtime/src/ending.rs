//! How a member ends: all rounds done, told to stop, told to leave, or failed.
//!
//! ```text
//!  Working ──all rounds──► Completing ──records written──► Finalising ──model written──► Serving ──linger──► Over
//!     └────leave───► Leaving ──said──► Over                                                 └─stop, or more rounds─► Over
//! ```
//!
//! A finished member goes on serving its blobs, because others may be a round behind. A member may leave at any
//! time before it is over; what its trainer then abandons, in a round or in the last stage, is no failure.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{LastStage, WorkError};
use fednode_core::{BlobId, Body, MAX_WITHDRAWN, NodeId, Role, Round, Timestamp, Withdraw};
use fednode_engine::book::Work;
use fednode_engine::{Input, Phase};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::answers::Answer;
use crate::base::Base;
use crate::driver::{Driver, Inlets};
use crate::error::RunError;
use crate::last_stage::Final;
use crate::machine::Machine;
use crate::reporting;
use crate::status::{RoundRecord, WaitingFor};
use crate::watched::Watched;
use crate::whereabouts;
use crate::work;

/// A finished member is no longer needed when nobody trains any more and nothing was asked of it for so long.
const QUIET: Duration = Duration::from_secs(3);
/// A goodbye is given so long to spread.
const GOODBYE: Duration = Duration::from_secs(1);
/// Whoever takes something back waits so much longer for the others' word that it is gone.
const PATIENCE_FOR_ANSWERS: Duration = Duration::from_secs(10);
/// How long a stopping member waits for its last checkpoint; with what follows, less than five seconds.
const LAST_SAVE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it waits for the last lines of its books and for everybody who works for it.
const LAST_PATIENCE: Duration = Duration::from_millis(1500);
/// How long a member waits for the same that is started again in this process.
const PATIENCE_TO_GO_ON: Duration = Duration::from_secs(600);
/// How often it looks whether the last worker is done.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How a run that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All rounds are done.
    AllRounds,
    /// It left the federation.
    Left,
    /// It was asked to stop, and had no rounds of its own to finish, or endlessly many.
    Stopped,
    /// Rounds were added: it is to be started again with them.
    Extended {
        /// All ends up to this round are done with.
        done: Round,
    },
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
    /// Why its model is of no use, if all rounds are done and it is no better than a constant answer.
    pub useless: Option<String>,
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

    /// Returns how long a finished member has served others; nothing if it does something else.
    pub(crate) fn served_for(&self, now: Timestamp) -> Option<Duration> {
        match self.stage {
            Stage::Serving { since, .. } => Some(now.since(since)),
            _ => None,
        }
    }

    /// The result is on the disk: the member serves from now on.
    fn serve(&mut self, now: Timestamp) {
        self.stage = Stage::Serving {
            since: now,
            quiet_since: now,
            sent: 0,
        };
    }

    /// Ends a member that nobody needs any more: it has sent no blob for some time, and no node trains.
    fn look_whether_needed(&mut self, base: &Base, nobody_trains: impl FnOnce() -> bool) {
        let Stage::Serving {
            since,
            quiet_since,
            sent: sent_before,
        } = self.stage
        else {
            return;
        };
        if !base.config.exit_when_finished || base.spec.endless {
            return;
        }
        let now = base.now();
        let traffic = base.traffic().sent;
        let sent = traffic.peer_to_peer + traffic.aggregator;
        // Both, since a slow peer may be silent for a whole round and want this node's experts
        // after it.
        let is_quiet = sent == sent_before && nobody_trains();
        let quiet_since = if is_quiet { quiet_since } else { now };
        let linger = base.config.linger;
        let is_over = now.since(since) >= linger || now.since(quiet_since) >= QUIET.min(linger);
        self.stage = if is_over {
            Stage::Over(Outcome::AllRounds)
        } else {
            Stage::Serving {
                since,
                quiet_since,
                sent,
            }
        };
    }

    /// Tells whether the goodbye has been said.
    pub(crate) const fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    /// Tells whether an error is that a leaving member's work was abandoned, which is no failure.
    pub(crate) const fn excuses(&self, error: &RunError) -> bool {
        self.is_leaving() && matches!(error, RunError::Trainer(WorkError::Abandoned))
    }

    /// Tells whether all rounds are done and the result is on the disk.
    pub(crate) const fn is_finished(&self) -> bool {
        matches!(
            self.stage,
            Stage::Serving { .. } | Stage::Over(Outcome::AllRounds | Outcome::Extended { .. })
        )
    }
}

impl<M: Machine> Driver<'_, M> {
    /// Takes the next step towards the end, if its time has come.
    pub(crate) fn advance_ending(&mut self) {
        if let Some(done) = self.end_to_leave() {
            match self.more.keep(&self.base.config.state) {
                Ok(()) => return self.ending.stage = Stage::Over(Outcome::Extended { done }),
                Err(news) => news.into_iter().for_each(|line| self.base.warn(line)),
            }
        }
        if self.ending.stage == Stage::Working
            && std::mem::take(&mut self.ending.look_again)
            && self.machine.status(self.base.now()).phase == Phase::Serving
        {
            self.ending.stage = Stage::Completing;
            self.desk.book.give_up_unclosed();
        }
        match self.ending.stage {
            Stage::Completing if self.desk.book.all_complete() => self.finalise(),
            Stage::Serving { .. } => {
                let nobody_trains = || self.standing.nobody_trains();
                self.ending.look_whether_needed(&self.base, nobody_trains);
            }
            Stage::Leaving { until } if self.publisher.is_idle() && self.base.now() >= until => {
                let is_patient = self.base.now() < until + PATIENCE_FOR_ANSWERS;
                if !is_patient || !self.withdrawals.lacks_an_answer(self.standing.present()) {
                    self.leave();
                }
            }
            _ => {}
        }
    }

    /// Returns the end after which this member goes on now, if rounds were added.
    fn end_to_leave(&self) -> Option<Round> {
        let spec = &self.base.spec;
        match self.ending.stage {
            Stage::Serving { .. } => self.more.next_end(spec),
            Stage::Working => {
                let doing = (self.base.role, self.machine.phase());
                self.more.missed(spec, doing, self.standing.present())
            }
            _ => None,
        }
    }

    fn finalise(&mut self) {
        match self.desk.finalise(&mut self.base) {
            Final::Written => self.ending.serve(self.base.now()),
            Final::Awaited => self.ending.stage = Stage::Finalising,
        }
    }

    /// The final model is written, with what came after the last round.
    pub(crate) fn on_finalised(&mut self, last_stage: LastStage) {
        self.desk.book.concluded(last_stage);
        let book = &self.desk.book;
        let shortcomings = [book.lacks(), book.useless()].map(|text| text.map(ToOwned::to_owned));
        for text in shortcomings.into_iter().flatten() {
            self.base.warn(text);
        }
        // Who has said goodbye meanwhile does not come back to serve.
        if !self.ending.is_leaving() {
            self.ending.serve(self.base.now());
        }
    }

    /// Somebody asks this member to stop.
    ///
    /// # Errors
    /// A node that has rounds left is interrupted.
    pub(crate) fn on_stop_request(&mut self) -> Result<(), RunError> {
        let outcome = if self.base.spec.endless {
            Outcome::Stopped
        } else if self.ending.is_finished() {
            Outcome::AllRounds
        } else if self.base.role == Role::Aggregator {
            Outcome::Stopped
        } else {
            return Err(RunError::Interrupted);
        };
        self.ending.stage = Stage::Over(outcome);
        Ok(())
    }

    /// Takes back what this member has published: the others delete what nobody else needs.
    pub(crate) fn withdraw(&mut self) {
        let mut blobs = self.keeper.own.ids();
        if let Some(state) = self.machine.training_state() {
            blobs.extend(state.report.iter().flat_map(work::offered));
            blobs.extend(state.module.map(|module| module.id));
        }
        let round = self.machine.status(self.base.now()).round;
        let blobs: Vec<BlobId> = blobs.into_iter().collect();
        let count = blobs.len();
        // Before the goodbye, in as many adverts as they need.
        for part in blobs.chunks(MAX_WITHDRAWN) {
            let body = Body::Withdraw(Withdraw {
                blobs: part.to_vec(),
            });
            self.publisher.publish(&mut self.base, round, body);
        }
        let line =
            format!("{count} published blobs are taken back: the others are asked to delete them");
        info!("{line}");
        self.base.remark(line);
    }

    /// Somebody asks this member to leave for good.
    pub(crate) fn on_leave_request(&mut self) {
        info!("leaving the federation");
        self.feed(Input::Leave);
        // Whatever is trained now will never be published, so the processor is freed at once.
        self.desk.abandon();
        self.ending.stage = Stage::Leaving {
            until: self.base.now() + GOODBYE,
        };
    }

    /// The goodbye is said, and whoever was asked to delete something has answered or had its time.
    fn leave(&mut self) {
        if let Some(line) = self.withdrawals.summary() {
            info!("{line}");
            self.base.remark(line);
        }
        self.ending.stage = Stage::Over(Outcome::Left);
    }

    /// Saves what can be saved, says goodbye, ends.
    ///
    /// A batch under way is abandoned: the checkpoint from the start of its round is on the disk already. A merge or a last
    /// stage under way leaves the model between two states, so the checkpoint from before it stands.
    pub(crate) async fn shut_down(
        mut self,
        outcome: Result<Outcome, RunError>,
    ) -> Result<Finished, RunError> {
        self.desk.abandon();
        let orderly = matches!(outcome, Ok(_) | Err(RunError::Interrupted));
        // After a failure the last good checkpoint stands: what led to the failure should not be
        // saved.
        if orderly && self.desk.book.work() == Work::Idle {
            self.save();
        }
        if tokio::time::timeout(LAST_SAVE_PATIENCE, self.finish_saving())
            .await
            .is_err()
        {
            warn!("the last checkpoint took too long and was given up; the one before it stands");
        }
        let round = self.machine.status(self.base.now()).round;
        let last_record = self.desk.book.last().cloned();
        let is_done = matches!(outcome, Ok(Outcome::AllRounds));
        if is_done && has_learned_nothing(self.base.role, last_record.as_ref()) {
            warn!(
                "this node took part in no round, so its model has learned nothing of its rows: it takes part where rounds are \
                 added (`fednode extend`), or in another run"
            );
        }
        let useless = self.desk.book.useless().filter(|_| is_done);
        let useless = useless.map(ToOwned::to_owned);
        let node_id = self.base.me;
        let goes_on = matches!(outcome, Ok(Outcome::Extended { .. }));
        if !self.let_go(goes_on).await {
            warn!("some work still holds the state folder; it is free when the process ends");
        }
        outcome.map(|outcome| Finished {
            node_id,
            outcome,
            round,
            last_record,
            useless,
        })
    }

    /// Gives the state folder free, and tells whether that was done in time.
    async fn let_go(self, goes_on: bool) -> bool {
        let status = goes_on.then(|| reporting::status(&self));
        let Self {
            base,
            keeper,
            desk,
            inlets,
            machine,
            process,
            ..
        } = self;
        drop((keeper, desk));
        let mut ended = std::pin::pin!(end_all(base, inlets, machine));
        if let Some(status) = status {
            process.remember(status);
            // The next start needs the folder, so there is no hurry unless somebody stops the process.
            let ended = tokio::time::timeout(PATIENCE_TO_GO_ON, &mut ended);
            let waits = WaitingFor::of_nobody("the last work of the rounds before");
            if let Some(ended) = process.answer_while(waits, ended).await {
                return ended.is_ok();
            }
        }
        process.close().await;
        tokio::time::timeout(LAST_PATIENCE, ended).await.is_ok()
    }

    /// Waits until everything ordered is on the disk.
    ///
    /// If a task of the save itself has failed, it waits for all other tasks, too: the caller's patience bounds it.
    ///
    /// Cancel-safe: what has not been written by then is not written.
    async fn finish_saving(&mut self) {
        while !self.keeper.saving.is_idle() {
            match next_answer(&mut self.base.tasks).await {
                Some(Answer::Copied {
                    snapshot,
                    round,
                    took,
                }) => {
                    self.desk.book.saved(round, took);
                    self.keeper.copied(&mut self.base, snapshot);
                }
                Some(Answer::NotCopied(error)) => {
                    warn!(%error, "the model cannot be copied for a checkpoint");
                    self.keeper.saving.not_copied();
                }
                Some(Answer::Saved(result)) => self.keeper.saved(&mut self.base, &result),
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// Tells whether a member that should train has not been in any round. An aggregator trains in none.
fn has_learned_nothing(role: Role, last_record: Option<&RoundRecord>) -> bool {
    role == Role::Node && last_record.is_none()
}

/// Ends everything that works for a member.
async fn end_all<M: Machine>(base: Base, inlets: Inlets, machine: Watched<M>) {
    let Base {
        config,
        net,
        blobs,
        journal,
        mut tasks,
        ..
    } = base;
    let Inlets {
        net_task,
        roll,
        whereabouts,
        ..
    } = inlets;
    drop((roll, whereabouts));
    whereabouts::write(&net, &config.state).await;
    net.shutdown().await;
    drop(net);
    tasks.shutdown().await;
    journal.close().await;
    machine.close().await;
    // Its error would be a panic, which was reported when it happened.
    let _ = net_task.await;
    // Workers cannot be interrupted; each holds the blobs for as long as one look at the disk takes.
    while Arc::strong_count(&blobs) > 1 {
        tokio::time::sleep(LOOK_AGAIN).await;
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

    #[test]
    fn an_aggregator_need_not_take_part_in_rounds() {
        assert!(has_learned_nothing(Role::Node, None));
        assert!(!has_learned_nothing(Role::Aggregator, None));
    }
}
