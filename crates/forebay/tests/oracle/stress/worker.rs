//! One worker: its streams, its blocks, and what it does next.

use std::thread;

use forebay::{DeviceArray, Error};
use forebay_core::Random;
use forebay_hal::{Priority, Stream, StreamHandle, Streams};

use super::sidekicks::{chore, visit};
use super::world::{Parcel, World};
use super::{Figures, Outcome};

/// The most blocks a worker has.
const MAX_LIVE: usize = 32;

/// The most streams a worker has beside its thread's own.
const MAX_STREAMS: usize = 5;

/// A stream that a worker made.
enum Made {
    /// Tells the pool when it goes.
    Owned(Stream),
    /// Does not, unless someone does it by hand.
    Raw(StreamHandle),
}

impl Made {
    fn handle(&self) -> StreamHandle {
        match self {
            Self::Owned(stream) => stream.handle(),
            Self::Raw(stream) => *stream,
        }
    }
}

/// One thread's part.
pub(super) struct Worker<'a> {
    world: &'a World,
    random: Random,
    streams: Vec<Made>,
    live: Vec<Parcel>,
    tag: u8,
    pub(super) figures: Figures,
}

impl<'a> Worker<'a> {
    pub(super) fn new(world: &'a World, seed: u64, number: usize) -> Outcome<Self> {
        let seed = seed.wrapping_mul(31).wrapping_add(number as u64);
        let (random, figures) = (Random::new(seed), Figures::default());
        let mut new =
            Self { world, random, streams: Vec::new(), live: Vec::new(), tag: 0, figures };
        new.make_stream()?;
        world.know(StreamHandle::of_this_thread());
        Ok(new)
    }

    pub(super) fn step(&mut self) -> Outcome {
        self.figures.operations += 1;
        if self.random.chance(1, 16) {
            self.world.let_work()?;
        }
        match self.random.below(1000) {
            0..420 => self.allocate(),
            420..740 => self.free_one(),
            740..810 => self.use_elsewhere(),
            810..870 => self.hand_over(),
            870..915 => self.send(),
            915..965 => self.receive(),
            965..978 => self.change_streams(),
            978..982 => self.copy(),
            982..986 => self.visitor(),
            986..994 => chore(self.world, &mut self.random, &mut self.figures),
            994..999 => {
                let stream = self.stream();
                self.world.own(|| self.world.sim.synchronize_stream(stream))
            }
            _ => self.world.own(|| self.world.sim.synchronize_device()),
        }
    }

    /// A stream of this thread that is there: one it made, or its own by either name.
    fn stream(&mut self) -> StreamHandle {
        let own = [StreamHandle::PER_THREAD, StreamHandle::of_this_thread()];
        if self.random.chance(1, 4) {
            return *self.random.pick(&own).unwrap_or(&own[0]);
        }
        self.random.pick(&self.streams).map_or(own[0], Made::handle)
    }

    fn allocate(&mut self) -> Outcome {
        if self.live.len() >= MAX_LIVE {
            return self.free_one();
        }
        let magnitude = if self.random.chance(1, 12) { 21 } else { self.random.between(4, 19) };
        let size = 1 + self.random.below(1 << magnitude);
        let stream = self.stream();
        self.tag = self.tag.wrapping_add(1);
        let given = self.world.allocate(size, stream, self.tag, &mut self.figures)?;
        match given {
            Some(parcel) => self.live.push(parcel),
            None => return self.free_one(),
        }
        Ok(())
    }

    fn take(&mut self) -> Option<Parcel> {
        let index = self.random.index(self.live.len())?;
        Some(self.live.swap_remove(index))
    }

    fn free_one(&mut self) -> Outcome {
        let Some(parcel) = self.take() else { return Ok(()) };
        self.world.free(parcel, &mut self.figures)
    }

    /// Reads a block on another stream, which may be gone before the block is freed.
    fn use_elsewhere(&mut self) -> Outcome {
        let user = self.stream();
        let Some(parcel) = self.take() else { return Ok(()) };
        self.use_on(&parcel, user)?;
        if self.random.chance(1, 3) {
            return self.world.free(parcel, &mut self.figures);
        }
        self.live.push(parcel);
        Ok(())
    }

    fn use_on(&mut self, parcel: &Parcel, user: StreamHandle) -> Outcome {
        if !self.world.order(user, parcel.stream)? {
            // Its own is gone, so there is nothing to wait by.
            return Ok(());
        }
        if !self.world.check(parcel, user)? {
            return Err(format!("{user} is gone, which is in use"));
        }
        self.figures.uses += 1;
        // After the work: the keeper may have forgotten the stream before.
        let recorded = self.world.pool.record_use(parcel.block.address(), user);
        recorded.map_err(|error| format!("{parcel:?} used on {user}: {error}"))
    }

    /// Moves a block to another stream, which waits for the first.
    fn hand_over(&mut self) -> Outcome {
        let Some(mut parcel) = self.take() else { return Ok(()) };
        let heir = self.stream();
        if self.world.order(heir, parcel.stream)? {
            parcel.stream = heir.resolved();
        }
        self.live.push(parcel);
        Ok(())
    }

    fn send(&mut self) -> Outcome {
        let Some(mut parcel) = self.take() else { return Ok(()) };
        parcel.after = self.world.event_after(parcel.stream)?;
        self.world.send(parcel);
        self.figures.handed += 1;
        Ok(())
    }

