//! The GPU bundle: one folder that shows on a machine with a driver, and no Rust, what this
//! repository says of it.
//!
//! ```text
//!   forebay, libforebay_capi.so          what people use
//!   conformance, on_device, kernels, named,
//!   cudarc_slices, 10_cudarc,
//!   09_every_device                      tests and examples, as plain programs
//!   hip_conformance, libforebay_hip_bridge.so   HIP over the CUDA driver
//!   opencl_conformance                   every OpenCL platform of the machine
//!   run.sh, table.py, *_check.py,        what runs them, from xtask/gpu
//!   bare.py
//!   python/forebay/, python/startup/     the Python package, and the hook of FOREBAY_TORCH
//!   peers/                               the comparison with other allocators, from benches/peers
//!   traces/                              recorded runs, unless they are left out
//!   wheels/                              others' packages, where they were named
//!   COMMIT                               what it was built from
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::dashboard::Dashboard;
use crate::files::{self, copy, write};
use crate::screen::{QUIET, styled};

/// The most a bundle may take: what can be sent to a machine without ado.
const MAX: u64 = 60 << 20;

/// The file that says what a bundle was built from, and that a folder is a bundle.
const COMMIT: &str = "COMMIT";

/// What is built, and by which words.
const BUILDS: [&str; 3] = [
    "build --profile=bundle --package=forebay-cli --package=forebay-capi --package=forebay-py",
    "test --profile=bundle-tests --no-run --package=forebay --package=forebay-cuda --package=forebay-hip \
     --package=forebay-cudarc --package=forebay-opencl --features=forebay/hip,forebay/opencl --test=conformance \
     --test=opencl_conformance --test=hip_conformance --test=kernels --test=on_device --test=named --test=slices",
    // Not beside the tests: there an example is built as a test, of which it has none.
    "build --profile=bundle-tests --package=forebay --package=forebay-cudarc \
     --features=forebay/hip,forebay/opencl,forebay/sim --example=10_cudarc --example=09_every_device",
];

/// What must come of it, by the names of cargo's targets, and what it is called in the bundle.
const PROGRAMS: [(&str, &str); 13] = [
    ("forebay", "forebay"),
    ("forebay_capi", "libforebay_capi.so"),
    ("_forebay", "python/forebay/_forebay.abi3.so"),
    ("conformance", "conformance"),
    ("hip_conformance", "hip_conformance"),
    ("opencl_conformance", "opencl_conformance"),
    ("forebay_hip_bridge", "libforebay_hip_bridge.so"),
    ("kernels", "kernels"),
    ("on_device", "on_device"),
    ("named", "named"),
    ("slices", "cudarc_slices"),
    ("10_cudarc", "10_cudarc"),
    ("09_every_device", "09_every_device"),
];

/// forebay's Python modules, here and there.
const PACKAGE: &str = "python/forebay";

/// What a wheel puts beside the package in site-packages, for FOREBAY_TORCH.
const HOOK: &str = "python/startup/platlib";

/// What runs the programs there.
const SCRIPTS: &str = "xtask/gpu";

/// Where the comparison with other allocators lives.
const PEERS: &str = "benches/peers";

/// Where the recorded runs live: one of them comes with a crate.
const RUNS: [&str; 2] = ["benches/runs", "crates/forebay-trace/data"];

/// What is to be in the bundle, and where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Bundle {
    /// The folder to make; one that is there already is made anew.
    #[arg(long, value_name = "DIR", default_value = "gpu-bundle")]
    to: PathBuf,
    /// Leave the recorded runs out, which take 3 MiB.
    #[arg(long)]
    without_traces: bool,
    /// Packages that the GPU machine may lack, such as transformers, and forebay's own wheel: *.whl.
    #[arg(long, value_name = "DIR")]
    wheels: Option<PathBuf>,
}

