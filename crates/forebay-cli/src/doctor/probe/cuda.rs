//! NVIDIA GPUs. If the driver loads, each GPU is opened and tried; otherwise the machine's files show what is missing
//! and what to do.

use std::path::Path;
use std::sync::Arc;

use forebay_cuda::{CudaDevice, CudaDriver, DRIVER_VARIABLE, DriverMissing};
use forebay_hal::{Device, DeviceKind};
use forebay_host::system::System;

use super::Environment;
use super::device::{broken, tried};
use super::library::Libraries;
use crate::doctor::report::{DeviceRow, Fix, Status};

/// Everything on the PCI bus.
const BUS: &str = "/sys/bus/pci/devices";

/// NVIDIA's PCI vendor id.
const NVIDIA: u32 = 0x10de;

/// A row for each GPU; one row where there is none, or none that can be driven.
pub(super) fn cuda(system: &System, environment: &Environment) -> Vec<DeviceRow> {
    let traces = DriverFiles::of(system, environment);
    if !system.is_here() {
        let root = system.root().display();
        return vec![match traces.stand() {
            GpuState::Whole => traces.row(
                Status::Found,
                &format!(
                    "an NVIDIA GPU and its driver are here; not opened: the files below {root} are \
                     another machine's"
                ),
            ),
            stand => traces.lacking(stand, "", system),
        }];
    }
    let driver = match environment.value(DRIVER_VARIABLE) {
        Some(library) => CudaDriver::load_from(&library.to_string_lossy()),
        None => CudaDriver::load(),
    };
    let driver = match driver {
        Ok(driver) => driver,
        Err(missing) => return vec![traces.not_driven(&missing, system)],
    };
    match driver.device_count() {
        Ok(0) => vec![traces.row(
            Status::Missing,
            "no CUDA driver: it shows this process no device: look at CUDA_VISIBLE_DEVICES",
        )],
        Ok(count) => (0..count).map(|ordinal| traces.opened(driver, ordinal)).collect(),
        Err(error) => vec![broken(DeviceKind::Cuda, &error).seen(traces.seen)],
    }
}

/// How far a machine is from a GPU that can be used, by its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuState {
    /// Device files and the driver's library are here.
    Whole,
    /// Device files are here, the library is not.
    NoLibrary,
    /// The kernel's driver is loaded, but shows no device files.
    NoFiles,
    /// A card is here, and no driver.
    NoDriver,
    /// There is no card.
    NoCard,
}

/// What the machine's files show of NVIDIA's.
struct DriverFiles {
    seen: Vec<String>,
    has_card: bool,
    has_module: bool,
    has_files: bool,
    has_library: bool,
}

impl DriverFiles {
    fn of(system: &System, environment: &Environment) -> Self {
        let cards = nvidia_cards(system);
        let module = system.text("/proc/driver/nvidia/version").ok();
        let module = module.as_deref().and_then(first_line);
        // Under Windows the driver is Windows' own, reached through /dev/dxg.
        let under_windows = system.place("/dev/dxg").exists();
        let names = system.names("/dev").unwrap_or_default();
        let nodes: Vec<String> = names.into_iter().filter(|name| is_node(name)).collect();
        let library =
            Libraries::of(system, environment).and_in("/usr/lib/wsl/lib").find(&["libcuda.so.1"]);
        let (has_card, has_module) = (!cards.is_empty(), module.is_some());
        let mut seen = cards;
        seen.extend(module.map(|line| format!("kernel driver: {line}")));
        seen.extend(nodes.iter().map(|node| format!("/dev/{node}")));
        seen.extend(under_windows.then(|| "/dev/dxg".to_owned()));
        seen.extend(library.iter().map(|path| path.display().to_string()));
        Self {
            seen,
            has_card,
            has_module,
            has_files: !nodes.is_empty() || under_windows,
            has_library: library.is_some(),
        }
    }

    fn stand(&self) -> GpuState {
        match (self.has_files, self.has_library) {
            (true, true) => GpuState::Whole,
            (true, false) => GpuState::NoLibrary,
            (false, _) if self.has_module => GpuState::NoFiles,
            (false, _) if self.has_card => GpuState::NoDriver,
            (false, _) => GpuState::NoCard,
        }
    }

