//! The NVIDIA cards in the machine, whether or not a driver is installed.

use std::path::Path;

use forebay_host::system::System;

/// Everything on the PCI bus.
const BUS: &str = "/sys/bus/pci/devices";

/// NVIDIA's PCI vendor id.
const NVIDIA: u32 = 0x10de;

/// The NVIDIA cards, each described in one phrase.
pub(super) fn nvidia_cards(system: &System) -> Vec<String> {
    let slots = system.names(BUS).unwrap_or_default();
    let card = |slot: &String| {
        let directory = Path::new(BUS).join(slot);
        let field = |name| hexadecimal(&system.text(directory.join(name)).ok()?);
        // The top byte of the class is 3 for displays, which includes compute cards.
        if field("vendor")? != NVIDIA || field("class")? >> 16 != 0x03 {
            return None;
        }
        let device = field("device")?;
        Some(format!("NVIDIA card {NVIDIA:04x}:{device:04x} in {slot}"))
    };
    slots.iter().filter_map(card).collect()
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}