impl Bundle {
    /// Builds it.
    pub(crate) fn make(&self, dashboard: &mut Dashboard<'_>) -> Result<String, String> {
        let place = dashboard.place;
        let folder = place.root().join(&self.to);
        let mut built = BTreeMap::new();
        for words in BUILDS {
            let task = place.cargo(words).with(["--message-format=json"]);
            built.extend(artifacts(&dashboard.succeed(&task)?));
        }
        clear(&folder)?;
        for (target, name) in PROGRAMS {
            let from = built.get(target).ok_or_else(|| format!("cargo has built no {target}"))?;
            copy(from, &folder.join(name))?;
        }
        self.gather(place.root(), &folder)?;
        let commit = commit(dashboard)?;
        write(&folder.join(COMMIT), format!("{commit}\n"))?;
        let files = sizes(&folder)?;
        let sum = fits(&files)?;
        for (path, size) in &files {
            let path = path.strip_prefix(&folder).unwrap_or(path).display();
            dashboard.screen.line(styled(QUIET, format_args!("  {:>8.2} MiB  {path}", mib(*size))));
        }
        let (shown, sum) = (folder.display(), mib(sum));
        Ok(format!(
            "{shown}: {sum:.1} MiB, from {commit}\nthere: bash {}/run.sh",
            self.to.display()
        ))
    }

    /// Copies what is not built: scripts, the header, the Python package, and what they work on.
    fn gather(&self, root: &Path, folder: &Path) -> Result<(), String> {
        copy_all(&root.join(SCRIPTS), &["sh", "py", "cpp"], folder)?;
        copy(&root.join("crates/forebay-capi/include/forebay.h"), &folder.join("forebay.h"))?;
        copy_all(&root.join(PACKAGE), &["py"], &folder.join(PACKAGE))?;
        for part in ["torch_adapter", "torch_adapter/include/crt"] {
            let (from, to) = (root.join(PACKAGE).join(part), folder.join(PACKAGE).join(part));
            copy_all(&from, &["cpp", "h"], &to)?;
        }
        copy_all(&root.join(HOOK), &["pth", "py"], &folder.join(HOOK))?;
        copy_all(&root.join(PEERS), &["cpp", "py"], &folder.join("peers"))?;
        if !self.without_traces {
            for runs in RUNS {
                copy_all(&root.join(runs), &["csv.gz"], &folder.join("traces"))?;
            }
        }
        match &self.wheels {
            Some(wheels) => copy_all(wheels, &["whl"], &folder.join("wheels")),
            None => Ok(()),
        }
    }
}

/// What cargo has built, by the names of its targets: programs, and libraries that others load.
fn artifacts(output: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let messages = output.lines().filter(|line| line.starts_with('{'));
    for message in messages.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(name) = message["target"]["name"].as_str() else { continue };
        let executable = message["executable"].as_str();
        let files = message["filenames"].as_array().into_iter().flatten();
        let mut libraries = files.filter_map(Value::as_str).filter(|file| file.ends_with(".so"));
        if let Some(file) = executable.or_else(|| libraries.next()) {
            found.insert(name.to_owned(), PathBuf::from(file));
        }
    }
    found
}

/// The commit, and whether anything was changed since.
fn commit(dashboard: &mut Dashboard<'_>) -> Result<String, String> {
    let mut ask = |words| {
        let ran = dashboard.run_aside(&dashboard.place.program("git", words));
        let said = ran.output.trim().to_owned();
        if ran.succeeded() { Ok(said) } else { Err(format!("git {}", ran.reason())) }
    };
    let mark = if ask("status --porcelain")?.is_empty() { "" } else { "+changes" };
    Ok(ask("rev-parse HEAD")? + mark)
}

/// An empty folder where the bundle goes. One that is something else is left alone.
fn clear(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        let is_bundle = folder.join(COMMIT).is_file();
        let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        if !is_bundle && !is_empty {
            return Err(format!(
                "{} is there and is no bundle: name another folder, or remove it",
                folder.display()
            ));
        }
        fs::remove_dir_all(folder).map_err(files::told(folder))?;
    }
    fs::create_dir_all(folder).map_err(files::told(folder))
}

/// Copies the files of a folder that end in one of `endings`.
fn copy_all(from: &Path, endings: &[&str], to: &Path) -> Result<(), String> {
    let mut copied = false;
    for path in files::entries(from)? {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let fits = endings.iter().any(|ending| {
            name.strip_suffix(ending).is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
        });
        if fits && path.is_file() {
            copy(&path, &to.join(name))?;
            copied = true;
        }
    }
    if copied {
        return Ok(());
    }
    Err(format!("{} has no file that ends in .{}", from.display(), endings.join(", .")))
}

