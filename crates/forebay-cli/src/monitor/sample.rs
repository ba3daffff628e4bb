//! A sample of all processes and GPUs at one moment, and the changes since the previous one.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::monitor::{
    Connection, Endpoint, MonitorError, ProcessPool, ProcessSnapshot, endpoints,
};
use forebay_core::{Bytes, counted};
use serde::Serialize;

use super::nvml::{Gpu, Nvml};
use crate::layout::{plain, shortened};

/// How long a process may take to answer. A process at work takes a millisecond; one that is stopped takes all of it.
const PATIENCE: Duration = Duration::from_millis(300);

/// The most processes that are read, all at once, so that a machine with very many is not held up by being watched.
const MAX_PROCESSES: usize = 64;

/// The most names that are listed though their line is full: another user can take very many.
const MAX_BUSY: usize = 8;

/// The pause between two rounds of attempts to connect.
const PAUSE: Duration = Duration::from_millis(1);

/// How many moments of a pool are remembered for its picture.
const MAX_MOMENTS: usize = 240;

/// Waste is that of the last so many milliseconds, as far as moments are remembered: a program that frees everything
/// between two steps wastes all or nothing at any one moment.
const WASTE_WINDOW_MS: u64 = 60_000;

/// How often an interval is looked into, and the pause between two looks: a process makes a new snapshot each 50 ms.
const MAX_LOOKS: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The most letters of a process's title.
const LONGEST_TITLE: usize = 64;

/// From this part of a limit on, there is a warning.
const WARN_AT: f64 = 0.9;

/// All processes and GPUs at one moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    schema: &'static str,
    taken_unix_ms: u64,
    pub(super) processes: Vec<Process>,
    pub(super) unreadable: Vec<Unreadable>,
    pub(super) devices: Vec<Gpu>,
    /// Why a device is not listed, or none.
    pub(super) devices_missing: Option<String>,
    pub(super) warnings: Vec<String>,
    /// Whether there were processes and a filter left none.
    #[serde(skip)]
    pub(super) is_filtered: bool,
}

/// A process that answered.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Process {
    #[serde(flatten)]
    pub(super) snapshot: ProcessSnapshot,
    /// Which copy of forebay in the process.
    pub(super) copy: u32,
    /// What it is called: by its own name, or else its script, or else its program. Without control characters.
    pub(super) title: String,
    /// For each pool, what has changed.
    pub(super) rates: Vec<Rates>,
    #[serde(skip)]
    pub(super) is_shown: bool,
}

/// A process that did not.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unreadable {
    pub(super) pid: u32,
    pub(super) copy: u32,
    pub(super) reason: String,
    #[serde(skip)]
    pub(super) is_gone: bool,
}

/// What a pool did in a second, `None` before there are two moments to compare; and what it wasted of late.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Rates {
    #[serde(rename = "allocations_per_second")]
    pub(super) allocations: Option<f64>,
    #[serde(rename = "misses_per_second")]
    pub(super) misses: Option<f64>,
    #[serde(rename = "driver_calls_per_second")]
    pub(super) driver_calls: Option<f64>,
    /// The part of the bytes held that no live block asked for, over the window.
    pub(super) waste: f64,
    /// From the first moment of the window to the last; 0 where there is only one.
    pub(super) waste_window_ms: u64,
}

/// A pool at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    taken_unix_ms: u64,
    requested: u64,
    pub(super) held: u64,
}

/// A pool of a process.
pub(super) type PoolKey = (Endpoint, u64);

/// Takes samples and remembers what it needs of earlier ones.
pub(super) struct Watch {
    pid: Option<u32>,
    nvml: Result<Nvml, String>,
    before: BTreeMap<PoolKey, (u64, ProcessPool)>,
    /// The oldest first.
    moments: BTreeMap<PoolKey, VecDeque<Moment>>,
}

impl Watch {
    /// Of one process, or of all that are there when a sample is taken.
    pub(super) fn new(pid: Option<u32>) -> Self {
        let (before, moments) = (BTreeMap::new(), BTreeMap::new());
        Self { pid, nvml: Nvml::load(), before, moments }
    }

    /// Reads all processes once.
    pub(super) fn sample(&mut self) -> Sample {
        let mut targets = endpoints();
        if let Some(pid) = self.pid {
            targets.retain(|endpoint| endpoint.pid == pid);
            if targets.is_empty() {
                targets.push(Endpoint::of(pid));
            }
        }
        let (read, left_out) = read_all(&targets, self.pid.is_none());
        let (devices, devices_missing) = match &self.nvml {
            Ok(nvml) => nvml.gpus(),
            Err(reason) => (Vec::new(), Some(reason.clone())),
        };
        let mut sample = self.sample_of(read, devices, devices_missing);
        if left_out > 0 {
            sample.warnings.push(format!("{} not read", counted(left_out as u64, "more process")));
        }
        sample
    }

