//! What the machine has of the accelerators forebay is made for. This version opens none of them,
//! and the rows say so: "found" is what the machine has, not what forebay can use.

use std::path::Path;

use forebay_hal::DeviceKind;
use forebay_host::system::System;

use super::Environment;
use super::cards::{Maker, cards};
use super::library::Libraries;
use crate::doctor::advice::unreadable;
use crate::doctor::report::{Cure, DeviceRow, Status, Unread};

/// What every row ends with, so that nobody installs a driver for nothing.
const NOT_DRIVEN: &str = "this version of forebay does not drive such devices yet";

/// A row of a kind that is not driven.
fn row(kind: DeviceKind, status: Status, summary: &str, seen: Vec<String>) -> DeviceRow {
    DeviceRow::new(kind, status, format!("{summary}; {NOT_DRIVEN}")).seen(seen)
}

/// NVIDIA GPUs.
pub(super) fn cuda(system: &System, environment: &Environment) -> DeviceRow {
    let cards = cards(system, Maker::Nvidia);
    let module = system.text("/proc/driver/nvidia/version").ok();
    let module = module.as_deref().and_then(first_line);
    // Under Windows the driver is Windows' own, reached through /dev/dxg.
    let under_windows = system.place("/dev/dxg").exists();
    let nodes: Vec<String> =
        names(system, "/dev").into_iter().filter(|name| is_nvidia_node(name)).collect();
    let library =
        Libraries::of(system, environment).and_in("/usr/lib/wsl/lib").find(&["libcuda.so.1"]);

    let mut seen = cards.clone();
    seen.extend(module.as_ref().map(|line| format!("kernel driver: {line}")));
    seen.extend(nodes.iter().map(|node| format!("/dev/{node}")));
    seen.extend(under_windows.then(|| "/dev/dxg".to_owned()));
    seen.extend(library.iter().map(|path| path.display().to_string()));

    let has_node = !nodes.is_empty() || under_windows;
    let row = |status, summary: &str| row(DeviceKind::Cuda, status, summary, seen);
    let mut missing = Vec::new();
    if library.is_none() {
        missing.push("libcuda.so.1 in the loader's directories".to_owned());
    }
    if !has_node {
        missing.push("/dev/nvidia0".to_owned());
    }
    match (has_node, &module, library.is_some()) {
        (true, _, true) => row(Status::Found, "an NVIDIA GPU and its driver are here"),
        (true, _, false) => {
            row(Status::Missing, "the NVIDIA kernel driver is here, the CUDA driver library is not")
                .lacking(
                    missing,
                    Cure::advice(
                        "install the driver's user part (Debian: libcuda1; Ubuntu: \
                         libnvidia-compute of the kernel driver's version); in a container, start \
                         it with --gpus all",
                    ),
                )
        }
        (false, Some(_), _) => row(
            Status::Missing,
            "the NVIDIA kernel driver is loaded, but its device files are not here",
        )
        .lacking(
            missing,
            Cure::command(
                "in a container, start it with --gpus all; elsewhere, make them",
                "sudo nvidia-modprobe -u -c=0",
            ),
        ),
        (false, None, _) if !cards.is_empty() => {
            missing.insert(0, "the NVIDIA kernel driver".to_owned());
            row(Status::Missing, "an NVIDIA card is in this machine, but no driver for it")
                .lacking(missing, install_nvidia(system))
        }
        (false, None, _) => {
            missing.insert(0, "an NVIDIA card".to_owned());
            row(Status::Missing, "no NVIDIA card seen")
                .lacking(missing, Cure::advice("a machine with an NVIDIA card and its driver"))
        }
    }
}

/// AMD GPUs through HIP.
pub(super) fn hip(system: &System, environment: &Environment) -> DeviceRow {
    let cards = cards(system, Maker::Amd);
    let node = system.place("/dev/kfd").exists();
    let library = Libraries::of(system, environment).and_in("/opt/rocm/lib").find(&[
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
    ]);

    let mut seen = cards.clone();
    seen.extend(node.then(|| "/dev/kfd".to_owned()));
    seen.extend(library.iter().map(|path| path.display().to_string()));
    let mut missing = Vec::new();
    if !node {
        missing.push("/dev/kfd".to_owned());
    }
    if library.is_none() {
        missing.push("libamdhip64.so in the loader's directories or /opt/rocm/lib".to_owned());
    }

    let row = |status, summary: &str| row(DeviceKind::Hip, status, summary, seen);
    match (node, library.is_some()) {
        (true, true) => row(Status::Found, "an AMD GPU and ROCm are here"),
        (true, false) => row(Status::Missing, "the AMD kernel driver is here, ROCm's HIP is not")
            .lacking(
                missing,
                Cure::command(
                    "install ROCm's HIP runtime (Debian, Ubuntu: from AMD's repository)",
                    "sudo apt install rocm-hip-runtime",
                ),
            ),
        (false, _) if !cards.is_empty() => row(
            Status::Missing,
            "an AMD card is in this machine, but its compute driver does not show itself",
        )
        .lacking(
            missing,
            Cure::command(
                "in a container, start it with --device /dev/kfd --device /dev/dri; elsewhere, \
                 load it",
                "sudo modprobe amdgpu",
            ),
        ),
        (false, _) => {
            missing.insert(0, "an AMD card".to_owned());
            row(Status::Missing, "no AMD card seen")
                .lacking(missing, Cure::advice("a machine with an AMD card and ROCm"))
        }
    }
}

