//! Groups by their numbers, as bits: which groups a stream may use, and which have holes.
//!
//! ```text
//!   first   0110…01     groups 0 to 63: most programs have no more, and their bits are tested without a look elsewhere
//!   rest    [ 64 to 127 | 128 to 191 | … ]
//! ```

use crate::address_space::streams::ones;

/// The number of a group. It is reused once the group has no holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(pub(super) u32);

impl Default for GroupId {
    fn default() -> Self {
        Self::NONE
    }
}

impl GroupId {
    /// No group.
    pub(super) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(super) fn slot(self) -> usize {
        self.0 as usize
    }

    /// Its bit in a word, if it is one of the first groups.
    #[inline]
    pub(super) fn bit(self) -> u64 {
        1_u64.checked_shl(self.0).unwrap_or(0)
    }
}

/// How many groups have their bits in the first word. Numbers are reused, so a program needs more only while its
/// holes have more than this many different sets.
pub(super) const FIRST: usize = u64::BITS as usize;

/// Groups, a bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupBits {
    /// The bits of the first groups.
    pub(super) first: u64,
    /// The bits of the other groups, 64 to a word.
    rest: Vec<u64>,
}

/// None of the groups.
pub(super) static NO_GROUPS: GroupBits = GroupBits { first: 0, rest: Vec::new() };

impl GroupBits {
    #[inline]
    pub(super) fn change(&mut self, id: GroupId, is_in: bool) {
        let word = match (id.slot() / FIRST).checked_sub(1) {
            None => &mut self.first,
            Some(word) => {
                if is_in && self.rest.len() <= word {
                    self.rest.resize(word.saturating_add(1), 0);
                }
                let Some(word) = self.rest.get_mut(word) else { return };
                word
            }
        };
        let bit = 1 << (id.slot() % FIRST);
        *word = if is_in { *word | bit } else { *word & !bit };
    }

    /// Whether a group is in it.
    #[inline]
    pub(super) fn has(&self, id: GroupId) -> bool {
        let word = match (id.slot() / FIRST).checked_sub(1) {
            None => self.first,
            Some(word) => self.rest.get(word).copied().unwrap_or(0),
        };
        word >> (id.slot() % FIRST) & 1 != 0
    }

    /// The words of those beyond the first, each with that of `other`.
    #[inline]
    pub(super) fn rest_with<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        let others = other.rest.iter().copied().chain(core::iter::repeat(0));
        self.rest.iter().copied().zip(others)
    }

    /// The groups, the lowest number first.
    pub(super) fn each(&self) -> impl Iterator<Item = GroupId> {
        let words = (0..).zip([self.first].into_iter().chain(self.rest.iter().copied()));
        words
            .flat_map(|(number, word)| ones(word).map(move |bit| GroupId(number * u64::BITS + bit)))
    }
}
