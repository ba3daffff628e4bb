//! Device information from OpenCL, read without trusting the sizes it reports.

use core::fmt;

use cl3::device as cl;
use cl3::platform::{CL_PLATFORM_NAME, get_platform_data};
use cl3::types::{cl_device_id, cl_platform_id};
use forebay_core::{Alignment, Bytes};
use forebay_hal::{Call, Error, Result, named_enum};

named_enum! {
    /// The kind of hardware behind an OpenCL device, as the platform reports it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum OpenClDeviceType {
        /// A graphics processor.
        Gpu = "GPU",
        /// An accelerator card.
        Accelerator = "accelerator",
        /// The processor of the host.
        Cpu = "CPU",
        /// Anything else.
        Other = "device",
    }
}

impl OpenClDeviceType {
    fn of(bits: u64) -> Self {
        let has = |bit| bits & bit != 0;
        if has(cl::CL_DEVICE_TYPE_GPU) {
            Self::Gpu
        } else if has(cl::CL_DEVICE_TYPE_ACCELERATOR) {
            Self::Accelerator
        } else if has(cl::CL_DEVICE_TYPE_CPU) {
            Self::Cpu
        } else {
            Self::Other
        }
    }
}

/// The kinds of shared virtual memory that a device supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SvmSupport {
    /// Buffers with one address for host and device, mapped before the host uses them.
    pub coarse: bool,
    /// Buffers that host and device use without mapping.
    pub fine: bool,
    /// All memory of the host.
    pub system: bool,
}

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenClDeviceInfo {
    /// Its number, as [`OpenClDevice::open`](crate::OpenClDevice::open) takes it.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// The platform it belongs to.
    pub platform: String,
    /// The kind of hardware.
    pub device_type: OpenClDeviceType,
    /// The OpenCL version, with the vendor's suffix.
    pub version: String,
    /// The version of the driver.
    pub driver_version: String,
    /// Its total memory.
    pub total_memory: Bytes,
    /// The largest allocation that it guarantees.
    pub max_allocation: Bytes,
    /// The granularity of sub-buffer offsets.
    pub alignment: Alignment,
    /// The shared virtual memory it supports.
    pub svm: SvmSupport,
}

impl fmt::Display for OpenClDeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, platform, device_type, version, total_memory, .. } = self;
        write!(
            f,
            "opencl:{ordinal} {name} ({device_type} of {platform}, {version}, {total_memory})"
        )
    }
}

/// A text about a device; empty where there is none.
pub(crate) fn text(device: cl_device_id, name: u32) -> String {
    text_of(&cl::get_device_data(device, name).unwrap_or_default())
}

/// A number about a device, of whichever width it answers with; 0 where it knows none.
pub(crate) fn number(device: cl_device_id, name: u32) -> u64 {
    as_number(&cl::get_device_data(device, name).unwrap_or_default())
}

/// The name of a platform.
pub(crate) fn platform_name(platform: cl_platform_id) -> String {
    text_of(&get_platform_data(platform, CL_PLATFORM_NAME).unwrap_or_default())
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).trim().to_owned()
}

/// The first eight bytes as a number; shorter ones are what they are.
pub(crate) fn as_number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(wide)
}

/// The largest alignment that is believed: 1 MiB. Devices ask for some hundred bytes, for their largest type.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// What a device means that asks for so many bits; `None` where that cannot be meant.
fn alignment_of(bits: u64) -> Option<Alignment> {
    let bytes = bits / 8;
    let is_sound = bits.is_multiple_of(8) && (1..=MAX_ALIGNMENT).contains(&bytes);
    Alignment::new(bytes).ok().filter(|_| is_sound)
}

/// Refuses a device whose alignment cannot be meant: every sub-buffer would be refused, or all memory.
pub(crate) fn check_alignment(device: cl_device_id) -> Result<()> {
    let bits = number(device, cl::CL_DEVICE_MEM_BASE_ADDR_ALIGN);
    if alignment_of(bits).is_some() {
        return Ok(());
    }
    let missing = format!(
        "{} asks for buffers aligned to {bits} bits (CL_DEVICE_MEM_BASE_ADDR_ALIGN), where a power of two from 8 to {} \
         can be meant; its driver is broken",
        text(device, cl::CL_DEVICE_NAME),
        MAX_ALIGNMENT * 8
    );
    Err(Error::Unsupported { call: Call::Open, missing: missing.into() })
}

/// Everything about a device but its number.
pub(crate) fn describe(device: cl_device_id, platform: &str) -> OpenClDeviceInfo {
    let svm = number(device, cl::CL_DEVICE_SVM_CAPABILITIES);
    let svm = |bit| svm & bit != 0;
    let name = text(device, cl::CL_DEVICE_NAME);
    let alignment = alignment_of(number(device, cl::CL_DEVICE_MEM_BASE_ADDR_ALIGN));
    OpenClDeviceInfo {
        ordinal: 0,
        name: if name.is_empty() { "an OpenCL device".to_owned() } else { name },
        platform: platform.to_owned(),
        device_type: OpenClDeviceType::of(number(device, cl::CL_DEVICE_TYPE)),
        version: text(device, cl::CL_DEVICE_VERSION),
        driver_version: text(device, cl::CL_DRIVER_VERSION),
        total_memory: Bytes::new(number(device, cl::CL_DEVICE_GLOBAL_MEM_SIZE)),
        max_allocation: Bytes::new(number(device, cl::CL_DEVICE_MAX_MEM_ALLOC_SIZE)),
        // A device without one is listed, and cannot be opened.
        alignment: alignment.unwrap_or(Alignment::BLOCK),
        svm: SvmSupport {
            coarse: svm(cl::CL_DEVICE_SVM_COARSE_GRAIN_BUFFER),
            fine: svm(cl::CL_DEVICE_SVM_FINE_GRAIN_BUFFER),
            system: svm(cl::CL_DEVICE_SVM_FINE_GRAIN_SYSTEM),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_any_length_are_read() {
        assert_eq!(as_number(&[]), 0);
        assert_eq!(as_number(&[1, 2]), 0x201);
        assert_eq!(as_number(&[0xff; 24]), u64::MAX);
        assert_eq!(text_of(b" Portable\0rest"), "Portable");
        assert_eq!(text_of(b"no end"), "no end");
    }

    #[test]
    fn an_alignment_that_cannot_be_meant_is_none() {
        assert_eq!(alignment_of(4096), Alignment::new(512).ok());
        for bits in [0, 4, 12, 1000, u64::from(u32::MAX), 1 << 24, u64::MAX] {
            assert_eq!(alignment_of(bits), None, "{bits}");
        }
    }

    #[test]
    fn a_device_of_several_types_is_the_one_that_computes_best() {
        let all = cl::CL_DEVICE_TYPE_GPU | cl::CL_DEVICE_TYPE_CPU | cl::CL_DEVICE_TYPE_DEFAULT;
        assert_eq!(OpenClDeviceType::of(all), OpenClDeviceType::Gpu);
        assert_eq!(OpenClDeviceType::of(0), OpenClDeviceType::Other);
    }
}
