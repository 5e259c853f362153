//! The models of later rounds take the place of the one that answers.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use fednode_cli::failure::OrFail;
use fednode_cli::model::{ModelArgs, Stamp};
use fednode_learn::ComputeDevice;
use fednode_runtime::exit::ExitCode;

use super::{Current, facts};
use crate::unlabelled::Takes;

/// How often is looked for a newer model. Reading one every two seconds made one request in a hundred a few milliseconds slower.
const EVERY: Duration = Duration::from_secs(10);

/// Replaces the model by newer ones on a thread of its own, until nobody is served any more. A final model is followed by that of
/// the next end, where rounds are added.
///
/// # Errors
/// Fails if the system refuses a thread.
pub(super) fn follow(
    current: &Arc<Current>,
    args: &ModelArgs,
    takes: &Takes,
    device: &ComputeDevice,
    stamp: Stamp,
) -> anyhow::Result<()> {
    let following = Following {
        current: Arc::downgrade(current),
        args: args.clone(),
        takes: takes.clone(),
        device: device.clone(),
        stamp,
        told: String::new(),
    };
    let thread = thread::Builder::new().name("newer-model".into());
    let started: io::Result<_> = thread.spawn(move || following.run());
    started.map(drop).or_fail(ExitCode::Internal)
}

struct Following {
    /// Gone when the server is.
    current: Weak<Current>,
    args: ModelArgs,
    takes: Takes,
    device: ComputeDevice,
    /// Of the model that was read last.
    stamp: Stamp,
    /// What went wrong last time, which is told once.
    told: String,
}

impl Following {
    fn run(mut self) {
        loop {
            thread::sleep(EVERY);
            let Some(current) = self.current.upgrade() else {
                return;
            };
            match self.look(&current) {
                Ok(()) => self.told.clear(),
                Err(error) => {
                    // A checkpoint may be replaced while it is read. The next look finds the one after it.
                    let text = format!("{error:#}");
                    if text != self.told {
                        tracing::warn!("the newer model is not served yet: {text}");
                    }
                    self.told = text;
                }
            }
        }
    }

    /// Reads the model if it is another one.
    fn look(&mut self, current: &Current) -> anyhow::Result<()> {
        let stamp = self.args.stamp()?;
        if stamp == self.stamp {
            return Ok(());
        }
        let model = self.args.load()?;
        let learner = model.learner_on(&self.takes.blank()?, &self.device)?;
        let facts = facts(&model, &self.takes);
        tracing::info!(
            round = facts.round,
            is_final = facts.is_final,
            "serving a newer model"
        );
        current.replace(learner, facts);
        self.stamp = stamp;
        Ok(())
    }
}
