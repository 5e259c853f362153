//! The one place that touches Vulkan. A program built without the feature `vulkan` knows no adapter, and trains on the CPU.

use burn::tensor::{Device, DeviceKind};

use crate::device::Adapter;

/// Whether this program was built with the GPU path.
pub(crate) const IS_BUILT: bool = cfg!(feature = "vulkan");

/// Opens the device that burn knows by this selector; nothing in a program without the GPU path.
#[cfg(feature = "vulkan")]
pub(crate) fn open(selector: DeviceKind) -> Option<Device> {
    Some(Device::vulkan(selector))
}

/// Tells whether a device is hardware: software drivers miscompile some of what hardware is quickest at.
#[cfg(feature = "vulkan")]
pub(crate) fn is_hardware(device: &Device) -> bool {
    use std::sync::OnceLock;

    static SOFTWARE: OnceLock<Device> = OnceLock::new();
    let software = SOFTWARE.get_or_init(|| Device::vulkan(DeviceKind::Cpu));
    device != software && !crate::device::is_cpu(device)
}

/// Lists the Vulkan adapters of this machine. May crash with a bad driver: call it in a child only.
#[cfg(feature = "vulkan")]
pub(crate) fn adapters() -> Vec<Adapter> {
    use burn::tensor::wgpu::wgpu;

    use crate::device::AdapterKind;

    let backends = wgpu::Backends::VULKAN;
    let descriptor = wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let found =
        futures::executor::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends));
    // Every kind counts from zero on its own: that is how burn addresses adapters.
    let mut counts = [0; 3];
    let mut number = |kind: usize| {
        counts[kind] += 1;
        counts[kind] - 1
    };
    let describe = |(index, adapter): (usize, &wgpu::Adapter)| {
        let info = adapter.get_info();
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete(number(0)),
            wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated(number(1)),
            wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual(number(2)),
            wgpu::DeviceType::Cpu => AdapterKind::Software,
            wgpu::DeviceType::Other => AdapterKind::Unknown,
        };
        Adapter {
            index,
            name: info.name,
            driver: info.driver,
            kind,
        }
    };
    found.iter().enumerate().map(describe).collect()
}

#[cfg(not(feature = "vulkan"))]
pub(crate) fn open(_: DeviceKind) -> Option<Device> {
    None
}

#[cfg(not(feature = "vulkan"))]
pub(crate) fn adapters() -> Vec<Adapter> {
    Vec::new()
}
