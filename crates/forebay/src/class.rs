//! Classes of memory: what a pool's memory can be used for beyond reading and writing on its device.

use core::fmt;
use core::ops::BitOr;

/// What can be relied on of a pool's memory, in any combination.
///
/// By default nothing beyond what every block has: one range of addresses of the device, behind which
/// the pool puts whatever pages are free. That wastes the least. What other libraries ask of memory
/// costs some of it, so it is a class of its own: a pool [is made](crate::PoolOptions::class) of one,
/// and a [request](crate::Request::of_class) that needs one is refused by a pool of another.
///
/// ```
/// use forebay::MemoryClass;
///
/// const CLASS: MemoryClass = MemoryClass::PLAIN.union(MemoryClass::STABLE);
/// assert!(CLASS.contains(MemoryClass::STABLE));
/// assert!(CLASS.contains(MemoryClass::STITCHED), "every class has what the default has");
/// assert_eq!(CLASS.to_string(), "plain and stable");
/// assert!(MemoryClass::SHAREABLE.contains(MemoryClass::STABLE));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryClass(u8);

impl MemoryClass {
    /// The default: made of pages that serve any request.
    pub const STITCHED: Self = Self(0);

    /// Each block lies in one allocation of the driver, as network cards and graphics want it that are
    /// to be told of it. Such memory goes back to the device only after waiting for all of its work.
    pub const PLAIN: Self = Self(1);

    /// Pages that can leave the process ([`Pool::pages_of`](crate::Pool::pages_of) names those of a
    /// block). They are [stable](Self::STABLE) as well: whoever was given a page goes on seeing it, so it
    /// must not become another's, nor something else take its place behind the block's address.
    pub const SHAREABLE: Self = Self(2).union(Self::STABLE);

    /// Other devices read and write it ([`PoolOptions::visible_to`](crate::PoolOptions::visible_to)).
    pub const PEERS: Self = Self(4);

    /// What is behind an address stays there as long as the pool, whoever has it: whoever was told of
    /// the memory once, as a captured graph or a network card, need not be told again. The pool gives
    /// nothing back to the device before its end.
    ///
    /// The memory stays; whose it is does not. A block that was freed is given to others, and a graph that
    /// was captured with it goes on using it: such a pool is to serve nothing but its graphs
    /// ([`Pool::capture`](crate::Pool::capture)).
    pub const STABLE: Self = Self(8);

    const NAMES: [(Self, &'static str); 4] = [
        (Self::PLAIN, "plain"),
        (Self::SHAREABLE, "shareable"),
        (Self::PEERS, "visible to peers"),
        (Self::STABLE, "stable"),
    ];

    /// What is of both classes.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether memory of this class is of `other` too.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for MemoryClass {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Display for MemoryClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.into_iter().filter(|&(class, _)| self.contains(class));
        let Some((_, first)) = names.next() else { return f.write_str("stitched") };
        f.write_str(first)?;
        names.try_for_each(|(_, name)| write!(f, " and {name}"))
    }
}
