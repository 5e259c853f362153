//! The device a command trains or predicts on, chosen by a probe that survives a crashing driver.

use fednode_learn::device::Selected;
use fednode_learn::probe::{self, ProbeCommand};
use fednode_learn::{ComputeDevice, DeviceChoice};
use fednode_runtime::exit::ExitCode;

use crate::failure::OrFail;

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