    /// Looks again and again for an interval: rates are of all of it, and so is waste.
    pub(super) fn sample_over(&mut self, interval: Duration) -> Sample {
        let looks =
            u32::try_from(interval.as_millis() / SHORTEST_PAUSE.as_millis()).unwrap_or(u32::MAX);
        let looks = looks.clamp(1, MAX_LOOKS);
        let before = self.before.clone();
        for _ in 1..looks {
            std::thread::sleep(interval / looks);
            self.sample();
        }
        std::thread::sleep(interval / looks);
        self.before = before;
        self.sample()
    }

    /// A sample of what was read.
    pub(super) fn sample_of(
        &mut self,
        read: Vec<(Endpoint, Read)>,
        devices: Vec<Gpu>,
        devices_missing: Option<String>,
    ) -> Sample {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut processes, mut unreadable) = (Vec::new(), Vec::new());
        let mut now = BTreeMap::new();
        for (endpoint, read) in read {
            match read {
                Ok(mut snapshot) => {
                    // Whatever it says of itself.
                    snapshot.pid = u64::from(endpoint.pid);
                    snapshot.pools.truncate(ProcessSnapshot::MAX_POOLS);
                    let taken = snapshot.taken_unix_ms;
                    let rates = snapshot.pools.iter().map(|pool| {
                        let key = (endpoint, pool.pool);
                        let mut rates = Rates::between(self.before.get(&key), (taken, pool));
                        let moments = self.moments.entry(key).or_default();
                        moments.push_back(Moment {
                            taken_unix_ms: taken,
                            requested: pool.requested_bytes,
                            held: pool.held_bytes,
                        });
                        if moments.len() > MAX_MOMENTS {
                            moments.pop_front();
                        }
                        (rates.waste, rates.waste_window_ms) = waste(moments);
                        now.insert(key, (taken, pool.clone()));
                        rates
                    });
                    let rates = rates.collect();
                    let (copy, title) = (endpoint.copy, title(&snapshot));
                    processes.push(Process { snapshot, copy, title, rates, is_shown: true });
                }
                Err((reason, is_gone)) => {
                    let Endpoint { pid, copy, .. } = endpoint;
                    unreadable.push(Unreadable { pid, copy, reason: plain(&reason), is_gone });
                }
            }
        }
        self.before = now;
        self.moments.retain(|key, _| self.before.contains_key(key));
        let warnings = warnings(&processes, &devices);
        Sample {
            schema: "forebay.monitor.v1",
            taken_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            processes,
            unreadable,
            devices,
            devices_missing,
            warnings,
            is_filtered: false,
        }
    }

    /// A pool at each moment so far.
    pub(super) fn moments(&self, key: PoolKey) -> impl Iterator<Item = Moment> {
        self.moments.get(&key).into_iter().flatten().copied()
    }
}

/// A snapshot, or why there is none and whether the process is gone.
pub(super) type Read = Result<ProcessSnapshot, (String, bool)>;

/// Reads them, and counts those that it does not come to.
///
/// Anybody can take a name. With `own_only` those that another user has taken, or that lead nowhere, are passed over. A name
/// whose line is full may be such a one: it takes no place of a process that answers, and costs no wait of its own.
pub(super) fn read_all(targets: &[Endpoint], own_only: bool) -> (Vec<(Endpoint, Read)>, usize) {
    let (connected, mut all, left_out) = connect_all(targets, own_only);
    // All at once: those that are stopped do not add up.
    std::thread::scope(|scope| {
        let begin = |(target, connection): (Endpoint, Connection)| {
            let thread = std::thread::Builder::new();
            (target, thread.spawn_scoped(scope, move || connection.read(PATIENCE)))
        };
        let threads: Vec<_> = connected.into_iter().map(begin).collect();
        for (target, thread) in threads {
            let text = match thread.map(ScopedJoinHandle::join) {
                Ok(Ok(text)) => parse(target, text),
                Ok(Err(_)) => Err(("reading it failed".to_owned(), false)),
                Err(error) => Err((format!("no thread to read it: {error}"), false)),
            };
            all.push((target, text));
        }
    });
    all.sort_by_key(|(target, _)| *target);
    (all, left_out)
}

/// Those of this user that took a connection, those that cannot be read, and how many there are beyond.
type Connected = (Vec<(Endpoint, Connection)>, Vec<(Endpoint, Read)>, usize);

