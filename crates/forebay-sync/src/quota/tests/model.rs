//! Requests that grow, fail and release, in every order of their threads. The address space, its plans and claims, and the
//! quota are those of a pool, and so is the order of the steps: plan, reserve and claim under one hold of the lock; the
//! driver without it; settle and cut under the next. A pool claims plans of more than 128 steps in parts, which is not
//! modelled here: its own tests claim two steps at a time.

use forebay_core::address_space::{AddressSpace, Boundaries, Claim, Growth, Offset, Plan, Streams};
use forebay_core::{Bytes, PageSize};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

const PAGE: Bytes = Bytes::mib(2);

/// Where the two free pages of [`apart`] are.
const APART: [Offset; 2] = [0, 4 << 20];

/// A pool, as far as it plans and counts.
struct Pool {
    space: AddressSpace,
    share: Share,
    /// Bytes of pages that are held and in no address space.
    outgoing: Bytes,
    growth: Growth,
    limit: Bytes,
    /// The number of the next page.
    page: u64,
}

/// How a driver that is asked for pages answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Works,
    /// It creates one page and fails to map it. The page goes back to the device.
    FailsHalfWay,
}

impl Pool {
    /// A pool with `pages` pages at the start of its addresses, all free in the order of stream 1.
    fn new(quota: &Quota, pages: u64, limit: u64) -> Self {
        let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
        space.page_table_mut().reserve(0, Bytes::mib(64)).unwrap();
        let mut growth = Growth::default();
        growth.largest_page = PAGE;
        let limit = Bytes::new(limit * PAGE.get());
        let share = Share::new(quota);
        let mut pool = Self { space, share, outgoing: Bytes::ZERO, growth, limit, page: 0 };
        for index in 0..pages {
            pool.page += 1;
            pool.space.add_page(index * PAGE.get(), PAGE, pool.page, Streams::only(1)).unwrap();
        }
        pool.account();
        pool
    }

    /// Takes what is there for `blocks`, one behind the other, and frees those that are to be free.
    fn with_blocks(mut self, blocks: &[(u64, bool)]) -> Self {
        let taken = blocks.iter().map(|&(mib, is_live)| {
            let size = Bytes::mib(mib);
            (self.space.allocate_for(size, 1).unwrap(), size, is_live)
        });
        let taken: Vec<_> = taken.collect();
        for (at, size, _) in taken.into_iter().filter(|&(_, _, is_live)| !is_live) {
            self.space.free_for(at, size, 1).unwrap();
        }
        self
    }

    /// Publishes what is held. Held and reserved bytes are never more than the limit.
    fn account(&mut self) {
        self.share.set_held(self.space.backed_bytes().saturating_add(self.outgoing));
        assert!(self.share.claimed_by_all() <= self.limit, "more than the limit");
    }

    /// Plans, reserves and claims what a request needs; `None` if it is refused.
    fn plan(&mut self, size: Bytes, has_room: bool) -> Option<(Claim, Reservation)> {
        let room = if has_room { self.share.room() } else { Bytes::ZERO };
        loop {
            let claimed = self.share.claimed_by_all().saturating_sub(room);
            let elsewhere = claimed.saturating_sub(self.space.backed_bytes());
            let left = self.limit.saturating_sub(elsewhere);
            let taker = Streams::only(1);
            let plan = Plan::make(&self.space, size, taker, &self.growth, left).ok()?;
            let reserved = self.share.reserve(plan.created(), has_room, self.limit);
            let Some(reserved) = reserved else { continue };
            let mut claim = Claim::begin(&mut self.space, &plan);
            claim.take(&mut self.space, &plan.steps, &taker).unwrap();
            self.outgoing = self.outgoing.saturating_add(claim.moved());
            self.account();
            return Some((claim, reserved));
        }
    }

    /// Settles a claim and cuts the piece out of it.
    fn settle(&mut self, mut claim: Claim, mut reserved: Reservation, size: Bytes) -> Offset {
        for gap in core::mem::take(&mut claim.gaps) {
            self.page += 1;
            gap.settle(&mut self.space, gap.from.map_or(self.page, |it| it.page), Streams::only(1));
            claim.set_aside(&mut self.space, gap);
            match gap.from {
                Some(from) => self.outgoing = self.outgoing.saturating_sub(from.size),
                None => self.share.commit(reserved.split(gap.size)),
            }
        }
        self.space.put_aside_back(&mut claim.aside);
        self.account();
        self.space.allocate_for(size, 1).expect("another request has got the piece")
    }

