//! Who trains for a running node: a learner on the device that was chosen, and on the CPU if that is a GPU and fails. Where rows may
//! be appended to the node's data, it goes on with all of them from the next round on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fednode_core::work::{WorkError, Worker};
use fednode_core::{FederationSpec, ParamSet};
use fednode_data::{Split, Stamp};
use fednode_learn::fallback::Fallback;
use fednode_learn::growing::Growing;
use fednode_learn::{CacheBudget, ComputeDevice, Learner};
use fednode_runtime::{ExitCode, Trainer};
use tokio::sync::watch;

use crate::rows::{Restless, Rows};
use fednode_cli::config::Config;
use fednode_cli::data::{Mine, is_own};
use fednode_cli::device::Choice;
use fednode_cli::failure::{fail, no_learner};
use fednode_cli::initial;

/// Opens the device and builds the learner of what was agreed on, with this node's own model. The files were read when they were as
/// `stamp` says.
pub(crate) fn build(
    config: &Config,
    (agreed, spec): (&Arc<FederationSpec>, &FederationSpec),
    mine: &Mine,
    stamp: Stamp,
) -> anyhow::Result<Trainer> {
    let choice = Choice::find(&config.device)?.for_model(spec, &mine.split, (1, config.threads))?;
    if let Some(reason) = &choice.reason {
        tracing::info!(%reason, "training on the CPU");
    }
    let device = choice.open(config.threads)?;
    let recipe = Recipe::of(config, spec, mine)?;
    let learner = recipe.learner(&device)?;
    tracing::info!(
        device = device.name(),
        threads = device.n_threads(),
        samples = mine.split.train.len(),
        "ready to train"
    );
    if is_own(&spec.data.partition)
        && let Some(exposed) = learner.surely_exposed()
    {
        accept(&exposed, config, spec)?;
    }
    let card = mine.card(spec, device.name(), learner.state().n_values() as u64);
    let has_failed = Arc::new(AtomicBool::new(false));
    let worker = recipe.protected(learner, &device, config.threads, &has_failed);
    if !mine.may_grow {
        return Ok(Trainer::of(worker, card));
    }
    let (told, card) = watch::channel(card);
    let rows = Rows {
        config: config.clone(),
        agreed: Arc::clone(agreed),
        own: spec.clone(),
        device,
        has_failed,
        stamp,
        began_with: mine.began_with.clone(),
        read: mine.node_seed,
        restless: Restless::default(),
        card: Arc::new(told),
    };
    let worker = Box::new(Growing::new(worker, rows.watched()));
    Ok(Trainer { worker, card })
}

/// Says that members can tell who is in the node's data, and goes on if its owner accepts that.
///
/// # Errors
/// Fails without the owner's word, and names what else could be done.
fn accept(exposed: &str, config: &Config, spec: &FederationSpec) -> anyhow::Result<()> {
    if config.privacy.accept_exposure {
        tracing::warn!("{exposed}; `privacy.accept_exposure` accepts that");
        return Ok(());
    }
    // Numbers and texts have no protection that would hide it.
    let other = match spec.data.target {
        Some(_) => "",
        None if spec.fingerprints.vocabulary_size > 0 => "",
        None => "make the federation with `--privacy masked`, `dp:4` or `masked+dp:4`, or ",
    };
    let text = format!(
        "{exposed}: `fednode privacy` measures it. Bring more samples, {other}accept it by `accept_exposure = true` in table \
         `privacy` of node.toml"
    );
    Err(fail(ExitCode::Configuration, text))
}

/// What this node's learner is made from, on whichever device.
pub(crate) struct Recipe {
    spec: FederationSpec,
    node_seed: u64,
    split: Arc<Split>,
    budget: CacheBudget,
    initial: Option<Arc<ParamSet>>,
}

impl Recipe {
    pub(crate) fn of(config: &Config, spec: &FederationSpec, mine: &Mine) -> anyhow::Result<Self> {
        let whole = CacheBudget::default();
        let disk_bytes = fednode_store::disk_free(config.state())
            .map_or(whole.disk_bytes, |free| whole.disk_bytes.min(free / 2));
        Ok(Self {
            spec: spec.clone(),
            node_seed: mine.node_seed,
            split: Arc::clone(&mine.split),
            budget: CacheBudget {
                memory_bytes: config.storage.feature_memory_mib.saturating_mul(1 << 20),
                folder: Some(config.state().to_owned()),
                disk_bytes,
            },
            initial: initial::of(spec, config.initial.as_deref())?,
        })
    }

    /// Lets the CPU go on where a GPU fails, and says there that it has.
    pub(crate) fn protected(
        self,
        learner: Learner,
        device: &ComputeDevice,
        threads: usize,
        has_failed: &Arc<AtomicBool>,
    ) -> Box<dyn Worker> {
        if device.is_cpu() {
            return Box::new(learner);
        }
        let spare = move || -> Result<Box<dyn Worker>, WorkError> {
            let failed = |error: anyhow::Error| WorkError::Training(format!("{error:#}"));
            let cpu = ComputeDevice::cpu(threads).map_err(|error| failed(error.into()))?;
            Ok(Box::new(self.learner(&cpu).map_err(failed)?))
        };
        let fallback = Fallback::new(Box::new(learner), Box::new(spare));
        Box::new(fallback.telling(Arc::clone(has_failed)))
    }

    pub(crate) fn learner(&self, device: &ComputeDevice) -> anyhow::Result<Learner> {
        let split = Arc::clone(&self.split);
        let mut learner =
            Learner::new(&self.spec, self.node_seed, split, device).map_err(no_learner)?;
        learner.keep_in(self.budget.clone());
        if let Some(note) = initial::start(&mut learner, self.initial.as_deref())? {
            tracing::warn!("{note}");
        }
        Ok(learner)
    }
}
