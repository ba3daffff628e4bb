//! One command: no input, its output kept, nothing of it left running. One that hangs is ended.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{kill_with_descendants, try_wait};

/// How often the command and the clock are looked at. Short to a person, long to a processor.
const TICK: Duration = Duration::from_millis(50);

/// How long output is read on after the command ended: something it left behind may hold the pipe.
const AFTERMATH: Duration = Duration::from_secs(2);

/// A command that prints nothing for so long hangs. Fetching a toolchain, linking as one, or a test program may be silent
/// for long on a slow machine that others use; nextest ends single tests much earlier.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A command to run.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: PathBuf,
}

impl Task {
    /// `program` in `directory`, with `words` as arguments, which are split at spaces.
    pub(crate) fn new(program: impl AsRef<OsStr>, words: &str, directory: &Path) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: words.split_whitespace().map(OsString::from).collect(),
            variables: Vec::new(),
            directory: directory.to_owned(),
        }
    }

    /// The same with more arguments, taken as they are.
    #[must_use]
    pub(crate) fn with<A: AsRef<OsStr>>(mut self, more: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(more.into_iter().map(|one| one.as_ref().to_owned()));
        self
    }

    /// The same with an environment variable set.
    #[must_use]
    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Runs it. `watch` is told every few hundredths of a second how long it has run, and the end of
    /// what it printed.
    pub(crate) fn run(&self, watch: &mut dyn FnMut(Duration, &str)) -> Ran {
        self.run_patiently(PATIENCE, watch)
    }

    fn run_patiently(&self, patience: Duration, watch: &mut dyn FnMut(Duration, &str)) -> Ran {
        match self.start() {
            Ok((child, pipe)) => follow(child, &pipe, patience, watch),
            Err(error) => Ran {
                ending: Ending::NotStarted(error),
                output: String::new(),
                cpu: Duration::ZERO,
            },
        }
    }

    fn start(&self) -> io::Result<(Child, Receiver<Vec<u8>>)> {
        // One pipe for both streams: errors stay beside what they are about.
        let (mut reader, writer) = io::pipe()?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            // The output is read by this program before any person.
            .env("CARGO_TERM_COLOR", "never")
            .env("CARGO_TERM_PROGRESS_WHEN", "never");
        for (name, _) in std::env::vars_os() {
            // What cargo told us about this package is not true of what we start.
            if is_of_this_package(&name) {
                command.env_remove(name);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let child = command.spawn()?;
        // The command holds our ends of the pipe; with them open the reader would never end.
        drop(command);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut chunk = vec![0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                let Some(read) = chunk.get(..count) else { break };
                if sender.send(read.to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok((child, receiver))
    }
}

fn follow(
    mut child: Child,
    pipe: &Receiver<Vec<u8>>,
    patience: Duration,
    watch: &mut dyn FnMut(Duration, &str),
) -> Ran {
    let started = Instant::now();
    let (mut output, mut printed) = (Vec::new(), started);
    let mut ended: Option<(Ending, Duration, Instant)> = None;
    loop {
        let drained = match pipe.recv_timeout(TICK) {
            Ok(bytes) => {
                output.extend_from_slice(&bytes);
                printed = Instant::now();
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(TICK);
                true
            }
        };
        watch(started.elapsed(), tail(&output));
        ended = match ended {
            Some((ending, cpu, at)) if drained || at.elapsed() > AFTERMATH => {
                let output = String::from_utf8_lossy(&output).into_owned();
                return Ran { ending, output, cpu };
            }
            None => match try_wait(&mut child) {
                Ok(Some((status, cpu))) if status.success() => Some((Ending::Success, cpu)),
                Ok(Some((status, cpu))) => Some((Ending::Failure(status), cpu)),
                Ok(None) if printed.elapsed() > patience => {
                    kill_with_descendants(&mut child);
                    Some((Ending::Hung(patience), Duration::ZERO))
                }
                Ok(None) => None,
                Err(error) => Some((Ending::NotStarted(error), Duration::ZERO)),
            }
            .map(|(ending, cpu)| (ending, cpu, Instant::now())),
            still => still,
        };
    }
}

impl fmt::Display for Task {
    /// As a person would type it, the program without its folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program);
        for (name, value) in &self.variables {
            let (name, value) = (name.display(), value.to_string_lossy());
            let quote = if value.contains(' ') { "'" } else { "" };
            write!(f, "{name}={quote}{value}{quote} ")?;
        }
        write!(f, "{}", program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It exited with 0.
    Success,
    /// It exited with another code, or by a signal.
    Failure(ExitStatus),
    /// It was silent for this long and was ended.
    Hung(Duration),
    /// It could not be started: most often, it is not installed.
    NotStarted(io::Error),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("succeeded"),
            Self::Failure(status) => write!(f, "ended with {status}"),
            Self::Hung(patience) => {
                write!(f, "was ended: it printed nothing for {} s", patience.as_secs())
            }
            Self::NotStarted(error) => write!(f, "could not be started: {error}"),
        }
    }
}

/// What came of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    /// How it ended.
    pub(crate) ending: Ending,
    /// What it wrote to both streams, in that order.
    pub(crate) output: String,
    /// The processor time it took, with all that it started.
    pub(crate) cpu: Duration,
}

impl Ran {
    /// Whether it exited with 0.
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.ending, Ending::Success)
    }

    /// Why it failed in one line: its first line with "error" in it, else its last.
    pub(crate) fn reason(&self) -> String {
        let lines = || self.output.lines().map(str::trim).filter(|line| !line.is_empty());
        let said = lines().find(|line| line.to_ascii_lowercase().starts_with("error"));
        match said.or_else(|| lines().next_back()) {
            Some(line) => format!("{} (\"{line}\")", self.ending),
            None => self.ending.to_string(),
        }
    }

    /// A command that says `output` and succeeds, or cannot be started.
    #[cfg(test)]
    pub(crate) fn made_up(good: bool, output: &str) -> Self {
        let not_found = || Ending::NotStarted(io::Error::other("not found"));
        let ending = if good { Ending::Success } else { not_found() };
        Self { ending, output: output.to_owned(), cpu: Duration::ZERO }
    }
}

