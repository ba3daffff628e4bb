//! What the machine has of the accelerators forebay is made for. This version opens none of them,
//! and the rows say so: "found" is what the machine has, not what forebay can use.

use std::path::Path;

use forebay_hal::DeviceKind;
use forebay_host::system::System;

use super::Environment;
use super::cards::{Maker, cards};
use super::library::Libraries;
use crate::doctor::report::{DeviceRow, Status};

/// What every row ends with that found a device.
const NOT_DRIVEN: &str = "this version of forebay does not drive it yet";

/// NVIDIA GPUs.
pub(super) fn cuda(system: &System, environment: &Environment) -> DeviceRow {
    let kind = DeviceKind::Cuda;
    let cards = cards(system, Maker::Nvidia);
    let module = first_line(system, "/proc/driver/nvidia/version");
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
    let row = |status, summary: &str| DeviceRow::new(kind, status, summary).seen(seen);
    let mut missing = Vec::new();
    if library.is_none() {
        missing.push("libcuda.so.1 in the loader's directories".to_owned());
    }
    if !has_node {
        missing.push("/dev/nvidia0".to_owned());
    }
    match (has_node, &module, library.is_some()) {
        (true, _, true) => {
            row(Status::Found, &format!("an NVIDIA GPU and its driver are here; {NOT_DRIVEN}"))
        }
        (true, _, false) => {
            row(Status::Missing, "the NVIDIA kernel driver is here, the CUDA driver library is not")
                .lacking(
                    missing,
                    "install the driver's user part (Debian, Ubuntu: libcuda1 or \
             libnvidia-compute of the kernel driver's version), or start the container with \
             --gpus all",
                )
        }
        (false, Some(_), _) => row(
            Status::Missing,
            "the NVIDIA kernel driver is loaded, but its device files are not here",
        )
        .lacking(missing, "sudo nvidia-modprobe -u -c=0, or start the container with --gpus all"),
        (false, None, _) if !cards.is_empty() => {
            missing.insert(0, "the NVIDIA kernel driver".to_owned());
            let install = install_nvidia(system);
            row(Status::Missing, "an NVIDIA card is in this machine, but no driver for it")
                .lacking(missing, install)
        }
        (false, None, _) => {
            missing.insert(0, "an NVIDIA card".to_owned());
            row(Status::Missing, "no NVIDIA card seen")
                .lacking(missing, "a machine with an NVIDIA card and its driver")
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

    let row = |status, summary: &str| DeviceRow::new(DeviceKind::Hip, status, summary).seen(seen);
    match (node, library.is_some()) {
        (true, true) => row(Status::Found, &format!("an AMD GPU and ROCm are here; {NOT_DRIVEN}")),
        (true, false) => row(Status::Missing, "the AMD kernel driver is here, ROCm's HIP is not")
            .lacking(
                missing,
                "install ROCm's HIP runtime (Debian, Ubuntu: sudo apt install \
                 rocm-hip-runtime, from AMD's repository)",
            ),
        (false, _) if !cards.is_empty() => row(
            Status::Missing,
            "an AMD card is in this machine, but its compute driver does not show itself",
        )
        .lacking(
            missing,
            "sudo modprobe amdgpu, or start the container with \
             --device /dev/kfd --device /dev/dri",
        ),
        (false, _) => {
            missing.insert(0, "an AMD card".to_owned());
            row(Status::Missing, "no AMD card seen")
                .lacking(missing, "a machine with an AMD card and ROCm")
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
    for file in names(system, VENDORS).iter().filter(|name| name.ends_with(".icd")) {
        // An .icd file holds the name of a driver's library, or its path.
        let library = first_line(system, Path::new(VENDORS).join(file)).unwrap_or_default();
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
    if usable == 0 {
        missing.push(format!("a vendor's driver in {VENDORS}"));
    }
    let row =
        |status, summary: &str| DeviceRow::new(DeviceKind::OpenCl, status, summary).seen(seen);
    match (loader.is_some(), usable) {
        (true, 1..) => row(
            Status::Found,
            &format!("OpenCL is here with {}; {NOT_DRIVEN}", count(usable, "driver")),
        ),
        (true, 0) => row(Status::Missing, "the OpenCL loader is here, no driver for it").lacking(
            missing,
            "the vendor's driver, or one for the processor (Debian, Ubuntu: \
                 sudo apt install pocl-opencl-icd)",
        ),
        (false, 0) => row(Status::Missing, "no OpenCL seen").lacking(
            missing,
            "sudo apt install ocl-icd-libopencl1 pocl-opencl-icd (Debian, \
                 Ubuntu), or the vendor's driver",
        ),
        (false, 1..) => row(Status::Missing, "an OpenCL driver is here, the loader is not")
            .lacking(missing, "sudo apt install ocl-icd-libopencl1 (Debian, Ubuntu)"),
    }
}

/// Apple GPUs.
pub(super) fn metal() -> DeviceRow {
    if cfg!(target_os = "macos") {
        let summary = format!("Metal is part of this system; {NOT_DRIVEN}");
        DeviceRow::new(DeviceKind::Metal, Status::Found, summary)
    } else {
        DeviceRow::new(DeviceKind::Metal, Status::NotHere, "Metal is on macOS only")
    }
}

/// How to install NVIDIA's driver on this distribution.
fn install_nvidia(system: &System) -> String {
    let release = system.text("/etc/os-release").unwrap_or_default();
    let id = release.lines().find_map(|line| line.strip_prefix("ID=")).unwrap_or_default();
    match id.trim_matches('"') {
        "ubuntu" => "sudo ubuntu-drivers install",
        "debian" => "sudo apt install nvidia-driver (from the non-free component)",
        "fedora" => "sudo dnf install akmod-nvidia (from RPM Fusion)",
        "arch" => "sudo pacman -S nvidia-open",
        _ => "install the driver from https://www.nvidia.com/drivers",
    }
    .to_owned()
}

/// "nvidia0", not "nvidiactl" or "nvidia-uvm", which are there without a card too.
fn is_nvidia_node(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn names(system: &System, directory: &str) -> Vec<String> {
    system.names(directory).unwrap_or_default()
}

fn first_line(system: &System, file: impl AsRef<Path>) -> Option<String> {
    let text = system.text(file).ok()?;
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// "1 driver", "2 drivers".
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
