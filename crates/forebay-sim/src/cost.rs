//! The cost of calls and copies, from one table of measured figures.
//!
//! Measured on one NVIDIA H200 (139.8 GiB, PCIe 5), driver 580.159, CUDA 13.0, 2026-11-15. Costs are interpolated
//! linearly between measured sizes and extrapolated with the last slope. Calls that were not measured cost nothing,
//! with four exceptions that use the figure of a similar call: registering and unregistering use that of pinned memory,
//! querying a stream that of querying an event, fills that of copies on the device, and copies between devices those of
//! both directions over the host.
//!
//! The simulation does not sleep. It keeps a clock for each stream, for each direction of the wire and for the host,
//! and reports how long the run would have taken. Copies in one direction share the wire. Both directions at once run
//! at full speed, together measured at 81.9 GB/s and not twice 55. Calls that free memory, such as `free`, wait on that
//! clock for all work of the device, as the driver does.

use core::time::Duration;

use forebay_core::{Bytes, GIB, KIB, MIB};
use forebay_hal::{Call, Copy};

/// A cost that depends on a size: points of (bytes, nanoseconds), sizes rising.
#[derive(Clone, Copy, Debug)]
struct Curve(&'static [(u64, u64)]);

impl Curve {
    fn at(self, size: Bytes) -> Duration {
        let size = size.get();
        let points = self.0;
        let [first, .., last] = points else {
            return Duration::from_nanos(points.first().map_or(0, |point| point.1));
        };
        if size <= first.0 {
            return Duration::from_nanos(first.1);
        }
        // The first pair of neighbours whose right one is not below `size`; beyond all, the last.
        let pair = points.windows(2).find(|pair| pair.iter().any(|point| point.0 >= size));
        let (left, right) = match pair.or_else(|| points.windows(2).next_back()) {
            Some([left, right]) => (left, right),
            _ => (first, last),
        };
        // Signed: some calls are cheaper for larger handles.
        let rise = i128::from(right.1) - i128::from(left.1);
        let share = rise * i128::from(size - left.0) / i128::from((right.0 - left.0).max(1));
        let nanos = u64::try_from(i128::from(left.1) + share);
        // Only a falling last slope can pass below nothing, and none does.
        Duration::from_nanos(nanos.unwrap_or(if share > 0 { u64::MAX } else { 0 }))
    }
}

/// The measured table. One row a call or copy; times in nanoseconds.
mod h200 {
    use super::{Curve, GIB, KIB, MIB};

    const US: u64 = 1000;
    const MS: u64 = 1_000_000;

    pub(super) const ALLOCATE: Curve =
        Curve(&[(MIB, 62 * US), (64 * MIB, 81 * US), (GIB, 200 * US), (8 * GIB, 506 * US)]);
    pub(super) const FREE: Curve =
        Curve(&[(MIB, 47 * US), (64 * MIB, 78 * US), (GIB, 602 * US), (8 * GIB, 4632 * US)]);
    pub(super) const ALLOCATE_PINNED: Curve =
        Curve(&[(MIB, 890 * US), (64 * MIB, 31 * MS), (GIB, 481 * MS)]);
    pub(super) const FREE_PINNED: Curve =
        Curve(&[(MIB, 400 * US), (64 * MIB, 9 * MS), (GIB, 140 * MS)]);

    // One handle of each size, from 1 GiB built of equal handles.
    pub(super) const CREATE_PAGE: Curve = Curve(&[
        (2 * MIB, 14_488),
        (8 * MIB, 10_063),
        (32 * MIB, 12_719),
        (128 * MIB, 17_250),
        (512 * MIB, 53_500),
    ]);
    pub(super) const MAP: Curve = Curve(&[
        (2 * MIB, 1_051),
        (8 * MIB, 641),
        (32 * MIB, 719),
        (128 * MIB, 1_500),
        (512 * MIB, 4_000),
    ]);
    pub(super) const SET_ACCESS: Curve = Curve(&[
        (2 * MIB, 32_387),
        (8 * MIB, 25_031),
        (32 * MIB, 27_406),
        (128 * MIB, 41_625),
        (512 * MIB, 82_500),
    ]);
    pub(super) const UNMAP: Curve = Curve(&[
        (2 * MIB, 23_377),
        (8 * MIB, 17_969),
        (32 * MIB, 21_625),
        (128 * MIB, 29_250),
        (512 * MIB, 38_500),
    ]);
    pub(super) const RELEASE_PAGE: Curve = Curve(&[
        (2 * MIB, 12_297),
        (8 * MIB, 13_898),
        (32 * MIB, 24_875),
        (128 * MIB, 109_750),
        (512 * MIB, 490_500),
    ]);
    pub(super) const RESERVE: Curve = Curve(&[(0, 500), (64 << 40, 2_400)]);

    pub(super) const MEMORY_INFO: Curve = Curve(&[(0, 5_400)]);
    pub(super) const RECORD_EVENT: Curve = Curve(&[(0, 250)]);
    pub(super) const QUERY_EVENT: Curve = Curve(&[(0, 220)]);
    pub(super) const WAIT_EVENT: Curve = Curve(&[(0, 210)]);
    pub(super) const NOT_MEASURED: Curve = Curve(&[(0, 0)]);

    // Copies, on the stream's clock. From bandwidths: 1 MiB at 38.4 GB/s is 27.3 us.
    pub(super) const TO_DEVICE_PINNED: Curve = Curve(&[
        (4 * KIB, 8_300),
        (64 * KIB, 9_300),
        (MIB, 27_307),
        (64 * MIB, 1_217_948),
        (GIB, 19_451_845),
    ]);
    pub(super) const TO_HOST_PINNED: Curve = Curve(&[
        (4 * KIB, 7_100),
        (64 * KIB, 8_200),
        (MIB, 26_019),
        (64 * MIB, 1_215_741),
        (GIB, 19_451_845),
    ]);
    pub(super) const TO_DEVICE: Curve = Curve(&[
        (4 * KIB, 7_877),
        (64 * KIB, 25_206),
        (MIB, 85_949),
        (64 * MIB, 9_586_981),
        (GIB, 153_391_689),
    ]);
    pub(super) const TO_HOST: Curve = Curve(&[
        (4 * KIB, 8_359),
        (64 * KIB, 16_384),
        (MIB, 126_334),
        (64 * MIB, 5_687_192),
        (GIB, 90_995_071),
    ]);
    /// 4,146 GB/s read and written: half of that copied.
    pub(super) const ON_DEVICE: Curve = Curve(&[(0, 0), (GIB, 517_965)]);
    /// One thread copies host memory at 9.0 GB/s.
    pub(super) const ON_HOST: Curve = Curve(&[(0, 0), (GIB, 119_304_647)]);
}

/// The costs that a machine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostModel {
    /// The measured figures of one H200.
    #[default]
    H200,
    /// Everything is free; only order matters.
    Free,
}

