//! Presets: values for a purpose, each with its reason.

use core::time::Duration;

use forebay_core::Bytes;

use super::choice::{Counting, Zeroing, choice};
use super::kind::{Kind, page_of};
use super::layer::Layer;
use super::source::{Held, Source};

choice! {
    /// Values for a purpose. A preset may be named in any source; keys that are set explicitly, in any source, override
    /// it.
    Preset, "default, high_frequency, memory_constrained or debug" {
        /// Only the defaults of the table.
        Default = "default",
        /// For programs that allocate and free constantly, on a device of their own.
        HighFrequency = "high_frequency",
        /// For programs that share a device, or barely fit on it.
        MemoryConstrained = "memory_constrained",
        /// For finding memory errors. Slow, and uses more memory.
        Debug = "debug",
    }
}

impl Preset {
    /// Why it sets these values, in one sentence.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Default => "Nothing is set: every key has its default.",
            Self::HighFrequency => {
                "Memory once taken is kept, and caches are large, so that a steady program never \
                 reaches the driver; nothing runs in the background that could get in its way."
            }
            Self::MemoryConstrained => {
                "What is idle goes back after seconds, caches hold little, and pages are small \
                 enough to become wholly free; the driver is called more often for it."
            }
            Self::Debug => {
                "Every aid that shows wrong use is on; memory is not zeroed, because zeros hide that \
                 a program reads what it never wrote."
            }
        }
    }

    /// The values that it sets.
    pub(super) fn layer(self) -> Layer {
        let none = Layer::default();
        match self {
            Self::Default => none,
            Self::HighFrequency => Layer {
                magazine_bytes: self.held(Bytes::mib(64)),
                upkeep: self.held(false),
                collect_after: self.held(None),
                statistics: self.held(Counting::On),
                ..none
            },
            Self::MemoryConstrained => Layer {
                magazine_bytes: self.held(Bytes::mib(1)),
                upkeep: self.held(true),
                collect_after: self.held(Some(Duration::from_secs(5))),
                min_bytes: self.held(Bytes::ZERO),
                largest_page: self.held(page_of(Bytes::mib(8))),
                ..none
            },
            Self::Debug => Layer {
                zero: self.held(Zeroing::Never),
                poison: self.held(true),
                canaries: self.held(true),
                guard_pages: self.held(true),
                quarantine: self.held(Bytes::mib(64)),
                history: self.held(65_536),
                statistics: self.held(Counting::Exact),
                strict_streams: self.held(true),
                ..none
            },
        }
    }

    fn held<T>(self, value: T) -> Option<Held<T>> {
        Some(Held { value, source: Source::Preset(self) })
    }
}
