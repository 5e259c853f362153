//! A merge under way: experts are mixed on a worker thread, then the worker takes them over and is evaluated.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{Order, Outcome, Received, Splits, WorkError};
use fednode_core::{FederationSpec, NodeId};
use fednode_engine::book::DueAfterExchange;
use fednode_engine::{MergeOrder, MergeReport};
use fednode_store::Blobs;

use crate::answers::{Evaluating, Mixed};
use crate::base::on_worker;
use crate::decoded::Decoded;
use crate::error::RunError;
use crate::trainer::{Timed, TrainerThread};
use crate::work;

/// What becomes of the peers' parts that were mixed in before, if no others come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixedBefore {
    /// They stay: their owners are late, or cannot be reached.
    Stays,
    /// They are forgotten: an owner took its part back.
    IsTakenBack,
}

/// A merge under way.
pub(crate) struct Mixing {
    pub(crate) trainer: TrainerThread,
    pub(crate) spec: Arc<FederationSpec>,
    pub(crate) me: NodeId,
    pub(crate) decoded: Arc<Decoded>,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) order: MergeOrder,
    pub(crate) before: MixedBefore,
    /// The evaluation that is due afterwards.
    pub(crate) due: DueAfterExchange,
}

impl Mixing {
    /// Mixes, adopts, and hands the evaluation in.
    ///
    /// # Errors
    /// Fails if the worker does.
    pub(crate) async fn run(self) -> Result<Mixed, RunError> {
        let Self {
            trainer,
            spec,
            me,
            decoded,
            blobs,
            order,
            before,
            due,
        } = self;
        let evaluate = |splits: Splits| Box::pin(trainer.evaluate(splits)) as Evaluating;
        // The mean is screened against the own part. The copy costs memory, so without a mean none is made.
        let own_shared = match order.adopt {
            Some(_) => trainer.shared().await?.value,
            None => None,
        };
        let mixed = on_worker(move || {
            work::merge(&order, &spec, me, own_shared.as_ref(), &decoded, &blobs)
        })
        .await;
        let Timed {
            value: (mut adoption, report),
            took,
        } = mixed;
        let n_sources = work::n_sources(&adoption, me);
        let mixed = std::mem::take(&mut adoption.mixed);
        let mut done = Mixed {
            report,
            took,
            n_sources,
            // Parts that come now take the place of those before, and nothing is left to forget.
            forgets: before == MixedBefore::IsTakenBack && mixed.is_empty(),
            mixed,
            evaluating: None,
        };
        let received = Received {
            shared: adoption.shared,
            experts: adoption.experts,
            peers: adoption.peers,
            statistics: adoption.statistics,
        };
        if received.is_empty() && !done.forgets {
            done.evaluating = due.if_unchanged.map(evaluate);
            return Ok(done);
        }
        // Handed in together, so that no later order comes between.
        let forgetting = done.forgets.then(|| trainer.perform(Order::ForgetPeers));
        let adopting = trainer.perform(Order::Adopt(received));
        done.evaluating = due.if_changed.map(evaluate);
        if let Some(forgetting) = forgetting {
            done.took += forgetting.await?.took;
        }
        let (report, adopted) = judge(done.report, adopting.await)?;
        done.report = report;
        done.took += adopted;
        Ok(done)
    }
}

/// A shared part that passed every screen and still does not fit is refused like one that did not pass.
/// Returns how long the adoption took.
fn judge(
    report: MergeReport,
    adopted: Result<Timed<Outcome>, WorkError>,
) -> Result<(MergeReport, Duration), RunError> {
    match adopted {
        Ok(adopted) => Ok((report, adopted.took)),
        Err(WorkError::Misfit(reason)) => {
            let report = MergeReport {
                refused_mean: Some(reason),
                ..report
            };
            Ok((report, Duration::ZERO))
        }
        Err(error) => Err(error.into()),
    }
}
