//! The soak: a hundred million random operations on the pool, with an oracle looking on.
//!
//! ```text
//!   main      the options, the rounds, the figures at the end
//!   round     one pool, some threads, a number of operations, everything freed and nothing left
//!   worker    one thread: its stream, its blocks, what it does next
//!   pace      whether the threads run together, or one at a time in an order that a seed decides
//!   stressed  rounds under the checker: streams that die, threads that visit, faults, a neighbor
//!   handles   handles that change streams with work pending, under the checker
//!   caches    pools short of memory beside caches, upkeep and the last drop, under the checker
//!   record    what ran, as JSON
//!   claims    who has which bytes: the oracle, shared with the tests
//!   stress    an episode under the checker, shared with the tests
//! ```
//!
//! `cargo xtask soak` builds it and runs it. In plain rounds memory is phantom and no checker looks on,
//! for speed. Such a round is decided by its seed, its number of threads and its pace, but for what the
//! pool does by the clock; so what goes wrong in turns nearly always goes wrong again. What goes wrong
//! together does so by chance, and the seed brings it near. One operation in sixty-four is in the stress
//! rounds: they take some fifty times as long.

// What it prints is what it is for; a pipe that was closed ends it, as it should.
#![allow(clippy::print_stdout)]

mod caches;
#[path = "../../../forebay/tests/oracle/claims.rs"]
mod claims;
mod handles;
mod pace;
mod record;
mod round;
#[path = "../../../forebay/tests/oracle/stress/mod.rs"]
mod stress;
mod stressed;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use crate::pace::Pace;
use crate::record::Sums;
use crate::round::Round;
use crate::stressed::Stressed;

/// How often a line says how far it is.
const TICK: Duration = Duration::from_secs(1);

/// The rounds of a soak that is not told otherwise: threads, and how they run.
const ROUNDS: &[(usize, Pace)] = &[
    (1, Pace::Turns),
    (2, Pace::Together),
    (4, Pace::Turns),
    (8, Pace::Together),
    (1, Pace::Turns),
    (3, Pace::Together),
    (8, Pace::Turns),
    (4, Pace::Together),
];

/// The threads of the stress rounds of a soak that is not told otherwise.
const STRESS_THREADS: &[usize] = &[1, 3, 2, 6];

/// One operation in so many is in a stress round.
const STRESS_SHARE: u64 = 64;

/// For so many operations of the stress rounds there is one with handles and one with caches beside them.
const BESIDE_SHARE: u64 = 16;

/// Which rounds there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Phantom memory and no checker: fast.
    Plain,
    /// Under the checker, with streams that die, threads that come and go, faults and a neighbor.
    Stress,
}

/// Run millions of random operations on the pool, with an oracle looking on.
#[derive(Clone, Debug, Parser)]
#[command(bin_name = "cargo xtask soak")]
struct Wanted {
    /// How many operations, over all rounds.
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// The seed of the first round; each round after it has the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many threads; unless said, from 1 to 8 in different rounds.
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    threads: Option<usize>,
    /// How the threads run; unless said, either in different rounds. With --threads it is one round
    /// alone, as a failure names it.
    #[arg(long)]
    pace: Option<Pace>,
    /// Leave the oracle out: then the figures say what it costs.
    #[arg(long)]
    no_oracle: bool,
    /// The step at which a block is claimed that was not allocated, to see that it is found.
    #[arg(long)]
    plant: Option<u64>,
    /// Rounds of one kind alone; unless said, one operation in 64 is in a stress round.
    #[arg(long)]
    kind: Option<Kind>,
    /// Where to write what ran, as JSON.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// cargo's own, where it runs this as a benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Wanted {
    /// The operations of all stress rounds.
    fn stress_operations(&self) -> u64 {
        match self.kind {
            Some(Kind::Stress) => self.operations,
            Some(Kind::Plain) => 0,
            // A pace, a plant and no oracle are of plain rounds.
            None if self.pace.is_some() || self.plant.is_some() || self.no_oracle => 0,
            None => self.operations / STRESS_SHARE,
        }
    }