    fn receive(&mut self) -> Outcome {
        let Some(mut parcel) = self.world.receive() else { return Ok(()) };
        // Freed where its work is, whoever's stream that is, or taken over.
        if self.live.len() < MAX_LIVE
            && self.random.chance(2, 3)
            && let Some(event) = parcel.after.take()
        {
            let heir = self.stream();
            self.world.wait(heir, event)?;
            parcel.stream = heir.resolved();
            self.live.push(parcel);
            return Ok(());
        }
        self.world.free(parcel, &mut self.figures)
    }

    fn change_streams(&mut self) -> Outcome {
        if self.streams.len() < MAX_STREAMS && self.random.chance(1, 2) {
            return self.make_stream();
        }
        let Some(index) = self.random.index(self.streams.len()) else { return self.make_stream() };
        let going = self.streams.swap_remove(index);
        self.end_stream(going)
    }

    fn make_stream(&mut self) -> Outcome {
        let world = self.world;
        let made = if self.random.chance(1, 2) {
            Made::Owned(world.own(|| Stream::new(&world.device, Priority::Normal))?)
        } else {
            Made::Raw(world.own(|| world.device.create_stream(Priority::Normal))?)
        };
        world.know(made.handle());
        self.streams.push(made);
        self.figures.streams_made += 1;
        Ok(())
    }

    /// Ends a stream while its work may still run. Some of the blocks on it move elsewhere, the others stay
    /// and are freed on a stream that is gone.
    fn end_stream(&mut self, going: Made) -> Outcome {
        let (world, handle) = (self.world, going.handle());
        if self.random.chance(1, 2) {
            let heir = self.stream();
            if heir != handle && world.order(heir, handle)? {
                for parcel in self.live.iter_mut().filter(|parcel| parcel.stream == handle) {
                    parcel.stream = heir.resolved();
                }
            }
        }
        // The last that is done there is a use of blocks that come back when it is gone.
        let mut used = Vec::new();
        for _ in 0..self.random.below(4) {
            let Some(parcel) = self.take() else { break };
            self.use_on(&parcel, handle)?;
            used.push(parcel);
        }
        match going {
            Made::Owned(stream) => {
                self.figures.streams_announced += 1;
                drop(stream);
            }
            Made::Raw(stream) => {
                if self.random.chance(1, 3) && world.pool.forget_stream(stream).is_ok() {
                    self.figures.streams_announced += 1;
                } else {
                    self.figures.streams_unannounced += 1;
                }
                world.own(|| world.device.destroy_stream(stream))?;
            }
        }
        used.into_iter().try_for_each(|parcel| self.free_and_ask_again(parcel))
    }

    /// Frees a block and asks for as much on its stream: where the pool has forgotten a use of it, this is
    /// the one who gets it.
    fn free_and_ask_again(&mut self, parcel: Parcel) -> Outcome {
        let (size, stream) = (parcel.block.size().get(), parcel.stream);
        self.world.free(parcel, &mut self.figures)?;
        let usable = stream == StreamHandle::of_this_thread()
            || self.streams.iter().any(|made| made.handle() == stream);
        if usable {
            self.tag = self.tag.wrapping_add(1);
            self.live.extend(self.world.allocate(size, stream, self.tag, &mut self.figures)?);
        }
        Ok(())
    }

    /// An array that is filled by a copy and read back. A copy that fails is made again.
    fn copy(&mut self) -> Outcome {
        let length = 1 + self.random.index(100_000).unwrap_or(0);
        let stream = self.stream();
        let seed = self.random.next_u64();
        let array = DeviceArray::<u8>::new(&self.world.pool, length, stream);
        let mut array = match array {
            Ok(array) => array,
            Err(Error::OutOfMemory(_)) => {
                self.figures.refusals += 1;
                return Ok(());
            }
            Err(Error::Device(error)) if error.may_pass() => {
                self.figures.failures += 1;
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        let data: Vec<u8> = seed.to_le_bytes().into_iter().cycle().take(length).collect();
        self.again(|| array.copy_from_slice(&data))?;
        let mut back = vec![0; length];
        self.again(|| array.copy_to_slice(&mut back))?;
        if back != data {
            return Err(format!("{length} bytes came back otherwise than they were copied"));
        }
        self.figures.copies += 1;
        array.free().map_err(|refused| refused.error().to_string())
    }

    /// A call of a handle, made again while a planned fault strikes it.
    fn again(&mut self, mut call: impl FnMut() -> forebay::Result<()>) -> Outcome {
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(Error::Device(error)) if error.may_pass() => self.figures.failures += 1,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn visitor(&mut self) -> Outcome {
        let (world, seed) = (self.world, self.random.next_u64());
        self.figures.visitors += 1;
        thread::scope(|scope| {
            let visitor = scope.spawn(|| visit(world, seed, || ()));
            visitor.join().unwrap_or_else(|_| Err("a panic of a visitor".to_owned()))
        })
    }

    /// Frees some, leaves the others to whoever takes them, and ends the streams one way or another.
    pub(super) fn end(mut self) -> Outcome<Figures> {
        while let Some(parcel) = self.take() {
            if self.random.chance(1, 2) {
                self.world.free(parcel, &mut self.figures)?;
            } else {
                self.live.push(parcel);
                self.send()?;
            }
        }
        while let Some(going) = self.streams.pop() {
            self.end_stream(going)?;
        }
        Ok(self.figures)
    }
}
