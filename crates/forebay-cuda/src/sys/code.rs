//! The driver's result codes.

use core::fmt;

/// `CUresult`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $value:literal,)+) => {
        impl Code {
            $(
                #[doc = concat!("`CUDA_", stringify!($name), "`.")]
                pub const $name: Self = Self($value);
            )+

            /// Every code known by name, with its name in CUDA's header.
            pub const ALL: &'static [(Self, &'static str)] =
                &[$((Self::$name, concat!("CUDA_", stringify!($name))),)+];
        }
    };
}

codes! {
    SUCCESS = 0,
    ERROR_INVALID_VALUE = 1,
    ERROR_OUT_OF_MEMORY = 2,
    ERROR_NOT_INITIALIZED = 3,
    ERROR_DEINITIALIZED = 4,
    ERROR_STUB_LIBRARY = 34,
    ERROR_DEVICE_UNAVAILABLE = 46,
    ERROR_NO_DEVICE = 100,
    ERROR_INVALID_DEVICE = 101,
    ERROR_DEVICE_NOT_LICENSED = 102,
    ERROR_INVALID_IMAGE = 200,
    ERROR_INVALID_CONTEXT = 201,
    ERROR_MAP_FAILED = 205,
    ERROR_UNMAP_FAILED = 206,
    ERROR_ALREADY_MAPPED = 208,
    ERROR_NO_BINARY_FOR_GPU = 209,
    ERROR_NOT_MAPPED = 211,
    ERROR_ECC_UNCORRECTABLE = 214,
    ERROR_UNSUPPORTED_LIMIT = 215,
    ERROR_CONTEXT_ALREADY_IN_USE = 216,
    ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    ERROR_INVALID_PTX = 218,
    ERROR_NVLINK_UNCORRECTABLE = 220,
    ERROR_JIT_COMPILER_NOT_FOUND = 221,
    ERROR_UNSUPPORTED_PTX_VERSION = 222,
    ERROR_CONTAINED = 226,
    ERROR_OPERATING_SYSTEM = 304,
    ERROR_INVALID_HANDLE = 400,
    ERROR_ILLEGAL_STATE = 401,
    ERROR_NOT_FOUND = 500,
    ERROR_NOT_READY = 600,
    ERROR_ILLEGAL_ADDRESS = 700,
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    ERROR_LAUNCH_TIMEOUT = 702,
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    ERROR_CONTEXT_IS_DESTROYED = 709,
    ERROR_ASSERT = 710,
    ERROR_TOO_MANY_PEERS = 711,
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    ERROR_HARDWARE_STACK_ERROR = 714,
    ERROR_ILLEGAL_INSTRUCTION = 715,
    ERROR_MISALIGNED_ADDRESS = 716,
    ERROR_INVALID_ADDRESS_SPACE = 717,
    ERROR_INVALID_PC = 718,
    ERROR_LAUNCH_FAILED = 719,
    ERROR_TENSOR_MEMORY_LEAK = 721,
    ERROR_NOT_PERMITTED = 800,
    ERROR_NOT_SUPPORTED = 801,
    ERROR_SYSTEM_NOT_READY = 802,
    ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    ERROR_MPS_CONNECTION_FAILED = 805,
    ERROR_MPS_RPC_FAILURE = 806,
    ERROR_MPS_SERVER_NOT_READY = 807,
    ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    ERROR_MPS_MAX_CONNECTIONS_REACHED = 809,
    ERROR_MPS_CLIENT_TERMINATED = 810,
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    ERROR_STREAM_CAPTURE_MERGE = 902,
    ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    ERROR_STREAM_CAPTURE_UNJOINED = 904,
    ERROR_STREAM_CAPTURE_ISOLATION = 905,
    ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    ERROR_CAPTURED_EVENT = 907,
    ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    ERROR_TIMEOUT = 909,
    ERROR_EXTERNAL_DEVICE = 911,
    ERROR_UNKNOWN = 999,
}

/// HIP codes that CUDA's driver does not have. HIP uses the same numbers for the others.
impl Code {
    /// `hipErrorInvalidConfiguration`.
    pub const HIP_INVALID_CONFIGURATION: Self = Self(9);
    /// `hipErrorInvalidPitchValue`.
    pub const HIP_INVALID_PITCH: Self = Self(12);
    /// `hipErrorInvalidDevicePointer`.
    pub const HIP_INVALID_DEVICE_POINTER: Self = Self(17);
    /// `hipErrorInvalidMemcpyDirection`.
    pub const HIP_INVALID_COPY_DIRECTION: Self = Self(21);
    /// `hipErrorInsufficientDriver`.
    pub const HIP_INSUFFICIENT_DRIVER: Self = Self(35);
    /// `hipErrorRuntimeMemory`.
    pub const HIP_RUNTIME_MEMORY: Self = Self(1052);
}

/// A vendor's interface: its name and codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// The name, as in "CUDA 13.0".
    pub name: &'static str,
    /// Codes by number, with their names in the vendor's header.
    pub codes: &'static [(Code, &'static str)],
    /// Codes that here mean what another code means in CUDA.
    pub meant: &'static [(Code, Code)],
}

/// The CUDA driver's.
pub const CUDA: Interface = Interface { name: "CUDA", codes: Code::ALL, meant: &[] };

impl Interface {
    /// The name of a code, if known here.
    pub fn name_of(&self, code: Code) -> Option<&'static str> {
        let place = self.codes.binary_search_by_key(&code, |&(code, _)| code).ok()?;
        self.codes.get(place).map(|&(_, name)| name)
    }

    /// CUDA's code for one of this interface.
    pub fn understood(&self, code: Code) -> Code {
        let meant = self.meant.iter().find(|(theirs, _)| *theirs == code);
        meant.map_or(code, |&(_, cuda)| cuda)
    }

    /// Describes a code.
    pub fn describe(&self, code: Code) -> String {
        match self.name_of(code) {
            Some(name) => format!("{name} ({})", code.0),
            None if code == Code::MISSING => "a function this driver lacks".to_owned(),
            None => format!("{} error {}", self.name, code.0),
        }
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Code {
    /// Not a driver result: the driver lacks the function.
    pub const MISSING: Self = Self(u32::MAX);

    /// The name in CUDA's header, if known here.
    pub fn name(self) -> Option<&'static str> {
        CUDA.name_of(self)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&CUDA.describe(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_so_that_every_name_is_found() {
        assert!(Code::ALL.is_sorted_by(|one, two| one.0 < two.0));
        for &(code, name) in Code::ALL {
            assert_eq!(code.name(), Some(name));
        }
        assert_eq!(Code(12_345).to_string(), "CUDA error 12345");
        assert_eq!(Code::ERROR_OUT_OF_MEMORY.to_string(), "CUDA_ERROR_OUT_OF_MEMORY (2)");
    }
}