    /// The stress rounds: one where the number of threads is said.
    fn stress_rounds(&self) -> Vec<Stressed> {
        let (seed, operations) = (self.seed, self.stress_operations());
        if operations == 0 {
            return Vec::new();
        }
        if let (Some(threads), Some(Kind::Stress)) = (self.threads, self.kind) {
            return vec![Stressed { seed, threads, operations }];
        }
        let each = operations.div_ceil(STRESS_THREADS.len() as u64);
        let round = |(number, &threads): (u64, &usize)| Stressed {
            // Far apart: each has the seeds of its episodes from there on.
            seed: seed.wrapping_add(number << 32),
            threads: self.threads.unwrap_or(threads),
            operations: each.min(operations.saturating_sub(number * each)),
        };
        (0..).zip(STRESS_THREADS).map(round).collect()
    }

    /// The plain rounds. One, where everything about it is said: so that a failure can be had again.
    fn rounds(&self) -> Vec<Round> {
        let operations = self.operations - self.stress_operations();
        if operations == 0 {
            return Vec::new();
        }
        let round = |seed, threads, pace, operations| Round {
            seed,
            threads,
            pace,
            operations,
            oracle: !self.no_oracle,
            plant: self.plant,
        };
        if let (Some(threads), Some(pace)) = (self.threads, self.pace) {
            return vec![round(self.seed, threads, pace, operations)];
        }
        let count = ROUNDS.len() as u64;
        let each = operations.div_ceil(count).max(1);
        let mut left = operations;
        let mut rounds = Vec::new();
        for (number, &(threads, pace)) in (0..).zip(ROUNDS) {
            let (threads, pace) = (self.threads.unwrap_or(threads), self.pace.unwrap_or(pace));
            let operations = each.min(left);
            left -= operations;
            if operations > 0 {
                rounds.push(round(self.seed.wrapping_add(number), threads, pace, operations));
            }
        }
        rounds
    }
}

fn main() -> ExitCode {
    let wanted = Wanted::parse();
    let ended = soak(&wanted).and_then(|(sums, elapsed)| {
        if let Some(path) = &wanted.record {
            record::write(path, &wanted, &sums, elapsed)?;
        }
        Ok((sums, elapsed))
    });
    match ended {
        Ok((sums, elapsed)) => {
            println!("{}", sums.line(elapsed));
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

/// All rounds, with a line now and then; the sums, or the first violation.
fn soak(wanted: &Wanted) -> Result<(Sums, Duration), String> {
    let done = AtomicU64::new(0);
    let started = Instant::now();
    let (over, ticks) = channel::<()>();
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ticks.recv_timeout(TICK) {
                println!("{}", progress(done.load(Ordering::Relaxed), wanted.operations, started));
            }
        });
        // Dropped at the end, which ends the thread above.
        let _over = over;
        let mut sums = Sums::default();
        for round in wanted.rounds() {
            let begun = Instant::now();
            let figures = round.run(done).map_err(|violation| violation.to_string())?;
            println!("{round}: {}", figures.line(begun.elapsed()));
            sums.plain.add(&figures);
        }
        for round in wanted.stress_rounds() {
            let begun = Instant::now();
            let figures = round.run(done)?;
            println!("{round}: {}", stressed::line(&figures, begun.elapsed()));
            sums.stress.add(&figures);
        }
        let beside = wanted.stress_operations().div_ceil(BESIDE_SHARE);
        if beside > 0 {
            println!("{}", handles::run(wanted.seed, beside)?);
            println!("{}", caches::run(wanted.seed, beside)?);
        }
        Ok((sums, started.elapsed()))
    })
}

/// How far it is, as a bar and in figures.
fn progress(done: u64, of: u64, started: Instant) -> String {
    let tenths = (done.saturating_mul(20) / of.max(1)).min(20);
    let bar: String = (0..20).map(|place| if place < tenths { '█' } else { '░' }).collect();
    let each = started.elapsed().as_nanos() / u128::from(done.max(1));
    format!("{bar} {:>3} %  {done} of {of} operations, {each} ns each", done * 100 / of.max(1))
}