    fn row(&self, status: Status, summary: &str) -> DeviceRow {
        DeviceRow::new(DeviceKind::Cuda, status, summary).seen(self.seen.clone())
    }

    /// A GPU, opened and tried.
    fn opened(&self, driver: &'static CudaDriver, ordinal: u32) -> DeviceRow {
        let open = || Ok(CudaDevice::open_with(driver, ordinal)? as Arc<dyn Device>);
        let row = tried(DeviceKind::Cuda, "", open).seen(self.seen.clone());
        DeviceRow { ordinal: Some(ordinal), ..row }
    }

    /// Why the driver could not be loaded or started, and what to do.
    fn not_driven(&self, missing: &DriverMissing, system: &System) -> DeviceRow {
        match (missing, self.stand()) {
            (DriverMissing::Library { tried, .. }, GpuState::Whole) => {
                // The files look right and the loader refuses: another word size, no right to read.
                self.row(Status::Broken, &format!("no CUDA driver: {}", attempts(tried)))
            }
            (DriverMissing::Library { tried, .. }, stand) => {
                self.lacking(stand, &format!("; {}", attempts(tried)), system)
            }
            (DriverMissing::Start { .. }, GpuState::Whole) => {
                self.row(Status::Broken, &missing.to_string())
            }
            // The text says what helps.
            _ => self.row(Status::Missing, &missing.to_string()),
        }
    }

    /// What is missing by the files, and the cure. `tried` ends the sentence.
    fn lacking(&self, stand: GpuState, tried: &str, system: &System) -> DeviceRow {
        let mut missing = Vec::new();
        if !self.has_library {
            missing.push("libcuda.so.1 in the loader's directories".to_owned());
        }
        if !self.has_files {
            missing.push("/dev/nvidia0".to_owned());
        }
        let (what, cure) = match stand {
            GpuState::Whole | GpuState::NoLibrary => (
                "the NVIDIA kernel driver is here, the CUDA driver library is not",
                Fix::advice(
                    "install the driver's user part (Debian: libcuda1; Ubuntu: libnvidia-compute \
                     of the kernel driver's version); in a container, start it with --gpus all",
                ),
            ),
            GpuState::NoFiles => (
                "the NVIDIA kernel driver is loaded, but its device files are not here",
                Fix::command(
                    "in a container, start it with --gpus all; elsewhere, make them",
                    "sudo nvidia-modprobe -u -c=0",
                ),
            ),
            GpuState::NoDriver => {
                missing.insert(0, "the NVIDIA kernel driver".to_owned());
                ("an NVIDIA card is in this machine, but no driver for it", install(system))
            }
            GpuState::NoCard => {
                missing.insert(0, "an NVIDIA card".to_owned());
                ("no NVIDIA card seen", Fix::advice("a machine with an NVIDIA card and its driver"))
            }
        };
        self.row(Status::Missing, &format!("no CUDA driver: {what}{tried}")).lacking(missing, cure)
    }
}

/// "tried libcuda.so.1 (why not), libcuda.so (why not)".
fn attempts(tried: &[(String, String)]) -> String {
    let each: Vec<String> =
        tried.iter().map(|(library, reason)| format!("{library} ({reason})")).collect();
    format!("tried {}", each.join(", "))
}

/// How to install NVIDIA's driver on this distribution.
fn install(system: &System) -> Fix {
    let release = system.text("/etc/os-release").unwrap_or_default();
    let id = release.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default();
    match id.trim_matches('"') {
        "ubuntu" => Fix::command("install it", "sudo ubuntu-drivers install"),
        "debian" => {
            Fix::command("install it from the non-free component", "sudo apt install nvidia-driver")
        }
        "fedora" => Fix::command("install it from RPM Fusion", "sudo dnf install akmod-nvidia"),
        "arch" => Fix::command("install it", "sudo pacman -S nvidia-open"),
        _ => Fix::advice("install it from https://www.nvidia.com/drivers"),
    }
}

/// "nvidia0", not "nvidiactl" or "nvidia-uvm", which are there without a card too.
fn is_node(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn first_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// The NVIDIA cards, each described in one phrase.
fn nvidia_cards(system: &System) -> Vec<String> {
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
