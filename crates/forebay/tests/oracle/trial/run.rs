//! A program, played: each step is made, and what came of it is held against the oracle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Block, Error, Pool, Statistics};
use forebay_core::{Address, Bytes};
use forebay_hal::{Device, EventKind, Priority, StreamHandle};

use super::front::{Fate, Front, Script};
use super::verdict::{Complaint, Failure, Outcome, Verdict};
use super::{
    FreedOn, Given, Hands, Operation, Oracle, Program, Room, Setting, Stage, Wrong, free_by,
};

/// How many freed blocks are remembered, to be freed again.
const REMEMBERED: usize = 64;

/// After so many streams were forgotten the host waits for all work and trims: a pool tells a
/// limited number of streams apart, and may keep a number until the stream's work is done.
const RENEWALS: u32 = 32;

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Held {
    block: Block,
    requested: Bytes,
    tag: u8,
    stream: usize,
}

/// A program being played.
pub(crate) struct Run {
    setting: Setting,
    stage: Stage,
    front: Arc<Front>,
    pool: Pool,
    /// Another pool on the same device, with one live block: its own pool's business.
    stranger: (Pool, Block),
    hands: Hands,
    streams: Vec<StreamHandle>,
    oracle: Oracle,
    live: Vec<Held>,
    freed: VecDeque<Held>,
    wrong: Arc<AtomicU64>,
    renewals: u32,
    /// Whether calls of the device may fail.
    failing: bool,
    /// Whether what is told as held must be all that the device gave out.
    exact: bool,
    outcome: Outcome,
}

impl Run {
    /// A pool of `setting` on `stage`, behind a front that follows `script`. `None` where not even
    /// a pool could be made, which only a failing call excuses.
    pub(crate) fn new(setting: Setting, stage: Stage, script: Script) -> Option<Self> {
        let behind = stage.device();
        let stranger = Pool::new(&behind).expect("nothing stands in the way of another pool");
        let block = stranger.allocate(Bytes::new(700), StreamHandle::DEFAULT);
        let stranger = (stranger, block.expect("there is room for a few bytes"));
        let mut streams = vec![StreamHandle::DEFAULT];
        for _ in 0..setting.streams {
            streams
                .push(behind.create_stream(Priority::Normal).expect("there is room for streams"));
        }
        let front = Front::new(behind, stage.lose(), script);
        let shared: Arc<dyn Device> = front.clone();
        let failing = matches!(script.fate, Fate::Fails(_));
        let pool = match setting.pool(&shared) {
            Ok(pool) => pool,
            Err(error) => {
                assert!(failing, "no pool: {error}");
                return None;
            }
        };
        let outcome = Outcome {
            places: Vec::new(),
            statistics: Statistics::default(),
            out_of_memory: 0,
            failed: 0,
            refused: 0,
        };
        Some(Self {
            setting,
            stage,
            front,
            pool,
            stranger,
            hands: Hands::new(2),
            streams,
            oracle: Oracle::default(),
            live: Vec::new(),
            freed: VecDeque::new(),
            wrong: Arc::new(AtomicU64::new(0)),
            renewals: 0,
            failing,
            exact: false,
            outcome,
        })
    }

    /// The front the pool stands on.
    pub(crate) fn front(&self) -> Arc<Front> {
        Arc::clone(&self.front)
    }

