//! How often a pool asks the program to free memory before it refuses a request.

use crate::Bytes;

/// How often one request calls the program's callbacks: as often as they make progress, and a few times more. A
/// callback that releases one entry of a cache at a time is called until the request fits; one that claims to have
/// released memory and did not is not called forever.
///
/// ```
/// use forebay_core::{Bytes, CallbackBudget};
///
/// let mut budget = CallbackBudget::default();
/// for mib in 0..1000 {
///     assert!(budget.may_call(Bytes::mib(mib)), "each call left more room than all before");
/// }
/// let idle = (0..1000).filter(|_| budget.may_call(Bytes::mib(7))).count();
/// assert_eq!(idle, CallbackBudget::MAX_IDLE as usize);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CallbackBudget {
    max_room: Option<Bytes>,
    idle: u32,
}

impl CallbackBudget {
    /// The most calls that may leave no more room than before.
    pub const MAX_IDLE: u32 = 15;

    /// Whether the callbacks may be called, now that the pool could serve `room` bytes if they were in one piece.
    pub fn may_call(&mut self, room: Bytes) -> bool {
        if self.max_room.is_none_or(|most| room > most) {
            self.max_room = Some(room);
            return true;
        }
        self.idle += 1;
        self.idle <= Self::MAX_IDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_are_called_while_they_make_room() {
        // How much more room each call makes, and how many calls that are.
        for (step, calls) in [(0, 16), (1, 100)] {
            let mut budget = CallbackBudget::default();
            let (mut called, mut room) = (0, 0);
            while called < 100 && budget.may_call(Bytes::new(room)) {
                called += 1;
                room += step;
            }
            assert_eq!(called, calls, "{step} bytes a call");
        }
    }
}
