//! The stage after the last round, as the machine orders it: the private module, then the pool (PM-MoE).

use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{Evaluations, Modules, Order, Outcome, Splits};
use fednode_core::{
    BlobId, BlobRef, NodeId, ParamSet, PoolOutcome, Precision, Round, Score, Served,
};
use fednode_engine::{Input, ModuleReport, PoolOrder, PoolReport};
use fednode_store::Blobs;
use tracing::{info, warn};

use crate::answers::Answer;
use crate::driver::Driver;
use crate::effects::{FULL_PAUSE, on_worker};
use crate::error::RunError;
use crate::machine::Machine;
use crate::trainer::{Timed, TrainerThread};
use crate::work;

/// How many rounds, in the sense of garbage collection, an own module is kept beside what the machine needs.
const KEPT_ROUNDS: u32 = 1;

/// A private module that is made.
pub(crate) struct Made {
    report: Option<ModuleReport>,
    /// How good the model is, if the algorithm trained once more.
    evaluations: Option<Evaluations>,
}

/// A pool that the trainer serves.
pub(crate) struct Pooled {
    outcome: PoolOutcome,
    evaluations: Evaluations,
    took: Duration,
}

impl<M: Machine> Driver<M> {
    /// Makes the private module; unless the node keeps it, it is stored and named.
    pub(crate) fn make_module(&mut self, round: Round) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        let store = if self.config.shares_module {
            warn!(
                "this node publishes its private module: it tells the others how often the classes occur here, at least"
            );
            Some((self.spec.transfer.precision, Arc::clone(&self.blobs)))
        } else {
            info!("this node keeps its private module, and says so to the others");
            None
        };
        self.book.last_stage_begins();
        self.tasks
            .spawn(async move { Answer::Module(make(trainer, round, store).await.map(Box::new)) });
    }

    pub(crate) fn on_module(&mut self, made: Made) {
        let Made {
            report,
            evaluations,
        } = made;
        self.book.fine_tuned(evaluations);
        match &report {
            None => {
                self.book.last_stage_ends();
                let text = format!(
                    "algorithm `{}` has no private module: there is no pool",
                    self.spec.algorithm
                );
                self.notebook.warn(self.clock.now(), text);
            }
            Some(report) => {
                let blobs: Vec<BlobId> = report.blob.iter().map(|blob| blob.id).collect();
                self.own
                    .add(Round(self.spec.rounds), blobs.clone(), KEPT_ROUNDS);
                self.blobs.protect(self.kept_blobs());
                self.announce(blobs);
            }
        }
        self.feed(Input::Module(report));
    }

    /// Loads the modules of others and hands them to the trainer.
    pub(crate) fn assemble_pool(&mut self, order: PoolOrder) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        let blobs = Arc::clone(&self.blobs);
        self.tasks.spawn(async move {
            Answer::Pooled(assemble(trainer, order, blobs).await.map(Box::new))
        });
    }

    pub(crate) fn on_pooled(&mut self, pooled: Pooled) {
        let Pooled {
            outcome,
            evaluations,
            took,
        } = pooled;
        self.book.last_stage_ends();
        let text = describe(&outcome, took);
        info!("{text}");
        self.notebook.remark(self.clock.now(), text);
        let refused = outcome.refused.clone();
        self.book.pooled(outcome, evaluations);
        self.feed(Input::Pooled(PoolReport { refused }));
    }
}

/// Trains what is trained last, then makes the module, and puts it into the store if there is one for it.
async fn make(
    trainer: TrainerThread,
    round: Round,
    store: Option<(Precision, Arc<Blobs>)>,
) -> Result<Made, RunError> {
    // Handed in together, so that no later order comes between.
    let tuning = trainer.perform(Order::FineTune(round));
    let making = trainer.perform(Order::MakeModule);
    let evaluations = tuning.await?.value.into_fine_tuned()?;
    let Some(module) = making.await?.value.into_module()? else {
        return Ok(Made {
            report: None,
            evaluations,
        });
    };
    let report = match store {
        Some((precision, blobs)) => {
            let blob = put(module.params, precision, blobs).await;
            ModuleReport {
                kind: module.kind,
                blob: Some(blob),
                score: module.score,
            }
        }
        None => ModuleReport {
            kind: module.kind,
            blob: None,
            score: 0.0,
        },
    };
    Ok(Made {
        report: Some(report),
        evaluations,
    })
}

/// Stores a module, however long the disk stays full.
async fn put(params: Arc<ParamSet>, precision: Precision, blobs: Arc<Blobs>) -> BlobRef {
    loop {
        let (params, blobs) = (Arc::clone(&params), Arc::clone(&blobs));
        match on_worker(move || blobs.put(&params.to_bytes_as(precision))).await {
            Ok(blob) => return blob,
            Err(error) => warn!("the private module waits for disk space: {error}"),
        }
        tokio::time::sleep(FULL_PAUSE).await;
    }
}

async fn assemble(
    trainer: TrainerThread,
    order: PoolOrder,
    blobs: Arc<Blobs>,
) -> Result<Pooled, RunError> {
    let modules = on_worker(move || load(&order, &blobs)).await;
    // Handed in together, so that no later order comes between.
    let pooling = trainer.perform(Order::AssemblePool(modules));
    let evaluating = trainer.evaluate(Splits::ValidationAndTest);
    let Timed {
        value: outcome,
        took,
    } = pooling.await?.try_map(Outcome::into_pool)?;
    let evaluations = evaluating.await?.value;
    Ok(Pooled {
        outcome,
        evaluations,
        took,
    })
}

/// Loads what is still held; modules of one content are one in memory.
fn load(order: &PoolOrder, blobs: &Blobs) -> Modules {
    let mut modules: Vec<(NodeId, BlobRef, Arc<ParamSet>)> =
        Vec::with_capacity(order.members.len());
    for (node, blob) in &order.members {
        let twin = modules
            .iter()
            .find(|(_, known, _)| known == blob)
            .map(|(.., params)| Arc::clone(params));
        if let Some(params) = twin.or_else(|| work::load_blob(&blob.id, blobs)) {
            modules.push((*node, *blob, params));
        }
    }
    modules
        .into_iter()
        .map(|(node, _, params)| (node, params))
        .collect()
}

fn describe(outcome: &PoolOutcome, took: Duration) -> String {
    let kept = outcome.members.iter().filter(|member| member.kept).count();
    let (others, seconds) = (outcome.members.len().saturating_sub(1), took.as_secs_f64());
    let percent = |score: Score| 100.0 * score.accuracy;
    let served = match &outcome.served {
        Served::Mixture => "the mixture is served".to_owned(),
        Served::Own { reason } => format!("the own module is served: {reason}"),
    };
    let validation = outcome
        .validation
        .mixture
        .map_or_else(String::new, |mixture| {
            let own = percent(outcome.validation.own);
            format!(
                ", {:.1} % of the validation samples right (own module {own:.1} %)",
                percent(mixture)
            )
        });
    let unseen = match outcome.unseen {
        0 => String::new(),
        n => format!(
            "; {n} training samples were left out, since all outputs would not fit into memory"
        ),
    };
    format!(
        "pool of the own module and {others} others, {kept} kept{validation}{unseen}; {served} ({seconds:.1} s)"
    )
}
