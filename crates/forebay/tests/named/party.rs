//! Further processes: this program again, with a role. They take commands as lines and answer each with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use forebay::SharedBuffer;
use forebay::buffer::BufferManager;
use forebay::named::SharedOptions;

use crate::monitored::outsider;
use crate::stage::{Numbers, Stage};
use crate::{Step, ensure};

const ROLE: &str = "FOREBAY_NAMED_ROLE";
/// No answer takes longer, unless something hangs.
const DEADLINE: Duration = Duration::from_secs(30);

/// The elements of the buffers: a part for the test, one for its partner, one that is killed in, and a counter.
pub(crate) const PART: usize = 1024;
pub(crate) const LENGTH: usize = 3 * PART + 1;

/// A name of this process's own.
pub(crate) fn name(what: &str) -> String {
    format!("test-{}-{what}", std::process::id())
}

/// Buffers on the device of that name.
pub(crate) fn memory(device: &str) -> Step<BufferManager> {
    Ok(BufferManager::new(&Stage::open(device)?.device)?)
}

/// The elements of a part after so many rounds.
pub(crate) fn pattern(part: usize, round: u64) -> Vec<u64> {
    (0..PART as u64).map(|at| (round << 32) + (part as u64) * 10_000 + at).collect()
}

/// Whether a part has its pattern.
pub(crate) fn check_part(buffer: &SharedBuffer<u64>, part: usize, round: u64) -> Step {
    let mut found = vec![0; PART];
    buffer.read(part * PART, &mut found)?;
    let right = pattern(part, round);
    let wrong = found.iter().zip(&right).position(|(found, right)| found != right);
    ensure!(
        wrong.is_none(),
        "part {part}, round {round}: element {wrong:?} is {:?}",
        wrong.map(|at| found[at])
    );
    Ok(())
}

