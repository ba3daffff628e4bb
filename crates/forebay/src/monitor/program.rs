//! Who a process is, beyond the system's name for its program: the script that its interpreter runs, its rank among the
//! processes of a job, and the name that it chose.

use std::fs::File;
use std::io::Read;

use crate::config::Sources;
use crate::sync::fork::PerProcess;

/// The variables that launchers set, those that count all processes of a job first.
const RANKS: [&str; 6] =
    ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "LOCAL_RANK"];

/// How much of a command line is read.
const LONGEST_LINE: u64 = 1 << 14;

/// How many processes back the script of a worker is looked for.
const MAX_PARENTS: usize = 4;

/// The module that runs a script under forebay: the script's name says more.
const RUNNER: &str = "forebay.torch";

/// Who a process is.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) script: String,
    pub(super) rank: Option<u64>,
}

static HERE: PerProcess<Option<Program>> = PerProcess::new();

/// This process. The environment is read the first time, when a pool is built: the thread that answers readers must not
/// read what the program may be changing.
pub(super) fn here() -> Program {
    HERE.lock().get_or_insert_with(find).clone()
}

fn find() -> Program {
    let settings = Sources::here().examine().settings;
    let rank = RANKS.iter().find_map(|variable| std::env::var(variable).ok()?.trim().parse().ok());
    let name = settings.name().get().unwrap_or_default().to_owned();
    Program { name, script: script(), rank }
}

/// The script that this process runs. A worker that a script has started has a line of its own, so its parent's counts.
fn script() -> String {
    let mut process = "self".to_owned();
    for _ in 0..MAX_PARENTS {
        match started(&read(&process, "cmdline")) {
            Started::Script(name) => return name,
            Started::Worker => {}
            Started::Other => break,
        }
        // The fourth figure; the second is a name in parentheses, which may hold anything.
        let status = read(&process, "stat");
        let rest = status.rsplit(')').next().unwrap_or_default();
        match rest.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok()) {
            Some(parent) if parent > 1 => process = parent.to_string(),
            _ => break,
        }
    }
    String::new()
}

fn read(process: &str, file: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{process}/{file}")) {
        // What could be read is enough.
        let _ = file.take(LONGEST_LINE).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a command line starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// A script or module of Python.
    Script(String),
    /// A worker of Python's multiprocessing.
    Worker,
    /// Something that has no script.
    Other,
}

/// What a command line of the system starts: arguments with a zero byte behind each.
pub(super) fn started(line: &str) -> Started {
    let mut arguments = line.split('\0');
    let file_of = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let program = file_of(arguments.next().unwrap_or_default());
    if !["python", "pypy"].iter().any(|name| program.starts_with(name)) {
        return Started::Other;
    }
    while let Some(argument) = arguments.next() {
        let Some(options) = argument.strip_prefix('-') else {
            let script = file_of(argument);
            return if script.is_empty() { Started::Other } else { Started::Script(script) };
        };
        if options == "-check-hash-based-pycs" {
            arguments.next();
        }
        if options.starts_with('-') {
            continue;
        }
        // Letters without a value, then at most one that has one: behind it, or in the next argument.
        let Some(at) = options.find(['c', 'm', 'W', 'X']) else { continue };
        let (letter, behind) = options.split_at(at).1.split_at(1);
        let value = if behind.is_empty() { arguments.next().unwrap_or_default() } else { behind };
        match letter {
            "c" if value.contains("multiprocessing") => return Started::Worker,
            "c" => return Started::Other,
            "m" if value != RUNNER => return Started::Script(value.to_owned()),
            _ => {}
        }
    }
    Started::Other
}
