//! What can be typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, value_parser};
use forebay::devices::{UnknownDevice, VARIABLE};
use forebay_core::Bytes;
use forebay_trace::{Fit, Model};

use crate::bench::{Against, Case, Subjects};
use crate::limit::{ReadingOptions, WorkOptions};
use crate::monitor::Address;
use crate::replay::{DeviceName, Policy};

/// The names of devices.
const DEVICES: &str = "sim|host|cuda:N|hip:N|opencl:N|metal:N";

/// Reads the name of a device. An empty one, as of an empty variable, is the default.
fn device_or(
    default: DeviceName,
) -> impl Fn(&str) -> Result<DeviceName, UnknownDevice> + Clone + Send + Sync {
    move |name| if name.is_empty() { Ok(default) } else { name.parse() }
}

/// What comes after the list of commands.
const AFTER: &str = "\
The FOREBAY_ environment variables configure the pools of replay and bench; \"forebay doctor\" lists \
the settings in force. Every command takes --json.

Exit status: 0 for success, 1 for a failure, 2 for bad usage.";

/// How to record a run, after the options of `forebay replay`.
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
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `forebay` can do.
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
    /// "forebay bench alloc" times every workload except RIM. "forebay bench alloc HOT MP-T" times
    /// those two. "forebay bench alloc RIM" times pools under extreme load, with very many threads,
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
    /// Whether the output is for programs.
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

/// The options of `forebay doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
// Without a run there is nothing to read or to work on.
#[command(
    mut_arg("of_device", |arg| arg.requires("trace")),
    mut_arg("max_events", |arg| arg.requires("trace")),
    mut_arg("limit", |arg| arg.requires("trace"))
)]
pub struct DoctorOptions {
    /// A recorded run to advise on as well; "-" reads standard input.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print one line of JSON, with "schema": "forebay.doctor.v1".
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
    /// The recordings to replay; "-" reads standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// The device to replay on: simulated, this machine's own memory, or device number N of a driver.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::SIM, value_parser = device_or(DeviceName::SIM))]
    pub device: DeviceName,

    /// The allocators to compare, separated by commas [default: all].
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        hide_default_value = true,
        default_values_t = Policy::ALL.to_vec()
    )]
    pub policy: Vec<Policy>,

    /// How much memory the device has, such as 24GiB [default: 1 TiB on sim, all memory on host].
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,

    /// How many times to replay each run on the same allocator. The first pass starts with an empty
    /// allocator, later passes with what the previous one left cached.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u32).range(1..=1000))]
    pub passes: u32,

    /// Check that blocks keep what is written to them.
    ///
    /// Writes to each block after its allocation, in stream order, and checks the contents before its
    /// free. Blocks of up to 64 KiB are written in full; in larger blocks, 64 bytes of every 4 KiB
    /// and the last 64 bytes. The device needs real memory for the whole run: use the host, or the
    /// simulated device with --backed. Times exclude writing and checking, but are less accurate
    /// because the machine is busy with both.
    #[arg(long)]
    pub verify: bool,

    /// Back the simulated device with this machine's memory. Otherwise it has only addresses.
    #[arg(long)]
    pub backed: bool,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Record the requests to forebay's pool during the first pass into this file.
    ///
    /// The ending selects the format, as for "forebay convert". Needs exactly one run, and forebay among
    /// the allocators. Recording slows the pool down.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Describe the patterns of each run (sizes, lifetimes, peak, streams), with advice.
    #[arg(long, visible_alias = "analyze")]
    pub analyse: bool,

    /// Print a line of JSON for each pass, with "schema": "forebay.replay.v1"; with --analyse, also
    /// one for each run, with "schema": "forebay.analysis.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay fit`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct FitOptions {
    /// The recordings to replay; "-" reads standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// The allocators to compare, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Policy::Forebay, Policy::Model(Model::TorchExpandable), Policy::Model(Model::Torch)]
    )]
    pub policy: Vec<Policy>,

    /// Answer whether the runs fit on a device with this much memory, such as 24GiB, and by what margin.
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,

    /// How many times in a row a run has to go through on the same allocator: what "smallest" promises.
    #[arg(long, value_name = "N", default_value_t = Fit::PASSES, value_parser = value_parser!(u32).range(1..=1000))]
    pub passes: u32,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print a line of JSON for each run and allocator, with "schema": "forebay.fit.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay report`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ReportOptions {
    /// The recording; "-" reads standard input.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// The HTML file to write [default: the name of the run with .report.html, in the current directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How much memory the simulated device has, such as 24GiB [default: 1 TiB].
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Bytes>,

    /// Leave out what needs many replays: the smallest device, other settings and larger batches.
    #[arg(long)]
    pub quick: bool,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print the data of the page as one line of JSON, with "schema": "forebay.report.v1". The page is written only if
    /// --output names it.
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay demo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct DemoOptions {
    /// Print lines of JSON: one for each replayed pass, one for each timed pair, and a summary with
    /// "schema": "forebay.demo.v1".
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

    /// The workloads of "alloc" to time, in upper or lower case [default: all except RIM].
    #[arg(value_enum, ignore_case = true, value_name = "WORKLOAD")]
    pub workloads: Vec<Case>,

    /// The device to time on: simulated, this machine's own memory, or device number N of a driver.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::SIM, value_parser = device_or(DeviceName::SIM))]
    pub device: DeviceName,

    /// Another GPU allocator to compare with: a library, and its two functions with the signatures of
    /// PyTorch's pluggable allocator. Can be repeated.
    #[arg(long, value_name = "NAME=LIBRARY:ALLOCATE:FREE")]
    pub against: Vec<Against>,

    /// Run few rounds: enough to check that everything works, too few for reliable figures.
    #[arg(long)]
    pub quick: bool,

    /// Print a line of JSON for each case, with "schema": "forebay.bench.v1"; of transfers, "forebay.bandwidth.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay bandwidth`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct BandwidthOptions {
    /// The device: this machine's own memory, device number N of a driver, or simulated.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::HOST, value_parser = device_or(DeviceName::HOST))]
    pub device: DeviceName,

    /// The threads of the transfer engine [default: what a short measurement finds on a GPU, else one for each processor up to twelve].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Measure small sizes in few rounds: enough to check that everything works.
    #[arg(long)]
    pub quick: bool,

    /// Print a line of JSON for each case, with "schema": "forebay.bandwidth.v1".
    #[arg(long)]
    pub json: bool,
}

