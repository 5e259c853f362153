//! A module that is trained on, before it is published or to compare with (`pool.fine_tune`, `pool.controls`).
//!
//! The rest of the model is frozen, so the module's inputs are computed once. Learning rate and batch size are the
//! federation's. With the guard the epoch of the lowest validation loss is taken, the module as it was among them;
//! without it the last epoch. A node with the guard and without validation samples keeps its module as it was.

use super::Node;
use super::cache::{Cache, CachedBatch, Keeps, Source};
use super::mixture::{self, Member};
use super::settings::PoolSettings;
use super::train::{self, Judge, Meter, Plan, Stage};
use crate::error::LearnError;
use crate::train::cross_entropy;
use crate::weights::Weights;

/// Fine-tunes a copy of the own module; returns it with the steps of gradient descent. Not for extractors.
///
/// # Errors
/// Fails when the watcher breaks off.
pub(crate) fn fine_tune(
    node: &Node<'_>,
    spec: &PoolSettings,
    meter: &mut Meter<'_, '_>,
) -> Result<(Member, u32), LearnError> {
    debug_assert!(node.is_tunable(), "an extractor's inputs are not cached");
    let start = mixture::own(node.algorithm, node.modular);
    if spec.guard && node.data.validation.is_empty() {
        return Ok((start, 0));
    }
    let Node {
        algorithm,
        modular,
        classes,
        device,
        seeds,
        room,
        ..
    } = *node;
    let (keeps, epochs) = (Keeps::ModuleInput, meter.epochs);
    let source = Source {
        algorithm,
        modular,
        classes,
        device,
        seeds,
        room,
        keeps,
        epochs,
    };
    let cache = Cache::fill(&source, &[], &node.data.train, meter.watch)?;
    let validation = Cache::fill(&source, &[], &node.data.validation, meter.watch)?;
    let judge = |member: &Member| loss(node, &validation, member);
    let step = |member: &mut Member, positions: &[u32]| {
        let tape: Vec<Weights> = member.iter().map(Weights::recorded).collect();
        let CachedBatch {
            input,
            side,
            targets,
        } = cache.batch(positions, device)?;
        let logits = modular.close(side, modular.run_module(&tape, input));
        Ok(train::descend(
            member,
            tape,
            cross_entropy(logits, targets),
            node.training.learning_rate,
        ))
    };
    let (stage, samples, batch_size) = (Stage::FineTuning, cache.len(), node.training.batch_size);
    let plan = Plan {
        stage,
        seeds,
        samples,
        epochs: spec.epochs,
        batch_size,
        drops_last: false,
    };
    let before = spec.guard.then(|| judge(&start)).transpose()?;
    let judge: Option<Judge<'_, Member>> = if spec.guard { Some(&judge) } else { None };
    let (best, steps) = train::run(&plan, start.clone(), step, judge, meter)?;
    let is_better = |loss: Option<f64>| match (loss, before) {
        (Some(after), Some(before)) => after < before,
        _ => true,
    };
    Ok((
        best.filter(|best| is_better(best.loss))
            .map_or(start, |best| best.weights),
        steps,
    ))
}

/// Returns the mean loss of a module.
fn loss(node: &Node<'_>, cache: &Cache, member: &Member) -> Result<f64, LearnError> {
    let mut sum = 0.0;
    for positions in &cache.chunks() {
        let CachedBatch { input, side, .. } = cache.batch(positions, node.device)?;
        let logits = node
            .modular
            .close(side, node.modular.run_module(member, input));
        sum += train::log_loss(&logits, &cache.labels(positions));
    }
    Ok(sum / cache.len().max(1) as f64)
}
