//! Two processes that use a buffer, and a third that is killed: while it creates, opens, answers, writes, or holds the
//! lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::party::{LENGTH, Party, check_part, memory, name, pattern};
use crate::stage::Numbers;
use crate::{Step, ensure};

/// Nothing takes longer, unless it hangs.
const DEADLINE: Duration = Duration::from_secs(20);
/// After so many rounds the partner is killed too, and another takes its place.
const PARTNER: u64 = 16;

fn count_rounds(device: &str) -> Step<u64> {
    match std::env::var("FOREBAY_KILL_ROUNDS") {
        Ok(count) => Ok(count.parse()?),
        Err(_) => Ok(if device == "host" { 200 } else { 20 }),
    }
}

/// How many descriptors this process has.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count())
}

/// The files of POSIX shared memory.
fn shared_files() -> Vec<std::ffi::OsString> {
    let all = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<_> = all.map(|file| file.file_name()).collect();
    names.sort();
    names
}

#[allow(clippy::print_stdout, reason = "the figures that a reader looks for")]
pub(crate) fn rounds(device: &str) -> Step {
    let (rounds, begun) = (count_rounds(device)?, Instant::now());
    let files = shared_files();
    let memory = memory(device)?;
    // What a device opens once, it has open from here on.
    drop(memory.shared::<u64>(&name("before"), 1)?);
    let before = settle(usize::MAX);
    let name = name("kill");
    let buffer = memory.shared::<u64>(&name, LENGTH)?;
    let mut numbers = Numbers(7);
    let mut partner = None;
    for round in 1..=rounds {
        let failed =
            |what: &str, error: &dyn std::fmt::Debug| format!("round {round}, {what}: {error:?}");
        if round % PARTNER == 1 {
            // The old one is killed wherever it is.
            drop(partner.take());
            let mut next = Party::start("partner", device, &name)?;
            next.ask("open", "ok")?;
            partner = Some(next);
        }
        let partner = partner.as_mut().ok_or("no partner")?;
        buffer.write(0, &pattern(0, round))?;
        let mut victim = Party::start("victim", device, &name)?;
        // One in four is killed before it has begun.
        if round % 4 == 0 {
            thread::sleep(Duration::from_micros(numbers.next() % 8000));
        } else {
            let answer = victim.answer()?;
            ensure!(answer == "started", "{}", failed("the victim", &answer));
            thread::sleep(Duration::from_micros(numbers.next() % 2000));
        }
        // Others open while it may answer, and while it dies.
        let stop = AtomicBool::new(false);
        let opened: Step = thread::scope(|scope| {
            let opener = scope.spawn(|| -> Step {
                while !stop.load(Ordering::Relaxed) {
                    check_part(&memory.open_shared::<u64>(&name)?, 0, round)?;
                }
                Ok(())
            });
            thread::sleep(Duration::from_micros(numbers.next() % 1000));
            drop(victim);
            stop.store(true, Ordering::Relaxed);
            opener.join().unwrap_or_else(|_| Err("a panic".into()))
        });
        opened.map_err(|error| failed("an opener", &error))?;
        let after = Instant::now();
        let lock = buffer.try_lock_for(DEADLINE)?;
        ensure!(lock.is_some(), "{}", failed("the lock", &"is held by nobody alive"));
        drop(lock);
        partner.ask(&format!("seen {round}"), "ok").map_err(|error| failed("partner", &error))?;
        partner.ask("turn", "ok").map_err(|error| failed("partner", &error))?;
        check_part(&buffer, 0, round)?;
        drop(memory.open_shared::<u64>(&name).map_err(|error| failed("a new opener", &error))?);
        let own = memory.shared::<u64>(&format!("{name}-own"), 1);
        drop(own.map_err(|error| failed("the victim's name", &error))?);
        ensure!(after.elapsed() < DEADLINE, "{}", failed("took", &after.elapsed()));
    }
    drop(partner);
    drop(buffer);
    drop(memory.shared::<u64>(&name, 1)?);
    let now = settle(before);
    ensure!(now <= before, "{now} descriptors are open, {before} were");
    ensure!(shared_files() == files, "{:?} in /dev/shm, not {files:?}", shared_files());
    println!("{device}: {rounds} processes killed in {:?}", begun.elapsed());
    Ok(())
}

/// The descriptors of this process, once the threads that end have ended: at most `wanted`, or those after a while.
fn settle(wanted: usize) -> usize {
    let begun = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(20));
        let now = descriptors();
        if (now <= wanted && wanted != usize::MAX) || begun.elapsed() > Duration::from_millis(500) {
            return now;
        }
    }
}