/// Every file of a folder and those below it, with its size, the largest first.
fn sizes(folder: &Path) -> Result<Vec<(PathBuf, u64)>, String> {
    let sized = |path: PathBuf| match path.metadata() {
        Ok(data) => Ok((path, data.len())),
        Err(error) => Err(files::told(&path)(error)),
    };
    let mut files =
        files::below(folder, &|_| true)?.into_iter().map(sized).collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    Ok(files)
}

/// The sum, refused beyond what a bundle may take.
fn fits(files: &[(PathBuf, u64)]) -> Result<u64, String> {
    let sum = files.iter().map(|(_, size)| size).sum();
    if sum <= MAX {
        return Ok(sum);
    }
    let largest = files.first().map(|(path, size)| {
        format!("; the largest is {} with {:.1} MiB", path.display(), mib(*size))
    });
    let (sum, most) = (mib(sum), mib(MAX));
    Err(format!("{sum:.1} MiB, and {most:.0} MiB may be{}", largest.unwrap_or_default()))
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workplace::Workplace;

    #[test]
    fn programs_and_libraries_are_found_in_what_cargo_says() {
        let output = r#"   Compiling forebay v0.1.0
{"reason":"compiler-artifact","target":{"name":"forebay_capi"},"executable":null,"filenames":["/t/libforebay_capi.rlib","/t/libforebay_capi.so"]}
{"reason":"compiler-artifact","target":{"name":"forebay"},"executable":null,"filenames":["/t/libforebay.rlib"]}
{"reason":"compiler-artifact","target":{"name":"forebay"},"executable":"/t/forebay","filenames":["/t/forebay"]}
{"reason":"build-finished","success":true}
{broken"#;
        let found = artifacts(output);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found["forebay"], Path::new("/t/forebay"));
        assert_eq!(found["forebay_capi"], Path::new("/t/libforebay_capi.so"));
    }

    #[test]
    fn what_is_no_bundle_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("out");
        clear(&folder).unwrap();
        write(&folder.join("mine.txt"), "dear").unwrap();
        assert!(clear(&folder).unwrap_err().contains("is no bundle"));
        assert!(folder.join("mine.txt").exists());
        write(&folder.join(COMMIT), "abc\n").unwrap();
        clear(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn only_what_was_meant_is_copied() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir_all(from.join("folder.sh")).unwrap();
        for name in ["a.sh", "b.csv.gz", "c.txt", ".sh", "csv.gz"] {
            write(&from.join(name), "x").unwrap();
        }
        copy_all(&from, &["sh", "csv.gz"], &to).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.sh", "b.csv.gz"]);
        let none = copy_all(&from, &["whl"], &to).unwrap_err();
        assert!(none.ends_with("has no file that ends in .whl"), "{none}");
    }

    #[test]
    fn the_comparison_and_the_recorded_runs_come_from_this_repository() {
        let root = Workplace::here().root().to_owned();
        let place = tempfile::tempdir().unwrap();
        let (whole, small) = (place.path().join("whole"), place.path().join("small"));
        let mut bundle = Bundle { to: PathBuf::new(), without_traces: false, wheels: None };
        bundle.gather(&root, &whole).unwrap();
        bundle.without_traces = true;
        bundle.gather(&root, &small).unwrap();
        for name in ["peers.cpp", "sides.cpp", "run.py", "tables.py"] {
            assert!(small.join("peers").join(name).is_file(), "{name}");
        }
        for name in ["forebay-torch.pth", "_forebay_torch.py"] {
            assert!(small.join(HOOK).join(name).is_file(), "{name}");
        }
        assert_eq!(fs::read_dir(whole.join("traces")).unwrap().count(), 5);
        assert!(!small.join("traces").exists());
    }

    #[test]
    fn what_is_too_large_is_refused_with_figures() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("below")).unwrap();
        write(&place.path().join("below/two"), "22").unwrap();
        write(&place.path().join("one"), "1").unwrap();
        let files = sizes(place.path()).unwrap();
        assert_eq!(fits(&files), Ok(3));
        let large = [(PathBuf::from("wheels/w.whl"), 61 << 20), (PathBuf::from("run.sh"), 1)];
        let refused = fits(&large).unwrap_err();
        assert!(refused.starts_with("61.0 MiB, and 60 MiB may be"), "{refused}");
        assert!(refused.contains("wheels/w.whl"), "{refused}");
    }
}
