//! What the machine has of the accelerators that this version does not drive yet; the rows say so:
//! "found" is what the machine has, not what forebay can use.

use std::path::Path;

use forebay_hal::DeviceKind;
use forebay_host::system::System;

use super::Environment;
use super::cards::{Maker, cards};
use super::library::Libraries;
use crate::doctor::advice::unreadable;
use crate::doctor::report::{DeviceRow, Fix, Status, Unread};

/// What every row ends with, so that nobody installs a driver for nothing.
const NOT_DRIVEN: &str = "this version of forebay does not drive such devices yet";

/// A row of a kind that is not driven.
fn row(kind: DeviceKind, status: Status, summary: &str, seen: Vec<String>) -> DeviceRow {
    DeviceRow::new(kind, status, format!("{summary}; {NOT_DRIVEN}")).seen(seen)
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
                Fix::command(
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
            Fix::command(
                "in a container, start it with --device /dev/kfd --device /dev/dri; elsewhere, \
                 load it",
                "sudo modprobe amdgpu",
            ),
        ),
        (false, _) => {
            missing.insert(0, "an AMD card".to_owned());
            row(Status::Missing, "no AMD card seen")
                .lacking(missing, Fix::advice("a machine with an AMD card and ROCm"))
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
            Fix::command(
                "the vendor's driver, or one for the processor (Debian, Ubuntu)",
                "sudo apt install pocl-opencl-icd",
            ),
        ),
        (false, 0) => row(Status::Missing, "no OpenCL seen").lacking(
            missing,
            Fix::command(
                "the loader and the vendor's driver, or one for the processor (Debian, Ubuntu)",
                "sudo apt install ocl-icd-libopencl1 pocl-opencl-icd",
            ),
        ),
        (false, 1..) => row(Status::Missing, "an OpenCL driver is here, the loader is not")
            .lacking(
                missing,
                Fix::command(
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

pub(super) fn first_line(text: &str) -> Option<String> {
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// "1 driver", "2 drivers".
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