    /// Gives a claim back after the driver has failed. One page was created, and is returned to the device.
    fn undo(&mut self, claim: Claim, mut reserved: Reservation, has_room: bool) {
        self.outgoing = self.outgoing.saturating_sub(claim.moved());
        claim.give_back(&mut self.space);
        let orphan = reserved.split(PAGE);
        self.outgoing = self.outgoing.saturating_add(orphan.bytes());
        let size = orphan.bytes();
        self.share.commit(orphan);
        self.account();
        self.release(size);
        if has_room {
            self.share.return_room(reserved);
        }
        self.account();
    }

    /// The device has taken `size` bytes back.
    fn release(&mut self, size: Bytes) {
        self.outgoing = self.outgoing.saturating_sub(size);
        self.share.released(size);
        self.account();
    }
}

fn shared(pool: Pool) -> Arc<Mutex<Pool>> {
    Arc::new(Mutex::new(pool))
}

/// Serves a request from a hole, or by growing. Returns the piece; `None` if it is refused or the driver fails.
fn request(pool: &Mutex<Pool>, mib: u64, has_room: bool, driver: Driver) -> Option<Offset> {
    let size = Bytes::mib(mib);
    let (claim, reserved) = {
        let mut pool = pool.lock().unwrap();
        if let Some(found) = pool.space.allocate_for(size, 1) {
            return Some(found);
        }
        pool.plan(size, has_room)?
    };
    let mut pool = pool.lock().unwrap();
    match driver {
        Driver::Works => Some(pool.settle(claim, reserved, size)),
        Driver::FailsHalfWay => {
            pool.undo(claim, reserved, has_room);
            None
        }
    }
}

/// Two requests of which the memory serves one: whichever comes first has all that it needs, and gets it.
fn one_of_two_is_served(make: fn(&Quota) -> Pool, first: u64, second: u64) {
    loom::model(move || {
        let pool = shared(make(&Quota::default()));
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || request(&other, second, false, Driver::Works));
        let mine = request(&pool, first, false, Driver::Works);
        let both = [mine, thread.join().unwrap()];
        assert_eq!(both.iter().flatten().count(), 1, "{both:?}");
    });
}

/// A request moves a free page and creates one behind it, all that the limit allows. Another wants the free page.
#[test]
fn loom_a_page_that_moves_for_a_request_is_not_given_to_another() {
    let make =
        |quota: &Quota| Pool::new(quota, 3, 4).with_blocks(&[(2, true), (2, false), (2, true)]);
    one_of_two_is_served(make, 4, 2);
}

/// A request extends a hole by a new page. Another wants the hole.
#[test]
fn loom_a_hole_that_a_growth_extends_is_not_given_to_another() {
    let make = |quota: &Quota| Pool::new(quota, 1, 2).with_blocks(&[(1, true), (1, false)]);
    one_of_two_is_served(make, 3, 1);
}

/// A growth fails while another request comes: everything is back, and who comes afterwards is served.
#[test]
fn loom_a_growth_that_fails_gives_everything_back() {
    loom::model(|| {
        let quota = Quota::default();
        let pool = Pool::new(&quota, 3, 4).with_blocks(&[(2, true), (2, false), (2, true)]);
        let before = pool.space.clone();
        let pool = shared(pool);
        let other = Arc::clone(&pool);
        let thread = thread::spawn(move || request(&other, 2, false, Driver::Works));
        assert_eq!(request(&pool, 4, false, Driver::FailsHalfWay), None);
        let theirs = thread.join().unwrap();
        {
            let mut pool = pool.lock().unwrap();
            if let Some(at) = theirs {
                pool.space.free_for(at, PAGE, 1).unwrap();
            }
            assert!(pool.space.holes().iter().eq(before.holes().iter()), "a hole is lost");
            assert_eq!((pool.outgoing, quota.claimed()), (Bytes::ZERO, Bytes::mib(6)));
        }
        assert!(request(&pool, 4, false, Driver::Works).is_some());
    });
}

