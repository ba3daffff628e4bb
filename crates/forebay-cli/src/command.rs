//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, value_parser};
use forebay_core::Bytes;

use crate::bench::{Against, Case, Subjects};
use crate::replay::{Place, Policy};

/// What comes after the list of commands.
const AFTER: &str = "\
Pools of replay and bench go by the FOREBAY_ variables; \"forebay doctor\" shows what is in force.
Every command takes --json. Exit status: 0 where all went well, 1 after a fault, 2 for bad usage.";

/// How runs come to be recorded, after the options of `forebay replay`.
const RECORDING: &str = "\
To record a run of your own:
  PyTorch   torch.cuda.memory._record_memory_history() before it,
            torch.cuda.memory._dump_snapshot(\"run.pickle\") after it
  RMM       its logging resource adaptor (Python: rmm.mr.LoggingResourceAdaptor)
  forebay   forebay_trace::Recorder beside the pool, and format::write_path
  others    a CSV: the line op,id,bytes,stream, then a line an event:
            a,17,3145728,0 allocates block 17 on stream 0; f,17,,0 frees it";

/// Memory for accelerators: what this machine offers, what a recorded run takes, what a pair costs.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true, after_help = AFTER)]
pub struct Forebay {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `forebay` can do.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Say whether forebay works here, what to mend, and what this machine offers.
    ///
    /// Tries the host, the simulated device and each GPU that there is a driver for with a small piece
    /// of work. Exits with 0 where the first two do it and no setting is refused, whether or not there is
    /// an accelerator.
    Doctor(DoctorOptions),
    /// Show what forebay does: a recorded run under several allocators, and what a pair costs.
    ///
    /// Replays the training of GPT-2 that comes with the program: on this machine, and on a
    /// simulated NVIDIA H200 under forebay and models of others. Needs no accelerator and takes
    /// seconds. forebay is at its defaults, whatever FOREBAY_ variables say. Exits with 0 where
    /// nothing failed.
    Demo(DemoOptions),
    /// Play recorded runs on forebay's pool and on models of other allocators: what each takes.
    ///
    /// A recording is a PyTorch memory snapshot, an RMM log, a CSV of allocations or a file that
    /// "forebay convert" wrote; each may be gzipped. Exits with 0 where every run was played and
    /// no allocation ran out of memory.
    #[command(after_long_help = RECORDING)]
    Replay(ReplayOptions),
    /// Time named workloads on forebay's pool, on the driver, and against mimalloc.
    ///
    /// "forebay bench alloc" times all but the RIM workloads, "forebay bench alloc HOT MP-T" those two,
    /// "forebay bench alloc RIM" those that load a pool with very many threads, streams, holes and
    /// pools, which takes about two minutes. An operation is an allocation and a free unless the
    /// workload says otherwise. Its time is the best of several rounds by this machine's clock; on the simulated device the driver's calls are priced by the cost table of
    /// one H200 and shown beside it. The pool goes by the FOREBAY_ variables, and what is not the
    /// default is said. Exits with 0 where no workload failed.
    Bench(BenchOptions),
    /// Write a recording in another form.
    ///
    /// The ending names the form: .csv or .csv.gz for a CSV, .fbt for forebay's own, which is smaller.
    Convert(ConvertOptions),
}

/// The options of `forebay doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct DoctorOptions {
    /// Print one JSON object on one line, with "schema": "forebay.doctor.v1".
    #[arg(long)]
    pub json: bool,

    /// Read the machine's files (/proc, /sys, /etc, /dev, libraries) below this directory. For
    /// tests: devices are not opened then, as they belong to another machine.
    #[arg(long, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// The options of `forebay replay`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// The files of the recorded runs.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// Where to play.
    #[arg(long, value_name = "sim|host|cuda:N", default_value_t = Place::Sim)]
    pub device: Place,

    /// The allocators to play on, separated by commas. Unless said: all of them.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        hide_default_value = true,
        default_values_t = Policy::ALL.to_vec()
    )]
    pub policy: Vec<Policy>,

    /// How much memory the device has, as 24GiB. Unless said: 1 TiB simulated, the machine's own
    /// on the host.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,

    /// How often each run is played on the same allocator: the first pass finds it empty, later
    /// ones find what the pass before left.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u32).range(1..=1000))]
    pub passes: u32,

    /// Check that blocks keep what is written to them.
    ///
    /// Writes to every block when it is allocated, in the order of its stream, and reads it before it
    /// is freed. Blocks of up to 64 KiB are written whole; of larger ones 64 bytes of every
    /// 4 KiB and the last 64. The device must have memory for the whole run: the host, or the
    /// simulated device with --backed. Times are taken without the writing and checking, on a
    /// machine that is busy with them.
    #[arg(long)]
    pub verify: bool,

    /// Put memory of this machine behind the simulated device, which has addresses alone otherwise.
    #[arg(long)]
    pub backed: bool,

    /// Which device's history to take from a PyTorch snapshot that has several, from 0.
    #[arg(long, value_name = "N")]
    pub of_device: Option<u32>,

    /// Record what forebay's pool is asked in the first pass, into this file.
    ///
    /// The ending names the form: .csv, .csv.gz or .fbt. For one run, and with forebay among the
    /// allocators. The pool is slower while it is watched.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Say what patterns each run has, and what follows: sizes, lifetimes, its peak, its streams.
    #[arg(long, visible_alias = "analyze")]
    pub analyse: bool,

    /// Print one JSON object a line for each pass, with "schema": "forebay.replay.v1"; for patterns
    /// one a run, with "schema": "forebay.analysis.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay demo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct DemoOptions {
    /// Print JSON, one object a line: the replay's rows, the pairs', and one with "schema":
    /// "forebay.demo.v1" that says what was saved.
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay bench`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct BenchOptions {
    /// What to time.
    #[arg(value_enum)]
    pub what: Subjects,

    /// The workloads to time, by name, in any case; all but RIM unless some are named.
    #[arg(value_enum, ignore_case = true, value_name = "WORKLOAD")]
    pub workloads: Vec<Case>,

    /// Where to time.
    #[arg(long, value_name = "sim|host|cuda:N", default_value_t = Place::Sim)]
    pub device: Place,

    /// An allocator of others to time beside it on a GPU, with the signatures of PyTorch's pluggable
    /// allocator. May be given several times.
    #[arg(long, value_name = "NAME=LIBRARY:ALLOCATE:FREE")]
    pub against: Vec<Against>,

    /// Few rounds: to see that everything works, not for figures.
    #[arg(long)]
    pub quick: bool,

    /// Print one JSON object a line for each case, with "schema": "forebay.bench.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay convert`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The recording to read, in any form.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The file to write; its ending names the form: .csv, .csv.gz or .fbt.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,

    /// Which device's history to take from a PyTorch snapshot that has several, from 0.
    #[arg(long, value_name = "N")]
    pub of_device: Option<u32>,

    /// Print one JSON object on one line, with "schema": "forebay.convert.v1".
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Forebay::command().debug_assert();
    }

    #[test]
    fn what_is_documented_is_understood() {
        let parsed = Forebay::try_parse_from(["forebay", "doctor", "--json"]).unwrap();
        assert_eq!(parsed.command, Command::Doctor(DoctorOptions { json: true, root: None }));
    }

    #[test]
    fn a_replay_is_all_models_twice_unless_said() {
        let replay = |arguments: &[&str]| {
            let parsed = Forebay::try_parse_from([&["forebay", "replay"], arguments].concat());
            match parsed.map(|parsed| parsed.command) {
                Ok(Command::Replay(options)) => Ok(options),
                Ok(other) => panic!("{other:?}"),
                Err(refusal) => Err(refusal.to_string()),
            }
        };
        let plain = replay(&["a.csv", "b.csv"]).unwrap();
        assert_eq!((plain.traces.len(), plain.passes, plain.device), (2, 2, Place::Sim));
        assert_eq!(plain.policy, Policy::ALL);
        assert!(!plain.verify && !plain.backed && !plain.analyse && plain.record.is_none());
        let chosen = replay(&["a", "--policy", "pow2,direct", "--capacity", "1.5GiB"]).unwrap();
        assert_eq!(
            chosen.policy.iter().map(|policy| policy.name()).collect::<Vec<_>>(),
            ["pow2", "direct"]
        );
        assert_eq!(chosen.capacity, Some(Bytes::mib(1536)));
        for (arguments, allowed) in [
            (&["a", "--policy", "jemalloc"][..], "torch, torch-expandable, pow2, direct"),
            (&["a", "--device", "gpu"], "sim, host, or cuda:0"),
            (&["a", "--passes", "0"], "1..=1000"),
            (&["a", "--verify=yes"], "--verify"),
            (&["a", "--capacity", "much"], "as 4096, 512KiB, 1.5GiB or 2GB"),
            (&[], "<TRACE>"),
        ] {
            let said = replay(arguments).unwrap_err();
            assert!(said.contains(allowed), "{arguments:?} said {said}");
        }
    }

    /// Words that mean something, and any others, some of them no text.
    fn argument() -> impl Strategy<Value = OsString> {
        let known = [
            "doctor",
            "replay",
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
        fn no_arguments_bring_it_down(arguments in prop::collection::vec(argument(), 0..6)) {
            if let Err(refusal) = Forebay::try_parse_from(arguments) {
                prop_assert!([0, 2].contains(&refusal.exit_code()));
                prop_assert!(!refusal.to_string().is_empty());
            }
        }
    }
}
