//! Classes of memory: what a pool's memory can be used for beyond reading and writing on its device.

use core::fmt;
use core::ops::BitOr;

/// Guarantees of a pool's memory, in any combination.
///
/// By default a block is one range of device addresses, backed by whatever pages are free, which wastes the least
/// memory. Other libraries and devices need more guarantees, which cost memory. So a pool
/// [is made](crate::PoolOptions::class) with a class, and refuses a [request](crate::Request::of_class) that needs
/// another.
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
    /// The default: pages that serve any request.
    pub const STITCHED: Self = Self(0);

    /// Each block lies in one allocation of the driver, as network cards and graphics interfaces require. Returning
    /// such memory to the device waits for all of the device's work.
    pub const PLAIN: Self = Self(1);

    /// Pages can be exported to other processes ([`Pool::pages_of`](crate::Pool::pages_of) returns those of a block).
    /// They are [stable](Self::STABLE) as well: an importer keeps seeing a page, so the page must neither serve other
    /// addresses nor be replaced behind its own.
    pub const SHAREABLE: Self = Self(2).union(Self::STABLE);

    /// Other devices can read and write the memory ([`PoolOptions::visible_to`](crate::PoolOptions::visible_to)).
    pub const PEERS: Self = Self(4);

    /// The memory behind an address never changes while the pool lives, so a captured graph or a network card that
    /// knows it once can keep using it. The pool returns nothing to the device before it is dropped.
    ///
    /// The memory stays, but its owner changes: a freed block serves other requests, while a graph that was captured
    /// with it keeps using it. Let such a pool serve nothing but its graphs ([`Pool::capture`](crate::Pool::capture)).
    pub const STABLE: Self = Self(8);

    const NAMES: [(Self, &'static str); 4] = [
        (Self::PLAIN, "plain"),
        (Self::SHAREABLE, "shareable"),
        (Self::PEERS, "visible to peers"),
        (Self::STABLE, "stable"),
    ];

    /// The guarantees of both classes.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this class has all guarantees of `other`.
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