/// Whatever offers itself through OpenCL.
pub(super) fn opencl(system: &System, environment: &Environment) -> DeviceRow {
    const VENDORS: &str = "/etc/OpenCL/vendors";
    let libraries = Libraries::of(system, environment);
    let loader = libraries.find(&["libOpenCL.so.1"]);
    let mut seen: Vec<String> = loader.iter().map(|path| path.display().to_string()).collect();
    let mut missing = Vec::new();
    let mut usable = 0_usize;
    let mut unread = Vec::new();
    let files = system.names(VENDORS).unwrap_or_else(|unknown| {
        unread.extend((!unknown.is_absent()).then(|| Unread::from(unknown)));
        Vec::new()
    });
    for file in files.iter().filter(|name| name.ends_with(".icd")) {
        // An .icd file holds the name of a driver's library, or its path.
        let library = match system.text(Path::new(VENDORS).join(file)) {
            Ok(text) => first_line(&text).unwrap_or_default(),
            Err(unknown) => {
                unread.push(Unread::from(unknown));
                continue;
            }
        };
        match libraries.find(&[&library]) {
            Some(path) => {
                usable += 1;
                seen.push(format!("{file}: {}", path.display()));
            }
            None => missing.push(format!("{library:?}, which {VENDORS}/{file} names")),
        }
    }
    if loader.is_none() {
        missing.insert(0, "libOpenCL.so.1 in the loader's directories".to_owned());
    }
    let row = |status, summary: &str| row(DeviceKind::OpenCl, status, summary, seen);
    if usable == 0 && !unread.is_empty() {
        missing.extend(unread.iter().map(|unread| format!("a look at {unread}")));
        return row(
            Status::Missing,
            "whether there is a driver for OpenCL cannot be told: its list cannot be read",
        )
        .lacking(missing, unreadable(&unread));
    }
    if usable == 0 {
        missing.push(format!("a vendor's driver in {VENDORS}"));
    }
    match (loader.is_some(), usable) {
        (true, 1..) => {
            row(Status::Found, &format!("OpenCL is here with {}", count(usable, "driver")))
        }
        (true, 0) => row(Status::Missing, "the OpenCL loader is here, no driver for it").lacking(
            missing,
            Cure::command(
                "the vendor's driver, or one for the processor (Debian, Ubuntu)",
                "sudo apt install pocl-opencl-icd",
            ),
        ),
        (false, 0) => row(Status::Missing, "no OpenCL seen").lacking(
            missing,
            Cure::command(
                "the loader and the vendor's driver, or one for the processor (Debian, Ubuntu)",
                "sudo apt install ocl-icd-libopencl1 pocl-opencl-icd",
            ),
        ),
        (false, 1..) => row(Status::Missing, "an OpenCL driver is here, the loader is not")
            .lacking(
                missing,
                Cure::command(
                    "install the loader (Debian, Ubuntu)",
                    "sudo apt install ocl-icd-libopencl1",
                ),
            ),
    }
}

/// Apple GPUs.
pub(super) fn metal() -> DeviceRow {
    let (status, summary) = if cfg!(target_os = "macos") {
        (Status::Found, "Metal is part of this system")
    } else {
        (Status::NotHere, "Metal is on macOS only")
    };
    row(DeviceKind::Metal, status, summary, Vec::new())
}

/// How to install NVIDIA's driver on this distribution.
fn install_nvidia(system: &System) -> Cure {
    let release = system.text("/etc/os-release").unwrap_or_default();
    let id = release.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default();
    match id.trim_matches('"') {
        "ubuntu" => Cure::command("install it", "sudo ubuntu-drivers install"),
        "debian" => Cure::command(
            "install it from the non-free component",
            "sudo apt install nvidia-driver",
        ),
        "fedora" => Cure::command("install it from RPM Fusion", "sudo dnf install akmod-nvidia"),
        "arch" => Cure::command("install it", "sudo pacman -S nvidia-open"),
        _ => Cure::advice("install it from https://www.nvidia.com/drivers"),
    }
}

/// "nvidia0", not "nvidiactl" or "nvidia-uvm", which are there without a card too.
fn is_nvidia_node(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn names(system: &System, directory: &str) -> Vec<String> {
    system.names(directory).unwrap_or_default()
}

fn first_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// "1 driver", "2 drivers".
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