    /// The same, with what is told as held compared to the byte with what the device gave out, and
    /// that with the limit.
    pub(crate) fn comparing_held(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Plays a program to its end, frees what is live, and looks at what is left.
    pub(crate) fn play(mut self, program: &Program) -> Result<Outcome, Failure> {
        self.steps(program)?;
        self.front.mark();
        if self.failing {
            self.front.relent();
        }
        self.end().map_err(|(complaint, text)| Failure { complaint, step: None, text })
    }

    /// Plays a program and drops the pool with all that is live then.
    pub(crate) fn play_and_abandon(mut self, program: &Program) -> Result<Outcome, Failure> {
        self.steps(program)?;
        self.front.mark();
        self.live.clear();
        let ended = self.drop_all();
        ended.map_err(|(complaint, text)| Failure { complaint, step: None, text })
    }

    fn steps(&mut self, program: &Program) -> Result<(), Failure> {
        for (step, &operation) in program.operations.iter().enumerate() {
            let tag = u8::try_from(step % 251).unwrap_or_default();
            let made = self.step(operation, tag).and_then(|()| {
                // Adding up takes longer than most steps.
                if step % 8 == 0 || self.failing { self.add_up() } else { Ok(()) }
            });
            made.map_err(|(complaint, text)| {
                let text = format!("{operation:?}: {text}");
                Failure { complaint, step: Some(step), text }
            })?;
        }
        Ok(())
    }

    fn step(&mut self, operation: Operation, tag: u8) -> Verdict {
        match operation {
            Operation::Allocate { size, stream, hand } => self.allocate(size, stream, hand, tag),
            Operation::Free { which, on, hand, way } => {
                if self.live.is_empty() {
                    return Ok(());
                }
                let held = self.live.swap_remove(usize::from(which) % self.live.len());
                self.free(held, on, hand, way)
            }
            Operation::WrongFree { wrong, which, hand, way } => {
                self.free_wrongly(wrong, which, hand, way)
            }
            Operation::Trim { keep, hand } => self.trim(Bytes::new(keep), hand),
            Operation::Renew { stream } => self.renew(stream),
            Operation::Synchronise { stream } => {
                let stream = self.streams[usize::from(stream) % self.streams.len()];
                self.own(self.stage.device().synchronize_stream(stream)).map(drop)
            }
            Operation::SynchroniseAll => {
                self.own(self.stage.device().synchronize_device()).map(drop)
            }
        }
    }

    /// A call of the trial's own: it succeeds unless the device is gone.
    fn own<T>(&self, result: forebay_hal::Result<T>) -> Verdict<Option<T>> {
        match result {
            Ok(made) => Ok(Some(made)),
            Err(forebay_hal::Error::Lost { .. }) if self.failing => Ok(None),
            // Memory of a live block that a kernel is refused is memory the pool does not have.
            Err(error) => Err((Complaint::Data, error.to_string())),
        }
    }

    fn allocate(&mut self, size: u64, stream: u8, hand: u8, tag: u8) -> Verdict {
        if self.live.len() >= self.setting.max_live {
            return Ok(());
        }
        let stream = usize::from(stream) % self.streams.len();
        let (pool, handle, requested) = (self.pool.clone(), self.streams[stream], Bytes::new(size));
        let block = match self.hands.on(hand, move || pool.allocate(requested, handle)) {
            Ok(block) => block,
            Err(Error::OutOfMemory(shortage)) => {
                let (limit, held, live) = (shortage.limit, shortage.held, shortage.live);
                self.outcome.places.push(Address::NULL);
                self.outcome.out_of_memory += 1;
                // Without a limit of its own the pool may name the device's.
                let right =
                    self.setting.limit.map_or(limit >= self.setting.capacity, |l| l == limit);
                let most = self.setting.ceiling(self.stranger.0.held());
                if !right || live < self.oracle.bytes() || live > held || held > most {
                    let known = self.oracle.bytes();
                    let text = format!("told: limit {limit}, {held} held, {} B live", live.get());
                    return Err((
                        Complaint::Figures,
                        format!("{text}; live are {} B", known.get()),
                    ));
                }
                return if self.failing { Ok(()) } else { self.no_room(requested) };
            }
            Err(Error::Device(_)) if self.failing => {
                self.outcome.places.push(Address::NULL);
                self.outcome.failed += 1;
                return Ok(());
            }
            Err(error) => return Err((Complaint::Answer, error.to_string())),
        };
        self.outcome.places.push(block.address());
        let entered = self.oracle.allocated(requested, &block);
        entered.map_err(|violation| (Complaint::Block, violation.to_string()))?;
        if requested.is_zero() {
            return Ok(());
        }
        self.own(self.stage.write(&block, tag, handle, &self.wrong))?;
        self.live.push(Held { block, requested, tag, stream });
        Ok(())
    }

    /// Whether a request that was refused had to be.
    fn no_room(&mut self, requested: Bytes) -> Verdict {
        // The classes of small sizes may add an eighth.
        let eighth = if requested <= Bytes::mib(1) { requested.get() / 8 } else { 0 };
        let granule = self.setting.granule;
        let needed = requested
            .checked_add(Bytes::new(eighth))
            .and_then(|size| size.checked_align_up(granule.alignment()));
        let Some(needed) = needed else { return Ok(()) };
        let kept = match self.setting.room {
            Room::Granules => self.oracle.touched(granule.bytes()),
            Room::Pages => {
                self.pool.trim(Bytes::ZERO).map_err(|e| (Complaint::Answer, e.to_string()))?;
                self.pool.held()
            }
        };
        let ceiling = self.setting.ceiling(self.stranger.0.held()).align_down(granule.alignment());
        let room = ceiling.saturating_sub(kept);
        if needed <= room {
            let text = format!(
                "{} B were refused, which need {} B of pages; live blocks keep {} B of {} B, so \
                 {} B were free or idle",
                requested.get(),
                needed.get(),
                kept.get(),
                ceiling.get(),
                room.get()
            );
            return Err((Complaint::Room, text));
        }
        Ok(())
    }

    fn free(&mut self, held: Held, on: FreedOn, hand: u8, way: u8) -> Verdict {
        let its = self.streams[held.stream];
        let stream = match on {
            FreedOn::Its => its,
            FreedOn::Another(number) => self.streams[usize::from(number) % self.streams.len()],
        };
        if stream != its {
            self.order(its, stream)?;
        }
        self.own(self.stage.check(&held.block, held.tag, stream, &self.wrong))?;
        let address = held.block.address();
        let known = self.pool.block_at(address);
        if known != Some(held.block) {
            let text = format!("the live block {:?} is known as {known:?}", held.block);
            return Err((Complaint::Answer, text));
        }
        self.oracle
            .freed(address)
            .map_err(|violation| (Complaint::Block, violation.to_string()))?;
        let (block, requested) = (Some(held.block), held.requested);
        let (pool, given) = (self.pool.clone(), Given { address, block, requested, stream });
        let freed = self.hands.on(hand, move || free_by(way, &pool, given));
        // A free asks nothing of the device, so no failing call excuses it.
        freed.map_err(|error| (Complaint::Answer, error.to_string()))?;
        if let Some(still) = self.pool.block_at(address) {
            return Err((Complaint::Answer, format!("{still:?} is known after it was freed")));
        }
        self.freed.push_back(held);
        if self.freed.len() > REMEMBERED {
            self.freed.pop_front();
        }
        Ok(())
    }

    /// Makes later work on `second` wait for all work on `first`: what a caller owes the pool who
    /// frees a block on another stream than it was used on.
    fn order(&self, first: StreamHandle, second: StreamHandle) -> Verdict {
        let device = self.stage.device();
        let Some(event) = self.own(device.create_event(EventKind::Order))? else { return Ok(()) };
        self.own(device.record_event(event, first))?;
        self.own(device.wait_event(second, event))?;
        self.own(device.destroy_event(event)).map(drop)
    }

    fn free_wrongly(&mut self, wrong: Wrong, which: u16, hand: u8, way: u8) -> Verdict {
        let stream = self.streams[usize::from(which) % self.streams.len()];
        let Some(mut given) = self.wrongly_given(wrong, which) else { return Ok(()) };
        given.stream = stream;
        let before = figures(&self.pool.statistics());
        let pool = self.pool.clone();
        let answer = self.hands.on(hand, move || free_by(way, &pool, given));
        let after = figures(&self.pool.statistics());
        if before != after {
            let text = format!("{given:?} was refused, yet {before:?} became {after:?}");
            return Err((Complaint::Figures, text));
        }
        match (wrong, answer) {
            (Wrong::Null, Ok(())) => Ok(()),
            (Wrong::Null, Err(error)) => Err((Complaint::Answer, error.to_string())),
            (_, Err(error)) if is_refusal(&error) => {
                self.outcome.refused += 1;
                Ok(())
            }
            (_, answer) => Err((Complaint::Answer, format!("{given:?} was answered {answer:?}"))),
        }
    }

    /// What is wrong in that way; `None` where there is nothing of the kind now.
    fn wrongly_given(&self, wrong: Wrong, which: u16) -> Option<Given> {
        let number = usize::from(which);
        let at = |address: u64| Given {
            address: Address::new(address),
            block: None,
            requested: Bytes::ZERO,
            stream: StreamHandle::DEFAULT,
        };
        let of = |held: &Held| Given {
            block: Some(held.block),
            requested: held.requested,
            ..at(held.block.address().get())
        };
        let pick = |list: &[Held]| (!list.is_empty()).then(|| list[number % list.len()]);
        let given = match wrong {
            Wrong::Null => at(0),
            Wrong::Twice => {
                if self.freed.is_empty() {
                    return None;
                }
                of(&self.freed[number % self.freed.len()])
            }
            Wrong::Foreign => {
                let before = self.live.first().map_or(512, |held| held.block.address().get() - 512);
                let places = [512, before, 1 << 46, u64::MAX, u64::MAX - 511, before + 511];
                at(places[number % places.len()])
            }
            Wrong::Inside => {
                let held = pick(&self.live)?;
                let size = held.block.size().get();
                let into = [1, 512, size / 2, size - 1][number % 4].min(size - 1).max(1);
                at(held.block.address().get() + into)
            }
            Wrong::OfAnotherPool => {
                let block = self.stranger.1;
                let requested = Bytes::new(700);
                Given { block: Some(block), requested, ..at(block.address().get()) }
            }
        };
        // By its address alone, a block that lies there now could not be told from the one meant.
        (!self.oracle.begins_at(given.address)).then_some(given)
    }

    fn trim(&mut self, keep: Bytes, hand: u8) -> Verdict {
        let (pool, before) = (self.pool.clone(), self.pool.held());
        let given = match self.hands.on(hand, move || pool.trim(keep)) {
            Ok(given) => given,
            Err(Error::Device(_)) if self.failing => {
                self.outcome.failed += 1;
                return Ok(());
            }
            Err(error) => return Err((Complaint::Answer, error.to_string())),
        };
        let held = self.pool.held();
        // A page whose release failed may be counted again.
        if held.saturating_add(given) != before && !self.failing {
            let text = format!("{before} held, {given} given back, {held} held");
            return Err((Complaint::Figures, text));
        }
        // Pages of one granule that no live block touches are all idle after a trim, and go until
        // the next would leave less than was to be kept.
        let granule = self.setting.granule;
        let touched = self.oracle.touched(granule.bytes());
        let most = keep.checked_align_up(granule.alignment()).unwrap_or(Bytes::MAX).max(touched);
        if self.setting.room == Room::Granules && held > most && !self.failing {
            let text = format!("{held} held after a trim to {keep}; live blocks touch {touched}");
            return Err((Complaint::Leak, text));
        }
        Ok(())
    }

    fn renew(&mut self, stream: u8) -> Verdict {
        // The default stream stays.
        let number = 1 + usize::from(stream) % (self.streams.len() - 1);
        let old = self.streams[number];
        match self.pool.forget_stream(old) {
            Ok(()) => {}
            Err(Error::Device(_)) if self.failing => {
                self.outcome.failed += 1;
                return Ok(());
            }
            Err(error) => return Err((Complaint::Answer, error.to_string())),
        }
        let device = self.stage.device();
        // Blocks outlive the stream they were allocated on: whoever uses them next waits for it.
        let heirs = self.live.iter().any(|held| held.stream == number);
        let Some(end) = self.own(device.create_event(EventKind::Order))? else { return Ok(()) };
        self.own(device.record_event(end, old))?;
        self.own(device.destroy_stream(old))?;
        let Some(new) = self.own(device.create_stream(Priority::Normal))? else { return Ok(()) };
        self.streams[number] = new;
        if heirs {
            self.own(device.wait_event(new, end))?;
        }
        self.own(device.destroy_event(end))?;
        self.renewals += 1;
        if self.renewals.is_multiple_of(RENEWALS) {
            self.own(device.synchronize_device())?;
            return self.trim(Bytes::MAX, 0);
        }
        Ok(())
    }

    /// The pool's figures against the oracle's.
    fn add_up(&self) -> Verdict {
        let pool = self.pool.statistics();
        let count = pool.allocations.checked_sub(pool.frees);
        let told = (pool.live, pool.requested, count);
        let oracle = &self.oracle;
        let known = (oracle.bytes(), oracle.requested(), Some(oracle.count() as u64));
        if told != known {
            let text = format!("live, requested and count are told as {told:?}, are {known:?}");
            return Err((Complaint::Figures, text));
        }
        let others = self.stranger.0.held();
        self.compare_held(pool.held, others)?;
        let ceiling = self.setting.ceiling(others);
        let touched = oracle.touched(self.setting.granule.bytes());
        if pool.held < touched || pool.held > ceiling || pool.held > pool.peak_held.max(pool.held) {
            let text = format!("{} held; blocks touch {touched}; at most {ceiling}", pool.held);
            return Err((Complaint::Figures, text));
        }
        Ok(())
    }

    /// What the pool says it took against what the device says it gave out: no more than that, and
    /// where it is asked for, to the byte and within the limit.
    fn compare_held(&self, held: Bytes, others: Bytes) -> Verdict {
        let Some(info) = self.own(self.stage.device().memory_info())? else { return Ok(()) };
        let given = info.held.saturating_sub(others);
        let most = self.setting.limit.unwrap_or(Bytes::MAX);
        if given < held || self.exact && (given != held || given > most) {
            let text = format!("{held} held, at most {most}; the device gave out {given}");
            return Err((Complaint::Figures, text));
        }
        Ok(())
    }

    fn end(mut self) -> Verdict<Outcome> {
        for held in core::mem::take(&mut self.live) {
            self.free(held, FreedOn::Its, 0, 0)?;
        }
        self.add_up()?;
        let lost = self.own(self.stage.device().synchronize_device())?.is_none();
        if !lost {
            let trimmed = self.pool.trim(Bytes::ZERO);
            trimmed.map_err(|error| (Complaint::Answer, error.to_string()))?;
            if !self.pool.held().is_zero() {
                let text = format!("{} held with no block live, after a trim", self.pool.held());
                return Err((Complaint::Leak, text));
            }
        }
        self.drop_all()
    }

    /// Drops the pool, before or after the threads that used it, and looks at what is left.
    fn drop_all(mut self) -> Verdict<Outcome> {
        self.outcome.statistics = self.pool.statistics();
        let (stranger, block) = self.stranger;
        stranger
            .free(block.address(), StreamHandle::DEFAULT)
            .map_err(|error| (Complaint::Answer, format!("another pool was harmed: {error}")))?;
        drop(stranger);
        if self.setting.seed.is_multiple_of(2) {
            drop(self.pool);
            self.hands.end();
        } else {
            self.hands.end();
            drop(self.pool);
        }
        if let Some(finding) = self.stage.findings() {
            return Err((Complaint::Order, finding));
        }
        let wrong = self.wrong.load(Ordering::Relaxed);
        if wrong > 0 {
            return Err((Complaint::Data, format!("{wrong} bytes were not what was written")));
        }
        match self.stage.left() {
            Some(left) => Err((Complaint::Leak, left)),
            None => Ok(self.outcome),
        }
    }
}

/// What a refused free must not change.
fn figures(statistics: &Statistics) -> (Bytes, Bytes, Bytes, u64, u64) {
    let Statistics { live, requested, held, allocations, frees, .. } = *statistics;
    (live, requested, held, allocations, frees)
}

/// Whether an error says that a free was wrong, as opposed to a device that failed.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotABlock { .. }
            | Error::DoubleFree { .. }
            | Error::StaleBlock { .. }
            | Error::WrongPool { .. }
            | Error::WrongSize { .. }
    )
}

/// Plays a program on a fresh simulated device of `setting`.
pub(crate) fn try_on_sim(setting: Setting, program: &Program) -> Result<Outcome, Failure> {
    let run = Run::new(setting, setting.sim(), Script::NONE).expect("no call fails");
    run.play(program)
}
