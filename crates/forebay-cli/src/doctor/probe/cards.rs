//! The cards in the machine, whether or not anything drives them.

use std::path::Path;

use forebay_host::system::System;

/// Everything on the PCI bus.
const BUS: &str = "/sys/bus/pci/devices";

/// Who made a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}

impl Maker {
    const fn vendor(self) -> u32 {
        match self {
            Self::Nvidia => 0x10de,
            Self::Amd => 0x1002,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        }
    }
}

/// The cards of `maker`, each in words.
pub(super) fn cards(system: &System, maker: Maker) -> Vec<String> {
    let slots = system.names(BUS).unwrap_or_default();
    let card = |slot: &String| {
        let directory = Path::new(BUS).join(slot);
        let field = |name| hexadecimal(&system.text(directory.join(name)).ok()?);
        // The class has two bytes below the one that says what kind of device it is. 3 is
        // displays, with cards for computing among them; 0x12 is what large AMD accelerators are.
        let is_accelerator = matches!(field("class")? >> 16, 0x03 | 0x12);
        if field("vendor")? != maker.vendor() || !is_accelerator {
            return None;
        }
        let device = field("device")?;
        Some(format!("{} card {:04x}:{device:04x} in {slot}", maker.name(), maker.vendor()))
    };
    slots.iter().filter_map(card).collect()
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}