/// The options of `forebay monitor`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct MonitorOptions {
    /// The process to watch [default: all of this user].
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,

    /// How many seconds pass between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,

    /// Print one table, and end.
    #[arg(long)]
    pub once: bool,

    /// Answer web browsers and Prometheus at this address instead [default: 127.0.0.1:9470].
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "9470", conflicts_with_all = ["once", "json"])]
    pub serve: Option<Address>,

    /// Let --serve listen at an address that other machines can reach. Nothing asks who they are.
    #[arg(long, requires = "serve")]
    pub allow_remote: bool,

    /// Let --serve answer requests to this name too. It answers those to addresses and to the machine's own name, so that
    /// no page of another site can read it under a name of its own.
    #[arg(long, value_name = "NAME", requires = "serve")]
    pub allow_host: Vec<String>,

    /// Print one line of JSON for each look, with "schema": "forebay.monitor.v1".
    #[arg(long)]
    pub json: bool,
}

/// Reads seconds, from a tenth to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let wanted = "write seconds from 0.1 to 3600";
    seconds.map(Duration::from_secs_f64).ok_or_else(|| wanted.to_owned())
}

/// The options of `forebay convert`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The recording to read, in any format; "-" reads standard input.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The file to write; its ending selects the format: .csv, .fbt, .pickle, .log or .json, each also with .gz.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// Print one line of JSON, with "schema": "forebay.convert.v1".
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
        let options = DoctorOptions { json: true, ..DoctorOptions::default() };
        assert_eq!(parsed.command, Command::Doctor(options));
    }

    #[test]
    fn options_of_a_recording_need_one() {
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
        assert_eq!((plain.traces.len(), plain.passes, plain.device), (2, 2, DeviceName::SIM));
        assert_eq!(plain.policy, Policy::ALL);
        assert_eq!(replay(&["a", "--device", ""]).unwrap().device, plain.device, "as if not set");
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

    /// Words that mean something, and any others, some of them no text.
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
        fn no_arguments_bring_it_down(arguments in prop::collection::vec(argument(), 0..6)) {
            if let Err(refusal) = Forebay::try_parse_from(arguments) {
                prop_assert!([0, 2].contains(&refusal.exit_code()));
                prop_assert!(!refusal.to_string().is_empty());
            }
        }
    }
}