/// A pool of three pages, of which two are apart and free, and no page may move.
fn apart(quota: &Quota, limit: u64) -> Pool {
    let mut pool = Pool::new(quota, 3, limit).with_blocks(&[(2, false), (2, true), (2, false)]);
    pool.growth.moves = false;
    pool
}

/// Takes the two free pages out for a request that begins to release.
fn take_out(pool: &Mutex<Pool>) {
    let mut pool = pool.lock().unwrap();
    assert!(pool.share.begin_room());
    for at in APART {
        let page = pool.space.remove_page(at).unwrap();
        pool.outgoing = pool.outgoing.saturating_add(page.size);
    }
    pool.account();
}

/// Returns them to the device, and grows by two pages in a row. The first attempt fails.
fn grow_in_room(pool: &Mutex<Pool>) {
    let room = || pool.lock().unwrap().share.room();
    {
        let mut pool = pool.lock().unwrap();
        for at in APART {
            pool.space.page_table_mut().clear_alias(at).unwrap();
            pool.release(PAGE);
        }
    }
    assert_eq!(room(), Bytes::mib(4));
    assert_eq!(request(pool, 4, true, Driver::FailsHalfWay), None);
    assert_eq!(room(), Bytes::mib(4), "the room of the next attempt");
    let served = request(pool, 4, true, Driver::Works);
    assert!(served.is_some(), "refused while its own room was there");
    pool.lock().unwrap().share.end_room();
}

/// Meanwhile another thread of the pool and another pool of the group want memory: the room is the request's alone, so it
/// is served and they are not.
#[test]
fn loom_what_a_request_releases_is_room_for_it_alone() {
    loom::model(|| {
        let quota = Quota::default();
        let pool = shared(apart(&quota, 3));
        let (same, other) = (Arc::clone(&pool), shared(Pool::new(&quota, 0, 3)));
        let beside = thread::spawn(move || request(&same, 4, false, Driver::Works));
        let elsewhere = thread::spawn(move || request(&other, 2, false, Driver::Works));
        take_out(&pool);
        grow_in_room(&pool);
        assert_eq!((beside.join().unwrap(), elsewhere.join().unwrap()), (None, None));
    });
}

/// Meanwhile another thread of the pool grows by what the limit still allows: that takes nothing of the room.
#[test]
fn loom_a_growth_beside_leaves_the_room_as_it_is() {
    loom::model(|| {
        let pool = shared(apart(&Quota::default(), 4));
        take_out(&pool);
        let same = Arc::clone(&pool);
        let beside = thread::spawn(move || request(&same, 2, false, Driver::Works));
        grow_in_room(&pool);
        assert!(beside.join().unwrap().is_some(), "the limit allows one more page");
    });
}

/// Pools of a group that reserve, hold and give back, without a common lock: the sum never exceeds the limit.
#[test]
fn loom_pools_of_a_group_never_exceed_the_limit() {
    let limit = Bytes::mib(4);
    loom::model(move || {
        let quota = Quota::default();
        let work = move |quota: &Quota| {
            let mut share = Share::new(quota);
            let Some(mut reserved) = share.reserve(Bytes::mib(3), false, limit) else {
                return false;
            };
            share.commit(reserved.split(Bytes::mib(2)));
            share.set_held(Bytes::mib(2));
            assert!(quota.claimed() <= limit);
            true
        };
        let thread = {
            let quota = quota.clone();
            thread::spawn(move || work(&quota))
        };
        let mine = work(&quota);
        assert!(quota.claimed() <= limit);
        assert!(thread.join().unwrap() || mine, "both were refused");
        assert_eq!(quota.claimed(), Bytes::ZERO);
    });
}

/// A reservation ends without the lock of its pool, while another thread reads what others have: nothing, in a group of one.
#[test]
fn loom_a_pool_does_not_take_its_own_bytes_for_those_of_others() {
    loom::model(|| {
        let mut share = Share::new(&Quota::default());
        let reserved = share.reserve(Bytes::mib(1), false, Bytes::mib(4)).unwrap();
        let thread = thread::spawn(move || drop(reserved));
        assert_eq!(share.others(), Bytes::ZERO);
        thread.join().unwrap();
        assert_eq!(share.claimed_by_all(), Bytes::ZERO);
    });
}
