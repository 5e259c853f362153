//! Devices: which one to compute on, and how many threads the CPU path uses.
//!
//! `auto` takes the first hardware adapter that Vulkan offers and that works, else the CPU. Software Vulkan drivers
//! (SwiftShader, lavapipe) are slower than the CPU path and taken only when named, `vulkan:<i>`. Whether an adapter
//! works is found out in a child process, [`crate::probe`]: a driver that crashes takes only the child with it.
//!
//! # Threads
//!
//! The CPU path (`fednode-kernels` and burn-flex) parallelises with rayon and takes as many threads as the pool that it runs in has.
//! Each [`ComputeDevice`] owns such a pool and runs all work inside it, so a process can hold several devices with one
//! thread each (nodes in parallel), or one with all cores. `RAYON_NUM_THREADS` is not looked at. With small batches one
//! thread per node and nodes side by side is faster than one node on all threads.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn::tensor::{Device, DeviceKind};
use fednode_core::guarded::Carried;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::{Deserialize, Serialize};

use crate::vulkan;

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first hardware Vulkan adapter that works, else the CPU.
    #[default]
    Auto,
    /// The first hardware Vulkan adapter; an error if it does not work.
    Vulkan,
    /// The Vulkan adapter of this number in the list of adapters, software drivers included.
    VulkanAdapter(usize),
    /// The CPU.
    Cpu,
}

/// The text is no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device: expected auto, vulkan, vulkan:<number of the adapter> or cpu")]
pub struct ParseDeviceError(String);

impl FromStr for DeviceChoice {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let adapter = text
            .strip_prefix("vulkan:")
            .and_then(|number| number.parse().ok());
        match (text, adapter) {
            ("auto", _) => Ok(Self::Auto),
            ("vulkan", _) => Ok(Self::Vulkan),
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(number)) => Ok(Self::VulkanAdapter(number)),
            _ => Err(ParseDeviceError(text.to_owned())),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Vulkan => f.write_str("vulkan"),
            Self::VulkanAdapter(number) => write!(f, "vulkan:{number}"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// What kind of hardware an adapter is, with its number among those of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterKind {
    /// A graphics card.
    Discrete(usize),
    /// A GPU that shares the CPU's memory.
    Integrated(usize),
    /// A GPU passed through to a virtual machine.
    Virtual(usize),
    /// A driver that computes on the CPU.
    Software,
    /// Something that says not what it is; cannot be used.
    Unknown,
}

/// One Vulkan adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Its number in the list of all adapters: `vulkan:<index>`.
    pub index: usize,
    /// What it calls itself.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// What it is.
    pub kind: AdapterKind,
}

impl Adapter {
    /// Tells whether it is hardware that we can use.
    pub const fn is_hardware(&self) -> bool {
        matches!(
            self.kind,
            AdapterKind::Discrete(_) | AdapterKind::Integrated(_) | AdapterKind::Virtual(_)
        )
    }

    /// Returns the selector that burn knows it by, if it does.
    fn selector(&self) -> Option<DeviceKind> {
        match self.kind {
            AdapterKind::Discrete(number) => Some(DeviceKind::DiscreteGpu(number)),
            AdapterKind::Integrated(number) => Some(DeviceKind::IntegratedGpu(number)),
            AdapterKind::Virtual(number) => Some(DeviceKind::VirtualGpu(number)),
            AdapterKind::Software => Some(DeviceKind::Cpu),
            AdapterKind::Unknown => None,
        }
    }
}

/// A device that is known to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selected {
    /// The CPU.
    Cpu,
    /// This adapter.
    Vulkan(Adapter),
}

/// The threads of a device could not be started.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refuses more threads.
    #[error("cannot start {threads} compute threads")]
    Threads {
        /// How many were wanted.
        threads: usize,
        /// Why not.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
    /// The adapter is of no kind that can be addressed.
    #[error(
        "adapter `{0}` does not say what kind of device it is and cannot be used: try another, or `cpu`"
    )]
    Unknown(String),
    /// The program is one for the CPU alone.
    #[error("this program was built for the CPU alone: choose device `cpu`")]
    NotBuilt,
}

/// An open device; clones share it and its threads.
#[derive(Clone)]
pub struct ComputeDevice {
    tensors: Device,
    threads: Arc<ThreadPool>,
    name: String,
}

impl fmt::Debug for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads.current_num_threads();
        f.debug_struct("ComputeDevice")
            .field("name", &self.name)
            .field("threads", &threads)
            .finish()
    }
}

impl ComputeDevice {
    /// Opens a device that a probe has found to work.
    ///
    /// `threads` is what the CPU path may use; 0 for one per core.
    ///
    /// # Errors
    /// Fails if the system refuses the threads, or for an adapter of unknown kind.
    pub fn open(selected: &Selected, threads: usize) -> Result<Self, OpenError> {
        let (tensors, name, threads) = match selected {
            Selected::Cpu => (Device::flex(), "cpu".to_owned(), threads),
            // The host only prepares batches; the work is the adapter's.
            Selected::Vulkan(adapter) => (
                open_adapter(adapter)?,
                format!("vulkan: {}", adapter.name),
                1,
            ),
        };
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|number| format!("compute-{number}"));
        let threads = Arc::new(
            pool.build()
                .map_err(|source| OpenError::Threads { threads, source })?,
        );
        Ok(Self {
            tensors,
            threads,
            name,
        })
    }

    /// Opens the CPU path; 0 threads for one per core.
    ///
    /// # Errors
    /// Fails if the system refuses the threads.
    pub fn cpu(threads: usize) -> Result<Self, OpenError> {
        Self::open(&Selected::Cpu, threads)
    }

    /// Returns its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells whether it is the CPU.
    pub fn is_cpu(&self) -> bool {
        is_cpu(&self.tensors)
    }

    /// Returns how many threads the CPU path uses.
    pub fn n_threads(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Returns the device as the tensor library knows it.
    pub fn tensors(&self) -> &Device {
        &self.tensors
    }

    /// Runs work on the device's own threads.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        // What panics there is caught by whoever guards this call.
        let guard = Carried::from_here();
        self.threads.install(|| guard.over(work))
    }
}

/// Tells whether tensors live where the host computes, so that reading them waits for nothing.
pub(crate) fn is_cpu(device: &Device) -> bool {
    *device == Device::flex()
}

/// Opens an adapter without any check; for the probe, and for what the probe found to work.
pub(crate) fn open_adapter(adapter: &Adapter) -> Result<Device, OpenError> {
    let selector = adapter
        .selector()
        .ok_or_else(|| OpenError::Unknown(adapter.name.clone()))?;
    vulkan::open(selector).ok_or(OpenError::NotBuilt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_one_text_each() {
        for text in ["auto", "vulkan", "vulkan:3", "cpu"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "vulkan:", "vulkan:x", "vulkan:-1"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_device_has_its_own_threads() {
        let (one, two) = (
            ComputeDevice::cpu(1).unwrap(),
            ComputeDevice::cpu(2).unwrap(),
        );
        assert_eq!(one.run(rayon::current_num_threads), 1);
        assert_eq!(two.run(rayon::current_num_threads), 2);
    }
}