/// The end of what was printed, in which a person or [`last_line`] finds what happens now.
fn tail(output: &[u8]) -> &str {
    const ENOUGH: usize = 4000;
    // A character cut at the start costs it alone.
    let tail = output.get(output.len().saturating_sub(ENOUGH)..).unwrap_or_default();
    tail.utf8_chunks().last().map_or("", |chunk| chunk.valid())
}

/// The last line with something in it that is for people: cargo's messages for programs are in braces.
pub(crate) fn last_line(text: &str) -> &str {
    let is_for_people = |line: &&str| !line.is_empty() && !line.starts_with('{');
    text.lines().map(str::trim).rfind(is_for_people).unwrap_or_default()
}

fn is_of_this_package(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Task {
        Task::new("sh", "-c", Path::new("/")).with([script])
    }

    fn run(script: &str, patience: Duration) -> Ran {
        shell(script).run_patiently(patience, &mut |_, _| {})
    }

    #[test]
    fn both_streams_are_kept_in_order_and_there_is_no_input() {
        let ran = run("cat; echo one; echo two >&2; echo three", PATIENCE);
        assert!(ran.succeeded());
        assert_eq!(ran.output, "one\ntwo\nthree\n");
    }

    #[test]
    fn a_failure_says_its_code_and_its_error_line() {
        let ran = run("echo begin; echo 'error: no such thing'; echo end; exit 3", PATIENCE);
        assert!(matches!(&ran.ending, Ending::Failure(status) if status.code() == Some(3)));
        assert!(ran.reason().contains("error: no such thing"), "{}", ran.reason());
    }

    #[test]
    fn a_missing_program_is_a_value() {
        let ran = Task::new("no-such-program-anywhere", "", Path::new("/")).run(&mut |_, _| {});
        assert!(matches!(ran.ending, Ending::NotStarted(_)));
        assert!(ran.reason().starts_with("could not be started"), "{}", ran.reason());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        // The grandchild is its own session, as the tests of some runners are.
        let started = Instant::now();
        let ran = run("setsid sleep 600 & echo $!; wait", Duration::from_millis(500));
        assert!(matches!(ran.ending, Ending::Hung(_)), "{:?}", ran.ending);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", ran.output.trim()));
        // Gone, or dead and not yet collected by the process that inherited it.
        assert!(stat.as_ref().map_or(true, |stat| stat.contains(") Z ")), "{stat:?}");
    }

    #[test]
    fn a_command_that_goes_on_is_not_ended() {
        let patience = Duration::from_secs(3);
        let started = Instant::now();
        let ran = run("for i in 1 2 3 4 5 6 7 8; do sleep 0.5; echo $i; done", patience);
        assert!(ran.succeeded(), "{:?}", ran.ending);
        assert!(started.elapsed() > patience);
    }

    #[test]
    fn a_command_that_leaves_something_behind_is_not_waited_for() {
        let started = Instant::now();
        let ran = run("sleep 8 & echo started", PATIENCE);
        assert!(ran.succeeded());
        assert_eq!(ran.output, "started\n");
        assert!(started.elapsed() < Duration::from_secs(7), "{:?}", started.elapsed());
    }

    #[test]
    fn the_watcher_sees_time_and_the_last_line() {
        let mut seen = Vec::new();
        let task = shell("echo working; sleep 0.3");
        task.run(&mut |elapsed, tail| seen.push((elapsed, last_line(tail).to_owned())));
        assert!(seen.is_sorted_by_key(|(elapsed, _)| *elapsed));
        assert!(seen.iter().any(|(_, line)| line == "working"));
    }

    #[test]
    fn a_task_reads_as_it_would_be_typed() {
        let task = Task::new("/usr/bin/cargo", "doc --no-deps", Path::new("/"))
            .variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(task.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}
