//! Claims of plans, on the address space and its model.

use super::*;

impl Pair {
    /// Claims what a plan needs: no request gets it, and given back it is all where it was.
    pub(super) fn claim_and_give_back(&mut self, plan: &Plan, size: u64, taker: Streams) {
        let claim = Claim::take(&mut self.space, plan, &taker).unwrap();
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
        let mut claim = Claim::take(&mut space, plan, &taker).unwrap();
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