impl CostModel {
    /// The host time of `call` on one handle or allocation of `size`.
    pub fn call(self, call: Call, size: Bytes) -> Duration {
        if self == Self::Free {
            return Duration::ZERO;
        }
        let curve = match call {
            Call::Allocate => h200::ALLOCATE,
            Call::Free => h200::FREE,
            Call::AllocatePinned | Call::Register => h200::ALLOCATE_PINNED,
            Call::FreePinned | Call::Unregister => h200::FREE_PINNED,
            Call::CreatePage => h200::CREATE_PAGE,
            Call::ReleasePage => h200::RELEASE_PAGE,
            Call::Map => h200::MAP,
            Call::SetAccess => h200::SET_ACCESS,
            Call::Unmap => h200::UNMAP,
            Call::Reserve => h200::RESERVE,
            Call::MemoryInfo => h200::MEMORY_INFO,
            Call::RecordEvent => h200::RECORD_EVENT,
            Call::QueryEvent | Call::QueryStream => h200::QUERY_EVENT,
            Call::WaitEvent => h200::WAIT_EVENT,
            _ => h200::NOT_MEASURED,
        };
        curve.at(size)
    }

    /// The stream time of a copy; `pinned` says whether its host side is pinned.
    pub fn copy(self, copy: &Copy, pinned: bool) -> Duration {
        if self == Self::Free || copy.extent().is_empty() {
            return Duration::ZERO;
        }
        let curve = match (copy.from().is_host(), copy.to().is_host(), pinned) {
            (true, false, true) => h200::TO_DEVICE_PINNED,
            (true, false, false) => h200::TO_DEVICE,
            (false, true, true) => h200::TO_HOST_PINNED,
            (false, true, false) => h200::TO_HOST,
            (false, false, _) => h200::ON_DEVICE,
            (true, true, _) => h200::ON_HOST,
        };
        curve.at(copy.extent().bytes())
    }

