//! Plans and their claims, on the address space and its model.

use super::*;

/// Claims what a plan needs, one step after another.
fn claim(space: &mut AddressSpace, plan: &Plan, taker: Streams) -> Claim {
    let mut claim = Claim::begin(space, plan);
    let moved = |step| claim.take(space, core::slice::from_ref(step), &taker).unwrap().get();
    let moved: u64 = plan.steps.iter().map(moved).sum();
    assert_eq!(claim.moved().get(), moved);
    claim
}

impl Pair {
    /// Makes a plan and carries it out as a pool does.
    pub(super) fn plan(
        &mut self,
        size: u64,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
    ) -> bool {
        self.plan_among(size, taker, growth, limit, usize::MAX)
    }

    /// The same, looking at `most` gaps and holes before all others. There is a plan if and only if looking at all finds
    /// one, and it is the same if there are no more.
    pub(super) fn plan_among(
        &mut self,
        size: u64,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
        most: usize,
    ) -> bool {
        let among =
            |most| Plan::make_among(&self.space, Bytes::new(size), taker, growth, limit, most);
        let (plan, best) = (among(most), among(usize::MAX));
        let table = self.space.page_table();
        let pages = table.kept().count().max(table.page_count()) / 16;
        let seen = [table.gaps.count(), pages, self.space.holes().count()];
        let is_best = plan == best;
        assert!(is_best || plan.is_ok() && best.is_ok(), "{plan:?}, but among all {best:?}");
        assert!(is_best || seen.iter().any(|&count| count > most), "{plan:?}, not {best:?}");
        let backed = self.space.backed_bytes();
        let missing = self.model.least_missing(size, taker);
        let room = limit.saturating_sub(backed).get() / GRANULE * GRANULE;
        let whole = size.next_multiple_of(GRANULE);
        let beyond = whole <= self.model.beyond();
        let enough = whole <= room + self.model.movable(taker);
        let free = self.model.movable(taker);
        let (live, peak) = (self.model.taken() + size, self.space.peak);
        let Ok(plan) = plan else {
            assert!(missing.is_none_or(|missing| missing > room), "{missing:?} of {room}");
            assert!(!(beyond && enough), "{size} B could have gone beyond the end");
            return false;
        };
        let missing = missing.unwrap();
        self.claim_and_settle(&plan, size, taker);
        self.claim_and_give_back(&plan, size, taker);
        let (mut moved, mut made, mut returned) = (0, 0, 0);
        for step in plan.steps {
            match step {
                Step::Create { at, size } => {
                    made += size.get();
                    self.add_page(at, size.get(), taker).unwrap();
                }
                Step::Clear { at, size } => {
                    assert_eq!(
                        self.space.page_table().kept().get(at).map(|kept| kept.size),
                        Some(size)
                    );
                    self.clear_kept(at).unwrap();
                }
                Step::Move { from, to, size } | Step::Return { from, to, size } => {
                    let kept = self.space.page_table().kept().get(to);
                    let (page, lifted, free) = self.remove_page(from).unwrap();
                    assert_eq!(lifted, size);
                    assert!(free.contains(taker), "a page that the taker may not write is moved");
                    if matches!(step, Step::Return { .. }) {
                        assert_eq!(
                            kept,
                            Some(PageMapping { at: to, page, size }),
                            "it is not mapped there"
                        );
                        returned += size.get();
                    } else {
                        assert_eq!(kept, None, "another is mapped there");
                        moved += size.get();
                    }
                    let bytes = size.get();
                    let space = |space: &mut AddressSpace| space.add_page(to, size, page, taker);
                    self.both(space, |m| m.add_page(to, bytes, page, taker)).unwrap();
                }
            }
        }
        self.space.record_growth(Bytes::new(moved), Bytes::new(made), growth);
        assert!(self.space.backed_bytes() <= limit.max(backed));
        assert!(moved + returned <= free && made <= room);
        assert!(missing > 0 || moved + returned + made == 0, "pages for what is there already");
        let spared = is_best && live > peak && backed.get() + missing <= limit.get().min(live);
        assert!(moved + returned == 0 || !spared, "moved without need");
        self.check();
        assert!(self.clone().allocate(size, taker).is_some(), "{size} B do not fit after the plan");
        true
    }

    /// Claims what a plan needs: no request gets it, and given back it is all where it was.
    pub(super) fn claim_and_give_back(&mut self, plan: &Plan, size: u64, taker: Streams) {
        let claim = claim(&mut self.space, plan, taker);
        if !plan.steps.is_empty() {
            let fits = self.space.clone().allocate(Bytes::new(size), taker);
            assert_eq!(fits, None, "the request fits already");
            let (start, end) = plan.window;
            assert!(
                self.space.holes().iter().all(|(at, size)| at + size.get() <= start || at >= end)
            );
            for gap in &claim.gaps {
                assert_eq!(
                    self.space.clone().page_table_mut().claim_gap(gap.at, gap.size).ok(),
                    None
                );
            }
        }
        claim.give_back(&mut self.space);
        self.check();
    }

    /// Claims what a plan needs and settles it as a pool does: the request lies in one hole then.
    pub(super) fn claim_and_settle(&self, plan: &Plan, size: u64, taker: Streams) {
        let (mut space, mut page) = (self.space.clone(), 1_u64 << 40);
        let mut claim = claim(&mut space, plan, taker);
        for gap in core::mem::take(&mut claim.gaps) {
            page += 1;
            let number = gap.from.map_or(page, |from| from.page);
            gap.settle(&mut space, number, taker);
            claim.set_aside(&mut space, gap);
            let outside = |(at, size): (u64, Bytes)| {
                at + size.get() <= claim.window.0 || at >= claim.window.1
            };
            assert!(space.holes().iter().all(outside), "others get a part before it is whole");
        }
        space.put_aside_back(&mut claim.aside);
        assert!(space.allocate(Bytes::new(size), taker).is_some(), "{size} B do not fit");
    }
}
