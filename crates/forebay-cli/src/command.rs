//! The command line: every command with its help. Each command declares its own options.

use clap::{Parser, Subcommand};

pub use crate::bandwidth::BandwidthOptions;
pub use crate::bench::BenchOptions;
pub use crate::convert::ConvertOptions;
pub use crate::demo::DemoOptions;
pub use crate::doctor::DoctorOptions;
pub use crate::fit::FitOptions;
pub use crate::monitor::MonitorOptions;
pub use crate::replay::ReplayOptions;
pub use crate::report::ReportOptions;

/// Printed after the list of commands.
const AFTER: &str = "\
The FOREBAY_ environment variables configure the pools of replay and bench; \"forebay doctor\" lists \
the settings in force. Every command takes --json.

Exit status: 0 for success, 1 for a failure, 2 for bad usage.";

/// How to record a run. Printed after the options of every command that replays one.
const RECORDING: &str = "\
To record a run of your own:
  PyTorch   call torch.cuda.memory._record_memory_history() before the run
            and torch.cuda.memory._dump_snapshot(\"run.pickle\") after it
  RMM       use its logging adaptor (in Python rmm.mr.LoggingResourceAdaptor)
  forebay   Rust: attach a forebay_trace::Recorder to the pool, and save what it
            has with forebay_trace::format::write_path
            Python: Pool(record=True), then save_trace(\"run.fbt\")
            C: forebay_trace_start and forebay_trace_stop
            The pool's setting stacks (FOREBAY_STACKS=on) adds call stacks
  others    write a CSV: the header op,id,bytes,stream, then a line per event:
            a,17,3145728,0 allocates block 17 on stream 0; f,17,,0 frees it";

/// GPU memory pool: check this machine, replay recorded runs, and time allocations.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true, after_help = AFTER)]
pub struct Forebay {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `forebay`.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Check whether forebay works on this machine, and say how to fix what does not.
    ///
    /// Runs a small piece of work on the host, on the simulated device and on each GPU that has a
    /// driver. Exits with 0 if the host and the simulated device pass and every setting is valid; a
    /// GPU is not required.
    ///
    /// With TRACE it also says what would help that run: settings to change, suspected leaks, odd lifetimes, streams
    /// that strand memory. The run is replayed with each change, and a change that gains nothing is not named. A
    /// TRACE that cannot be read ends with 1.
    Doctor(DoctorOptions),
    /// Show what forebay does, on a recorded run that comes with the program.
    ///
    /// Replays a recorded GPT-2 training run on this machine, and on a simulated NVIDIA H200 under
    /// forebay and under models of other allocators; then times an allocation and its free. Needs no
    /// GPU and takes a few seconds. forebay runs at its defaults and ignores the FOREBAY_ variables.
    /// Exits with 0 if nothing failed.
    Demo(DemoOptions),
    /// Replay recorded runs, and compare the memory and time that each allocator takes.
    ///
    /// Compares forebay's pool with models of other allocators. A recording is a PyTorch memory
    /// snapshot, an RMM log, a CSV of allocations or a file written by "forebay convert"; each may be
    /// gzipped. Exits with 0 if every run was replayed and no allocation ran out of memory.
    #[command(after_long_help = RECORDING)]
    Replay(ReplayOptions),
    /// Find the smallest device on which recorded runs go through, under each allocator.
    ///
    /// Replays each run on simulated devices of different sizes until the smallest one on which --passes passes in a row
    /// go through without an out-of-memory error is known to 2 MiB, and shows the driver time on that device and on slightly
    /// larger ones. With --capacity it answers whether the run fits on a device of that size. Then it says
    /// what would help the run, measured by replay, as "forebay report" does. Exits with 0 if every run was replayed and, with --capacity, fits under every allocator that was asked for.
    #[command(after_long_help = RECORDING)]
    Fit(FitOptions),
    /// Show what happened to memory in a recorded run, as one HTML file for any browser.
    ///
    /// Replays the run on a simulated device, on forebay's pool and on models of other allocators. The page shows memory
    /// over time, the map of blocks at any moment, who had memory at the peak, sizes, lifetimes, fragmentation, a
    /// comparison of the allocators, and advice. It needs no network. Exits with 0 if the report was written.
    #[command(after_long_help = RECORDING)]
    Report(ReportOptions),
    /// Time named workloads on forebay's pool, on the driver alone, and on mimalloc.
    ///
    /// "forebay bench alloc" times every workload except STRESS. "forebay bench alloc HOT MP-T" times
    /// those two. "forebay bench alloc STRESS" times pools under extreme load, with very many threads,
    /// streams, holes or pools, and takes about two minutes.
    ///
    /// An operation is an allocation and its free, unless the workload says otherwise. Its time is
    /// the best of several rounds, by this machine's clock. On the simulated device, the cost of
    /// driver calls comes from the cost table of one H200 and is shown in a separate column.
    ///
    /// The FOREBAY_ variables configure the pool, and the output names settings that are not the
    /// default. Exits with 0 if no workload failed.
    Bench(BenchOptions),
    /// Measure how fast memory gets to a device and back.
    ///
    /// Each direction and both at once, from 4 KiB to 1 GiB: pinned memory, which is as fast as the
    /// wire, ordinary memory through the transfer engine, and ordinary memory by the device's own
    /// copy; on a GPU also both by the driver's own calls. Takes 4 GiB of host memory, half of it
    /// pinned, and 2 GiB of the device's; with --quick 64 MiB. Exits with 0 if nothing failed.
    ///
    /// "forebay bench transfer" measures named workloads in the same way.
    Bandwidth(BandwidthOptions),
    /// Watch processes that use forebay, and the GPUs, while they run.
    ///
    /// Attaches to every process of this user that has made a pool, or to one, without restarting it. Shows a live view
    /// in a terminal, and a table each second elsewhere. --serve gives the same as a web page, and /metrics for
    /// Prometheus. Each look takes a thread of the program some hundred microseconds. Exits with 1 if a process was named
    /// that cannot be read, or with --once if there is none.
    Monitor(MonitorOptions),
    /// Convert a recording to another format.
    ///
    /// The ending of OUT selects the format: .csv, .fbt for forebay's own, .pickle for PyTorch's memory viewer, .log for an
    /// RMM log, .json for Perfetto and Chrome's trace viewer. Followed by .gz, the file is packed.
    Convert(ConvertOptions),
}

impl Command {
    /// Whether `--json` was given.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            Self::Doctor(options) => options.json,
            Self::Demo(options) => options.json,
            Self::Replay(options) => options.json,
            Self::Fit(options) => options.json,
            Self::Report(options) => options.json,
            Self::Bench(options) => options.json,
            Self::Bandwidth(options) => options.json,
            Self::Monitor(options) => options.json,
            Self::Convert(options) => options.json,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use forebay_core::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::replay::{DeviceName, Policy};

    #[test]
    fn the_definition_passes_claps_own_checks() {
        Forebay::command().debug_assert();
    }

    #[test]
    fn documented_arguments_are_parsed() {
        let parsed = Forebay::try_parse_from(["forebay", "doctor", "--json"]).unwrap();
        let options = DoctorOptions { json: true, ..DoctorOptions::default() };
        assert_eq!(parsed.command, Command::Doctor(options));
    }

    #[test]
    fn options_for_a_recording_require_a_recording() {
        for option in ["--of-device=1", "--max-events=9", "--limit=2s"] {
            let doctor = ["forebay", "doctor", option];
            let said = Forebay::try_parse_from(doctor).unwrap_err().to_string();
            assert!(said.contains("TRACE"), "{option}: {said}");
            assert!(Forebay::try_parse_from([&doctor[..], &["run.csv"]].concat()).is_ok());
        }
        for command in ["doctor", "replay", "fit", "report"] {
            let empty = ["forebay", command, "run.csv", "--limit", ""];
            let said = Forebay::try_parse_from(empty).unwrap_err().to_string();
            assert!(said.contains("such as 90s"), "{command}: {said}");
        }
    }

    #[test]
    fn replay_defaults_to_two_passes_of_every_model() {
        let replay = |arguments: &[&str]| {
            let parsed = Forebay::try_parse_from([&["forebay", "replay"], arguments].concat());
            match parsed.map(|parsed| parsed.command) {
                Ok(Command::Replay(options)) => Ok(options),
                Ok(other) => panic!("{other:?}"),
                Err(refusal) => Err(refusal.to_string()),
            }
        };
        let plain = replay(&["a.csv", "b.csv"]).unwrap();
        assert_eq!((plain.traces.len(), plain.passes, plain.device), (2, 2, DeviceName::SIM));
        assert_eq!(plain.policy, Policy::ALL);
        assert_eq!(
            replay(&["a", "--device", ""]).unwrap().device,
            plain.device,
            "an empty name means the default"
        );
        assert!(!plain.verify && !plain.backed && !plain.analyse && plain.record.is_none());
        let chosen = replay(&["a", "--policy", "pow2,direct", "--capacity", "1.5GiB"]).unwrap();
        assert_eq!(
            chosen.policy.iter().map(|policy| policy.name()).collect::<Vec<_>>(),
            ["pow2", "direct"]
        );
        assert_eq!(chosen.capacity, Some(Bytes::mib(1536)));
        for (arguments, allowed) in [
            (&["a", "--policy", "jemalloc"][..], "torch, torch-expandable, pow2, direct"),
            (&["a", "--device", "gpu"], "host, sim, or cuda:N"),
            (&["a", "--passes", "0"], "1..=1000"),
            (&["a", "--verify=yes"], "--verify"),
            (&["a", "--capacity", "much"], "as 4096, 512KiB, 1.5GiB or 2GB"),
            (&[], "<TRACE>"),
        ] {
            let said = replay(arguments).unwrap_err();
            assert!(said.contains(allowed), "{arguments:?} said {said}");
        }
    }

    /// Known words and arbitrary ones, some of which are not UTF-8.
    fn argument() -> impl Strategy<Value = OsString> {
        let known = [
            "doctor",
            "replay",
            "report",
            "convert",
            "bench",
            "alloc",
            "transfer",
            "--quick",
            "demo",
            "--verify",
            "--backed",
            "--record",
            "--analyse",
            "--policy=torch,pow2",
            "--policy",
            "direct,",
            "--device=sim",
            "--capacity=24GiB",
            "--capacity=-1",
            "--passes=0",
            "--json",
            "--root",
            "--root=",
            "/",
            "--",
            "-",
            "--help",
            "-h",
            "--version",
            "-V",
            "help",
            "--json=1",
            "-j",
            "",
        ];
        prop_oneof![
            prop::sample::select(known.to_vec()).prop_map(OsString::from),
            any::<String>().prop_map(OsString::from),
            prop::collection::vec(1_u8.., 0..12).prop_map(|bytes| {
                use std::os::unix::ffi::OsStringExt;
                OsString::from_vec(bytes)
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_arguments_make_it_panic(arguments in prop::collection::vec(argument(), 0..6)) {
            if let Err(refusal) = Forebay::try_parse_from(arguments) {
                prop_assert!([0, 2].contains(&refusal.exit_code()));
                prop_assert!(!refusal.to_string().is_empty());
            }
        }
    }
}