fn connect_all(targets: &[Endpoint], own_only: bool) -> Connected {
    let (mut connected, mut unread) = (Vec::new(), Vec::new());
    let (begun, mut left_out) = (Instant::now(), 0);
    let mut busy = targets.to_vec();
    // Attempts do not wait, and each round has one for every name: many that are taken keep no other from its own.
    loop {
        let mut again = Vec::new();
        for target in busy {
            if connected.len() >= MAX_PROCESSES {
                left_out += 1;
                continue;
            }
            match target.connect() {
                Ok(connection) => connected.push((target, connection)),
                Err(MonitorError::Busy { .. }) => again.push(target),
                Err(MonitorError::OtherUser { .. } | MonitorError::NotFound { .. }) if own_only => {
                }
                Err(_) if unread.len() >= MAX_PROCESSES => left_out += 1,
                Err(error) => unread.push((target, parse(target, Err(error)))),
            }
        }
        busy = again;
        if busy.is_empty() || begun.elapsed() >= PATIENCE {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    // Of those that took none, processes that are this user's rather than those that only say so.
    busy.sort_by_key(|target| !is_own_process(target.pid));
    left_out += busy.len().saturating_sub(MAX_BUSY);
    unread.extend(busy.into_iter().take(MAX_BUSY).map(|target| {
        let error = MonitorError::Busy { pid: target.pid };
        (target, parse(target, Err(error)))
    }));
    (connected, unread, left_out)
}

/// Whether there is a process of this number here and user. In another namespace it has another number.
fn is_own_process(pid: u32) -> bool {
    let found = std::fs::metadata(format!("/proc/{pid}"));
    found.is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw())
}

fn parse(target: Endpoint, text: Result<String, MonitorError>) -> Read {
    let text =
        text.map_err(|error| (error.to_string(), matches!(error, MonitorError::NotFound { .. })))?;
    let snapshot: Result<ProcessSnapshot, _> = serde_json::from_str(&text);
    let snapshot = snapshot.map_err(|error| (format!("process {}: {error}", target.pid), false))?;
    if snapshot.schema == "forebay.process.v1" {
        return Ok(snapshot);
    }
    let of = "is not one that this forebay knows (forebay.process.v1)";
    Err((format!("process {}: its schema \"{}\" {of}", target.pid, snapshot.schema), false))
}

impl Rates {
    fn between(before: Option<&(u64, ProcessPool)>, (taken, pool): (u64, &ProcessPool)) -> Self {
        let Some((earlier, before)) = before else { return Self::default() };
        // A snapshot that was taken twice, or a clock that went back, tells nothing.
        let milliseconds = taken.checked_sub(*earlier).filter(|&passed| passed > 0);
        let rate = |now: u64, then: u64| {
            Some(now.checked_sub(then)? as f64 * 1000.0 / milliseconds? as f64)
        };
        Self {
            allocations: rate(pool.allocations, before.allocations),
            misses: rate(pool.misses, before.misses),
            driver_calls: rate(pool.driver_calls, before.driver_calls),
            ..Self::default()
        }
    }
}

/// A part of a whole, from 0 to 1.
pub(super) fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// The part of the bytes held that no live block asked for, over the moments of the window that ends with the last; and how
/// long that is.
fn waste(moments: &VecDeque<Moment>) -> (f64, u64) {
    let Some(last) = moments.back() else { return (0.0, 0) };
    let (mut unused, mut held, mut window) = (0_u128, 0_u128, 0);
    // Whatever clock a process has, another moment's distance is one of the past.
    for moment in moments {
        let age = last.taken_unix_ms.checked_sub(moment.taken_unix_ms);
        let Some(age) = age.filter(|&age| age <= WASTE_WINDOW_MS) else { continue };
        unused += u128::from(moment.held.saturating_sub(moment.requested));
        held += u128::from(moment.held);
        window = age.max(window);
    }
    (if held == 0 { 0.0 } else { unused as f64 / held as f64 }, window)
}

/// What a process is called. Another process may say anything of itself.
fn title(of: &ProcessSnapshot) -> String {
    let title = [&of.name, &of.script].into_iter().find(|name| !name.is_empty());
    shortened(&plain(title.unwrap_or(&of.process)), LONGEST_TITLE)
}

/// Whether a pool, or the group it shares a limit with, is near the limit.
pub(super) fn is_tight(pool: &ProcessPool) -> bool {
    part(pool.group_held_bytes, pool.limit_bytes) > WARN_AT
}

impl Gpu {
    /// Whether the GPU is nearly full.
    pub(super) fn is_tight(&self) -> bool {
        part(self.used_bytes, self.total_bytes) > WARN_AT
    }
}

fn warnings(processes: &[Process], devices: &[Gpu]) -> Vec<String> {
    let percent = |of, whole| part(of, whole) * 100.0;
    let full = devices.iter().filter(|gpu| gpu.is_tight()).map(|gpu| {
        let used = percent(gpu.used_bytes, gpu.total_bytes);
        format!("GPU {}: {used:.0} % of {} is in use", gpu.index, Bytes::new(gpu.total_bytes))
    });
    let tight = processes.iter().flat_map(|process| {
        let of = &process.snapshot;
        of.pools.iter().filter(|pool| is_tight(pool)).map(|pool| {
            let held = percent(pool.group_held_bytes, pool.limit_bytes);
            let limit = Bytes::new(pool.limit_bytes);
            let (pid, pool) = (of.pid, pool.pool);
            format!("process {pid}, pool {pool}: {held:.0} % of its limit of {limit} is held")
        })
    });
    full.chain(tight).collect()
}

impl Sample {
    /// One line of JSON.
    pub(super) fn json(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub(super) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.json()?)
    }
}
