//! One command: no input, its output kept, nothing of it left running. It goes on for as long as it makes progress,
//! however slow the machine; one that hangs is ended.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::kill::kill_with_descendants;

/// How often the command and the clock are looked at. Short to a person, long to a processor.
const TICK: Duration = Duration::from_millis(50);

/// How long output is read on after the command ended: something it left behind may hold the pipe.
const AFTERMATH: Duration = Duration::from_secs(2);

/// A command to run.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: PathBuf,
    patience: Duration,
}

impl Task {
    /// `program` with `arguments` in `directory`. It is ended by force if it prints nothing for `patience`, and has used that
    /// much processor time since or none at all.
    pub(crate) fn new<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
        directory: &Path,
        patience: Duration,
    ) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: arguments.into_iter().map(|one| one.as_ref().to_owned()).collect(),
            variables: Vec::new(),
            directory: directory.to_owned(),
            patience,
        }
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
        let mut output = Vec::new();
        let (ending, cpu) = match self.start() {
            Ok((child, pipe)) => self.follow(child, &pipe, &mut output, watch),
            Err(error) => (Ending::NotStarted(error), Duration::ZERO),
        };
        let output = String::from_utf8_lossy(&output).into_owned();
        Ran { ending, output, cpu }
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

    fn follow(
        &self,
        mut child: Child,
        pipe: &Receiver<Vec<u8>>,
        output: &mut Vec<u8>,
        watch: &mut dyn FnMut(Duration, &str),
    ) -> (Ending, Duration) {
        let started = Instant::now();
        let mut progress = Progress::new(child.id(), self.patience);
        let mut ended: Option<(Ending, Instant)> = None;
        let mut cpu = Duration::ZERO;
        loop {
            let drained = match pipe.recv_timeout(TICK) {
                Ok(bytes) => {
                    output.extend_from_slice(&bytes);
                    progress.printed();
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => {
                    thread::sleep(TICK);
                    true
                }
            };
            match ended.take() {
                Some((ending, at)) if drained || at.elapsed() > AFTERMATH => return (ending, cpu),
                Some(still) => ended = Some(still),
                None => {
                    let ending = match cpu::try_wait(&mut child) {
                        Ok(Some((status, spent))) => {
                            cpu = spent;
                            let success = status.success();
                            Some(if success { Ending::Success } else { Ending::Failure(status) })
                        }
                        Ok(None) if progress.has_ended() => {
                            kill_with_descendants(&mut child);
                            Some(Ending::Hung(self.patience))
                        }
                        Ok(None) => None,
                        Err(error) => Some(Ending::NotStarted(error)),
                    };
                    ended = ending.map(|ending| (ending, Instant::now()));
                }
            }
            watch(started.elapsed(), tail(output));
        }
    }
}

impl fmt::Display for Task {
    /// As a person would type it, the program without its folder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program);
        for (name, value) in &self.variables {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            let quote = if value.contains(' ') { "'" } else { "" };
            write!(f, "{name}={quote}{value}{quote} ")?;
        }
        write!(f, "{}", program.to_string_lossy())?;
        for argument in &self.arguments {
            write!(f, " {}", argument.to_string_lossy())?;
        }
        Ok(())
    }
}

/// Whether a command goes on: by what it prints, and by the processor time of all its processes. On a machine with other
/// work to do a silent command may need long for little, but it gets some time.
struct Progress {
    process: u32,
    patience: Duration,
    /// When it last printed, and the processor time until about then; `None` until the next look.
    printed: (Instant, Option<Duration>),
    /// The processor time at the last look that found more, and when that was.
    worked: (Duration, Instant),
    looked: Instant,
    /// How often the processes are looked at: each look reads the figures of all that run on the machine.
    look: Duration,
}

impl Progress {
    fn new(process: u32, patience: Duration) -> Self {
        let now = Instant::now();
        let worked = (Duration::ZERO, now);
        let look = (patience / 60).clamp(Duration::from_millis(500), Duration::from_secs(5));
        Self { process, patience, printed: (now, Some(Duration::ZERO)), worked, looked: now, look }
    }

    fn printed(&mut self) {
        self.printed = (Instant::now(), None);
    }