/// Another process. It is killed when it is dropped.
pub(crate) struct Party {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Party {
    /// Starts one with a role, on a device, for a name.
    pub(crate) fn start(role: &str, device: &str, name: &str) -> Step<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, format!("{role} {device} {name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (send, lines) = channel();
        let out = child.stdout.take().ok_or("no pipe")?;
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Ok(Self { child, lines })
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn tell(&mut self, command: &str) -> Step {
        let input = self.child.stdin.as_mut().ok_or("no pipe")?;
        Ok(writeln!(input, "{command}").and_then(|()| input.flush())?)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Step<String> {
        let answer = self.lines.recv_timeout(DEADLINE);
        Ok(answer.map_err(|error| format!("process {}: {error}", self.child.id()))?)
    }

    /// Sends a command, and expects an answer.
    pub(crate) fn ask(&mut self, command: &str, expected: &str) -> Step {
        self.tell(command)?;
        let answer = self.answer()?;
        ensure!(answer == expected, "{command} was answered with {answer:?}, not {expected:?}");
        Ok(())
    }

    /// Stops it, all threads of it.
    pub(crate) fn stop(&self) {
        let pid = self.child.id().cast_signed();
        // SAFETY: the child is this test's own and has not ended; the wait ends when it has stopped.
        unsafe {
            libc::kill(pid, libc::SIGSTOP);
            libc::waitpid(pid, core::ptr::null_mut(), libc::WUNTRACED);
        }
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        // SAFETY: the child is this test's own and has not been waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGCONT) };
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the role that the environment names, if it does.
pub(crate) fn run_if_named() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let mut words = role.split(' ').map(str::to_owned);
    let mut next = || words.next().unwrap_or_default();
    let (role, device, name) = (next(), next(), next());
    let done = match role.as_str() {
        "partner" => partner(&device, &name),
        "victim" => victim(&device, &name),
        "stranger" => stranger(&device, &name),
        "outsider" => outsider(&name),
        _ => Err(format!("no role {role}").into()),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    })
}

pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout();
    // A test that is gone does not listen.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Does what it is told with the buffer.
fn partner(device: &str, name: &str) -> Step {
    let memory = memory(device)?;
    let mut buffer: Option<SharedBuffer<u64>> = None;
    let mut round = 0_u64;
    for line in std::io::stdin().lines() {
        let line = line?;
        let done = obey(&line, (&memory, name), &mut buffer, &mut round);
        say(done.as_ref().map_or_else(|error| error.message().unwrap_or("failed"), |()| "ok"));
    }
    Ok(())
}

fn obey(
    line: &str,
    (memory, name): (&BufferManager, &str),
    buffer: &mut Option<SharedBuffer<u64>>,
    round: &mut u64,
) -> Step {
    let (command, text) = line.split_once(' ').unwrap_or((line, ""));
    match command {
        "create" => *buffer = Some(memory.shared(name, LENGTH)?),
        "open" => *buffer = Some(memory.open_shared(name)?),
        "either" => *buffer = Some(memory.shared_or_open(name, LENGTH)?),
        "drop" => *buffer = None,
        command => {
            let buffer = buffer.as_ref().ok_or("no buffer yet")?;
            match command {
                // The next pattern, where the last one still is.
                "turn" => {
                    if *round > 0 {
                        check_part(buffer, 1, *round)?;
                    }
                    *round += 1;
                    buffer.write(PART, &pattern(1, *round))?;
                }
                "seen" => check_part(buffer, 0, text.parse()?)?,
                "add" => (0..text.parse::<u64>()?).try_for_each(|_| add(buffer))?,
                "lock" => core::mem::forget(buffer.lock()?),
                other => return Err(format!("no command {other}").into()),
            }
        }
    }
    Ok(())
}

/// Adds one to the counter under the lock, in steps that lose counts without it.
pub(crate) fn add(buffer: &SharedBuffer<u64>) -> Step {
    let _lock = buffer.lock()?;
    let mut counter = [0];
    buffer.read(3 * PART, &mut counter)?;
    thread::yield_now();
    buffer.write(3 * PART, &[counter[0] + 1])?;
    Ok(())
}

/// Creates, opens, answers, writes and locks until it is killed.
fn victim(device: &str, name: &str) -> Step {
    let memory = memory(device)?;
    let mut numbers = Numbers(u64::from(std::process::id()));
    let own = format!("{name}-own");
    let mut kept: Option<SharedBuffer<u64>> = None;
    say("started");
    loop {
        match numbers.below(6) {
            0 => drop(memory.shared::<u64>(&own, 100_000)?),
            1 => kept = Some(memory.open_shared(name)?),
            2 => drop(memory.shared_or_open::<u64>(&own, 5)?),
            3 => kept = None,
            choice => {
                let Some(buffer) = &kept else { continue };
                let lock = if choice == 4 { Some(buffer.lock()?) } else { None };
                for _ in 0..numbers.below(20) {
                    buffer.write(2 * PART, &vec![numbers.next(); PART])?;
                }
                drop(lock);
            }
        }
    }
}

/// Listens, as another user, under a name of the test's user.
fn take_name(path: &str) -> Step {
    // SAFETY: all zero is an address of no kind.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX.try_into()?;
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(path.bytes()) {
        *to = from.cast_signed();
    }
    let size = u32::try_from(size_of::<libc::sa_family_t>() + 1 + path.len())?;
    // SAFETY: the address is of the size that is said; the socket stays open as long as this process.
    let taken = unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        libc::bind(socket, (&raw const address).cast(), size) == 0 && libc::listen(socket, 8) == 0
    };
    ensure!(taken, "cannot take {path}");
    Ok(())
}

/// Opens buffers as another user, and takes a name of the test's.
fn stranger(device: &str, name: &str) -> Step {
    // SAFETY: no other thread runs here yet.
    ensure!(unsafe { libc::setuid(54321) } == 0, "cannot become another user");
    take_name(&format!("forebay/0/{name}-taken"))?;
    let memory = memory(device)?;
    let any = SharedOptions::new().any_user();
    let refused = memory.open_shared::<u64>(name).err().map(|error| error.to_string());
    say(&refused.unwrap_or_else(|| "opened".to_owned()));
    let opened = any.open::<u64>(&memory, &format!("{name}-any"))?;
    check_part(&opened, 0, 1)?;
    drop(opened.lock()?);
    say("ok");
    let _ = std::io::stdin().lines().next();
    Ok(())
}