    /// The stream time in which the device itself writes `size` bytes.
    pub fn on_device(self, size: Bytes) -> Duration {
        match self {
            Self::Free => Duration::ZERO,
            Self::H200 => h200::ON_DEVICE.at(size),
        }
    }

    /// The stream time to send `size` bytes to another device: through pinned host memory, since no machine with two
    /// devices was measured.
    pub fn to_peer(self, size: Bytes) -> Duration {
        match self {
            Self::Free => Duration::ZERO,
            Self::H200 => {
                h200::TO_HOST_PINNED.at(size).saturating_add(h200::TO_DEVICE_PINNED.at(size))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Address;
    use forebay_hal::Location;

    use super::*;

    #[test]
    fn measured_points_are_met_and_the_line_goes_on() {
        let cost = |call, size| CostModel::H200.call(call, size).as_nanos();
        for (call, curve) in [
            (Call::Allocate, h200::ALLOCATE),
            (Call::Free, h200::FREE),
            (Call::AllocatePinned, h200::ALLOCATE_PINNED),
            (Call::FreePinned, h200::FREE_PINNED),
            (Call::CreatePage, h200::CREATE_PAGE),
            (Call::ReleasePage, h200::RELEASE_PAGE),
            (Call::Map, h200::MAP),
            (Call::SetAccess, h200::SET_ACCESS),
            (Call::Unmap, h200::UNMAP),
            (Call::Reserve, h200::RESERVE),
        ] {
            for &(size, nanos) in curve.0 {
                assert_eq!(cost(call, Bytes::new(size)), u128::from(nanos), "{call} of {size} B");
            }
        }
        assert_eq!(cost(Call::CreatePage, Bytes::mib(5)), 14_488 - (14_488 - 10_063) / 2);
        assert_eq!(cost(Call::Allocate, Bytes::gib(1)), 200_000);
        assert_eq!(cost(Call::Allocate, Bytes::gib(8)), 506_000);
        assert_eq!(cost(Call::Allocate, Bytes::new(1)), 62_000);
        let between = cost(Call::Allocate, Bytes::gib(4));
        assert!((200_001..506_000).contains(&between), "{between}");
        assert!(cost(Call::Allocate, Bytes::gib(16)) > 506_000);
        assert_eq!(cost(Call::SetAccess, Bytes::mib(2)), 32_387);
        assert_eq!(CostModel::Free.call(Call::Allocate, Bytes::gib(1)), Duration::ZERO);
        let _ = CostModel::H200.call(Call::Allocate, Bytes::MAX);
    }

    #[test]
    fn a_gibibyte_takes_the_wire_at_its_measured_speed() {
        let place = |host: bool| {
            let at = Address::new(1 << 40);
            if host { Location::Host(at) } else { Location::Device(at) }
        };
        for (from_host, pinned, gigabytes_a_second) in
            [(true, true, 55.2), (false, true, 55.2), (true, false, 7.0), (false, false, 11.8)]
        {
            let copy = Copy::linear(place(!from_host), place(from_host), Bytes::gib(1)).unwrap();
            let seconds = CostModel::H200.copy(&copy, pinned).as_secs_f64();
            let speed = GIB as f64 / seconds / 1e9;
            assert!((speed - gigabytes_a_second).abs() < 0.01, "{speed} for {gigabytes_a_second}");
        }
    }
}
