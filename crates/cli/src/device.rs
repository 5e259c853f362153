//! The device a command trains or predicts on, chosen by a probe that survives a crashing driver.

use std::sync::Arc;

use fednode_core::FederationSpec;
use fednode_data::Split;
use fednode_learn::device::Selected;
use fednode_learn::probe::{self, ProbeCommand};
use fednode_learn::trial::{self, Rates, TrialError};
use fednode_learn::{ComputeDevice, DeviceChoice};
use fednode_runtime::exit::ExitCode;

use crate::failure::{OrFail, fail};

/// The hidden command of the child that may crash: `fednode __probe-device QUESTION`.
pub const PROBE_COMMAND: &str = "__probe-device";

/// How to start this program as the child that may crash.
pub fn probe_command() -> anyhow::Result<ProbeCommand> {
    let program = std::env::current_exe().or_fail(ExitCode::Internal)?;
    Ok(ProbeCommand {
        program,
        arguments: vec![PROBE_COMMAND.to_owned()],
        timeout: probe::TIMEOUT,
    })
}

/// A device that works, and why it is not the one that `auto` would have preferred.
#[derive(Debug)]
pub struct Choice {
    /// The device.
    pub selected: Selected,
    /// What keeps `auto` from the GPU.
    pub reason: Option<String>,
    /// How fast both devices train this node's model, if that was found out.
    pub rates: Option<Rates>,
    /// Whether it was named, and not found by `auto`.
    is_named: bool,
}

impl Choice {
    /// Finds the device that a text names.
    ///
    /// # Errors
    /// Says why it cannot be had, and what to choose instead.
    pub fn find(text: &str) -> anyhow::Result<Self> {
        let choice: DeviceChoice = text.parse().or_fail(ExitCode::Configuration)?;
        let (selected, reason) =
            probe::select(choice, &probe_command()?).or_fail(ExitCode::Device)?;
        Ok(Self {
            selected,
            reason: reason.map(|reason| reason.to_string()),
            rates: None,
            is_named: choice != DeviceChoice::Auto,
        })
    }

    /// Tries a GPU at a node's own model and data. `auto` takes the CPU where it is faster, and where the GPU learns
    /// something else. `nodes` nodes of so many threads each share this machine.
    ///
    /// # Errors
    /// Fails if a GPU that was named learns something else than the CPU.
    pub fn for_model(
        self,
        spec: &FederationSpec,
        split: &Arc<Split>,
        (nodes, threads): (usize, usize),
    ) -> anyhow::Result<Self> {
        let Selected::Vulkan(adapter) = &self.selected else {
            return Ok(self);
        };
        let (gpu, cpu) = (
            self.open(threads)?,
            ComputeDevice::cpu(threads).or_fail(ExitCode::Device)?,
        );
        let rates = match trial::check(spec, split, &gpu, &cpu) {
            Ok(()) if self.is_named => return Ok(self),
            Ok(()) => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let rates = trial::race(spec, split, &gpu, &cpu);
                rates.map(|rates| rates.shared(nodes, cpu.n_threads(), cores))
            }
            Err(error) => Err(error),
        };
        let reason = match rates {
            Ok(rates) if rates.prefers_gpu() => {
                tracing::info!("{rates}");
                let rates = Some(rates);
                return Ok(Self { rates, ..self });
            }
            Ok(rates) => rates.to_string(),
            // Training says the same in its round, with what to do about it.
            Err(TrialError::Learn(_)) => return Ok(self),
            Err(error) => format!("`{}`: {error}", adapter.name),
        };
        if self.is_named {
            let advice = "choose another device, or `cpu`";
            return Err(fail(ExitCode::Device, format!("{reason}; {advice}")));
        }
        Ok(Self {
            selected: Selected::Cpu,
            reason: Some(reason),
            ..self
        })
    }

    /// Tells whether it is the CPU.
    pub const fn is_cpu(&self) -> bool {
        matches!(self.selected, Selected::Cpu)
    }

    /// Returns the text that names exactly this device, so that nobody need look again.
    pub fn text(&self) -> String {
        match &self.selected {
            Selected::Cpu => DeviceChoice::Cpu.to_string(),
            Selected::Vulkan(adapter) => DeviceChoice::VulkanAdapter(adapter.index).to_string(),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// Fails if the system refuses threads.
    pub fn open(&self, threads: usize) -> anyhow::Result<ComputeDevice> {
        ComputeDevice::open(&self.selected, threads).or_fail(ExitCode::Device)
    }
}
