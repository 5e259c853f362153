//! What comes after the last round: the private module and the pool (PM-MoE), as the machine orders them, and the final
//! model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{Evaluations, LastStage, Modules, Order, Outcome, Splits};
use fednode_core::{BlobRef, NodeId, ParamSet, PoolOutcome, Precision, Round, Score, Served};
use fednode_engine::book::Work;
use fednode_engine::{ModuleReport, PoolOrder, PoolReport};
use fednode_store::Blobs;
use tracing::{info, warn};

use crate::answers::Answer;
use crate::base::{Base, FULL_PAUSE, on_worker};
use crate::desk::Desk;
use crate::error::RunError;
use crate::final_model::{self, ModelCard};
use crate::trainer::{Timed, TrainerThread};
use crate::work;

/// How many rounds, in the sense of garbage collection, an own module is kept beside what the machine needs.
pub(crate) const KEPT_ROUNDS: u32 = 1;

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

impl Desk {
    /// Makes the private module; unless the node keeps it, it is stored and named.
    pub(crate) fn make_module(&mut self, base: &mut Base, round: Round) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        let store = if base.config.shares_module {
            warn!(
                "this node publishes its private module: it tells the others how often the classes occur here, at least"
            );
            Some((base.spec.transfer.precision, Arc::clone(&base.blobs)))
        } else {
            info!("this node keeps its private module, and says so to the others");
            None
        };
        // A stop takes no checkpoint from here on: the model may be half trained, and the one from before the
        // stage is whole.
        self.book.now(Work::LastStage);
        base.start(async move { Answer::Module(make(trainer, round, store).await.map(Box::new)) });
    }

    /// Enters a private module that is made, and returns it for the machine.
    pub(crate) fn module_made(&mut self, base: &mut Base, made: Made) -> Option<ModuleReport> {
        self.book.fine_tuned(made.evaluations);
        if made.report.is_none() {
            self.book.now(Work::Idle);
            base.warn(format!(
                "algorithm `{}` has no private module: there is no pool",
                base.spec.algorithm
            ));
        }
        made.report
    }

    /// Loads the modules of others and hands them to the worker.
    pub(crate) fn assemble_pool(&mut self, base: &mut Base, order: PoolOrder) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        let blobs = Arc::clone(&base.blobs);
        base.start(
            async move { Answer::Pooled(assemble(trainer, order, blobs).await.map(Box::new)) },
        );
    }

    /// Enters a pool that is served.
    pub(crate) fn pooled(&mut self, base: &mut Base, pooled: Pooled) -> PoolReport {
        let text = describe(&pooled.outcome, pooled.took);
        info!("{text}");
        base.remark(text);
        let refused = pooled.outcome.refused.clone();
        self.book.pooled(pooled.outcome, pooled.evaluations);
        PoolReport { refused }
    }

    /// Makes the final model and writes it with its card. Tells whether there is anything to wait for.
    pub(crate) fn finalise(&mut self, base: &mut Base) -> Final {
        let Some(trainer) = &self.trainer else {
            return Final::Written;
        };
        let state = base.config.state.clone();
        // A daemon that was started again after its end has nothing left to train.
        if let Some(card) = final_model::read_card(&state, &base.spec) {
            self.book.concluded(LastStage {
                evaluations: card.finished,
                pool: card.pool,
            });
            self.book.remember(card.last_record);
            return Final::Written;
        }
        let last = self.book.last().cloned();
        let card = ModelCard::new(&base.spec, base.me, self.card().unwrap_or_default(), last);
        self.book.now(Work::LastStage);
        // With a pool, what the algorithm trains after the last round came before it.
        let round = Round(base.spec.rounds);
        let tuning =
            (!base.spec.pool.is_enabled()).then(|| trainer.perform(Order::FineTune(round)));
        let last_stage = self.book.last_stage().clone();
        // Ordered before anything is awaited, so that no later order comes between.
        let copying = trainer.state();
        let journal = base.journal.clone();
        base.start(async move {
            let made = async {
                let mut last_stage = last_stage;
                if let Some(tuning) = tuning {
                    last_stage.evaluations = tuning.await?.value.into_fine_tuned()?;
                }
                let model = copying.await?.value;
                write(state, model, card, &last_stage).await?;
                Ok(Box::new(last_stage))
            };
            let made = made.await;
            // Whoever sees the final model may read the books at once and expects the last record
            // there.
            journal.flush().await;
            Answer::Finalised(made)
        });
        Final::Awaited
    }
}

/// Whether the final model is on the disk already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Final {
    /// It is, or there is none.
    Written,
    /// It comes with [`Answer::Finalised`].
    Awaited,
}

async fn write(
    state: PathBuf,
    model: ParamSet,
    card: ModelCard,
    last_stage: &LastStage,
) -> Result<(), RunError> {
    let card = ModelCard {
        finished: last_stage.evaluations.clone(),
        pool: last_stage.pool.clone(),
        ..card
    };
    let written = on_worker(move || final_model::write(&state, &model, &card)).await;
    written
        .map_err(|error| RunError::StateContent(format!("the final model cannot be made: {error}")))
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
        // A node that keeps its module still says so. The others would wait for it otherwise until
        // the grace time is over.
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
    // No limit on the tries: without its module the node would drop out of everybody's pool, and a
    // disk is freed by people.
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
        // Nodes that never trained apart publish the same bytes. A large federation would hold one
        // module many times.
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