    /// Whether it has made none for long enough.
    fn has_ended(&mut self) -> bool {
        if self.looked.elapsed() < self.look {
            return false;
        }
        self.looked = Instant::now();
        let Some(work) = cpu::time_of_tree(self.process) else {
            // Where the system does not tell, what is printed has to.
            return self.printed.0.elapsed() > self.patience;
        };
        if work != self.worked.0 {
            self.worked = (work, self.looked);
        }
        let before = *self.printed.1.get_or_insert(work);
        let is_silent = self.printed.0.elapsed() > self.patience;
        let had_its_time = work.saturating_sub(before) > self.patience;
        is_silent && (had_its_time || self.worked.1.elapsed() > self.patience)
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It exited with 0.
    Success,
    /// It exited with another code, or by a signal.
    Failure(ExitStatus),
    /// It made no progress for this long and was ended.
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
                write!(f, "was ended: it made no progress for {} s", patience.as_secs())
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
}

/// The end of what was printed, in which a person or [`last_line`] finds what happens now.
fn tail(output: &[u8]) -> &str {
    /// Some screens of text: the line that says which test runs may be that far above the last.
    const ENOUGH: usize = 4000;
    // A character cut at the start costs it alone.
    let tail = output.get(output.len().saturating_sub(ENOUGH)..).unwrap_or_default();
    tail.utf8_chunks().last().map_or("", |chunk| chunk.valid())
}

/// The last line with something in it.
pub(crate) fn last_line(text: &str) -> &str {
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default()
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

    fn shell(script: &str, deadline: Duration) -> Ran {
        Task::new("sh", ["-c", script], Path::new("/"), deadline).run(&mut |_, _| {})
    }

    const AMPLE: Duration = Duration::from_secs(30);

    #[test]
    fn both_streams_are_kept_in_order() {
        let ran = shell("echo one; echo two >&2; echo three", AMPLE);
        assert!(ran.succeeded());
        assert_eq!(ran.output, "one\ntwo\nthree\n");
    }

    #[test]
    fn a_failure_says_its_code_and_its_error_line() {
        let ran = shell("echo begin; echo 'error: no such thing'; echo end; exit 3", AMPLE);
        assert!(matches!(&ran.ending, Ending::Failure(status) if status.code() == Some(3)));
        assert!(ran.reason().contains("error: no such thing"), "{}", ran.reason());
    }

    #[test]
    fn there_is_no_input_to_wait_for() {
        let ran = shell("cat; echo done", AMPLE);
        assert_eq!(ran.output, "done\n");
    }

    #[test]
    fn a_missing_program_is_a_value() {
        let task = Task::new("no-such-program-anywhere", [""; 0], Path::new("/"), AMPLE);
        let ran = task.run(&mut |_, _| {});
        assert!(matches!(ran.ending, Ending::NotStarted(_)));
        assert!(ran.reason().starts_with("could not be started"), "{}", ran.reason());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        // The grandchild is its own session, as the tests of some runners are.
        let script = "setsid sleep 600 & echo $!; wait";
        let started = Instant::now();
        let ran = shell(script, Duration::from_millis(500));
        assert!(matches!(ran.ending, Ending::Hung(_)), "{:?}", ran.ending);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", ran.output.trim()));
        // Gone, or dead and not yet collected by the process that inherited it.
        assert!(stat.as_ref().map_or(true, |stat| stat.contains(") Z ")), "{stat:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_command_that_works_in_vain_is_ended() {
        let ran = shell("while :; do :; done", Duration::from_millis(500));
        assert!(matches!(ran.ending, Ending::Hung(_)), "{:?}", ran.ending);
        assert!(ran.reason().contains("made no progress"), "{}", ran.reason());
    }

    #[test]
    fn a_command_that_goes_on_is_not_ended() {
        let patience = Duration::from_secs(3);
        let started = Instant::now();
        let ran = shell("for i in 1 2 3 4 5 6 7 8; do sleep 0.5; echo $i; done", patience);
        assert!(ran.succeeded(), "{:?}", ran.ending);
        assert!(started.elapsed() > patience);
    }

    /// A stand-in for a busy machine: it prints nothing, and gets a little time now and then.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_silent_command_that_gets_little_time_is_not_ended() {
        let work = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
        let script = format!("for n in 1 2 3 4 5 6 7 8 9; do {work}; sleep 0.5; done; echo done");
        let ran = shell(&script, Duration::from_secs(4));
        assert!(ran.succeeded(), "{:?}", ran.ending);
    }

    #[test]
    fn a_command_that_leaves_something_behind_is_not_waited_for() {
        let started = Instant::now();
        let ran = shell("sleep 8 & echo started", Duration::from_secs(60));
        assert!(ran.succeeded());
        assert_eq!(ran.output, "started\n");
        assert!(started.elapsed() < Duration::from_secs(7), "{:?}", started.elapsed());
    }

    #[test]
    fn the_watcher_sees_time_and_the_last_line() {
        let mut seen = Vec::new();
        let task = Task::new("sh", ["-c", "echo working; sleep 0.3"], Path::new("/"), AMPLE);
        task.run(&mut |elapsed, tail| seen.push((elapsed, last_line(tail).to_owned())));
        assert!(seen.is_sorted_by_key(|(elapsed, _)| *elapsed));
        assert!(seen.iter().any(|(_, line)| line == "working"));
    }

    #[test]
    fn a_task_reads_as_it_would_be_typed() {
        let task = Task::new("/usr/bin/cargo", ["doc", "--no-deps"], Path::new("/"), AMPLE)
            .variable("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(task.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}
