//! Tags: names for the purposes of memory. A thread allocates under one tag at a time; statistics and reports break
//! down memory by tag.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::MutexGuard;

use crate::sync::fork::ForkSafeMutex;
use crate::sync::map::BlockState;
use crate::sync::thread_slot;

/// The most names of a program's own, and the unnamed tag. One more number is that of all other names.
const MAX: usize = 255;

/// The names of tags, by number. The first is for untagged blocks.
static NAMES: ForkSafeMutex<Vec<String>> = ForkSafeMutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<String>> {
    let mut names = NAMES.lock();
    if names.is_empty() {
        names.push(Tag::UNTAGGED.to_owned());
    }
    names
}

/// A name for a purpose of memory, shared by the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u8);

impl Tag {
    /// The tag of untagged blocks.
    pub const NONE: Self = Self(0);
    /// The name of [`NONE`](Self::NONE).
    pub const UNTAGGED: &str = "untagged";

    /// The tag of all names for which there is no number left.
    pub const OTHER: Self = Self(u8::MAX);
    /// The name of [`OTHER`](Self::OTHER).
    const OTHER_NAME: &str = "other";

    /// Finds or makes the tag with this name. A process has 254 names of its own; any more are [`OTHER`](Self::OTHER).
    pub fn named(name: &str) -> Self {
        if name == Self::OTHER_NAME {
            return Self::OTHER;
        }
        let mut names = names();
        let number = names.iter().position(|other| other == name).or_else(|| {
            (names.len() < MAX).then(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        });
        number.and_then(|number| u8::try_from(number).ok()).map_or(Self::OTHER, Self)
    }

    /// The tag of memory that the library uses to move the program's data: the program's own tags cover only what it
    /// requested itself.
    pub(crate) fn staging() -> Self {
        // Not a `OnceLock`, which a fork would leave half set. 0 until found; finding it twice is harmless.
        static STAGING: AtomicU8 = AtomicU8::new(Tag::NONE.0);
        let found = Self(STAGING.load(Ordering::Relaxed));
        if found != Self::NONE {
            return found;
        }
        let found = Self::named("forebay.staging");
        STAGING.store(found.0, Ordering::Relaxed);
        found
    }

    /// The name of the tag.
    pub fn name(self) -> String {
        if self == Self::OTHER {
            return Self::OTHER_NAME.to_owned();
        }
        names().get(usize::from(self.0)).cloned().unwrap_or_default()
    }

    /// Makes this thread allocate under this tag until the scope is dropped. Scopes nest.
    ///
    /// ```
    /// use forebay::Tag;
    ///
    /// let weights = Tag::named("weights");
    /// let scope = weights.enter();
    /// assert_eq!(Tag::current(), weights);
    /// drop(scope);
    /// assert_eq!(Tag::current(), Tag::NONE);
    /// ```
    pub fn enter(self) -> TagScope {
        TagScope { before: thread_slot::set_tag(self.0), of_thread: PhantomData }
    }

    /// As [`enter`](Self::enter), unless the thread has already entered a tag. For libraries that allocate on behalf of
    /// a program, whose own tag says more.
    #[inline]
    pub fn enter_unless_tagged(self) -> TagScope {
        let before = thread_slot::tag();
        if before == Self::NONE.0 {
            thread_slot::set_tag(self.0);
        }
        TagScope { before, of_thread: PhantomData }
    }

    /// The number of the tag that this thread allocates under, or of this tag if it has none.
    #[inline(always)]
    pub(crate) fn unless_tagged(self) -> u8 {
        let current = thread_slot::tag();
        if current == Self::NONE.0 { self.0 } else { current }
    }

    /// Its number, as stored in block states.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The tag that this thread allocates under.
    pub fn current() -> Self {
        Self(thread_slot::tag())
    }

    /// The tag that a block was allocated under.
    pub(crate) fn of(block: BlockState) -> Self {
        Self::numbered(usize::from(block.tag())).unwrap_or(Self::NONE)
    }

    /// As `of`, without checking that the tag exists: the pool wrote the number itself.
    #[inline(always)]
    pub(crate) fn of_known(block: BlockState) -> Self {
        Self(block.tag())
    }

    pub(crate) fn numbered(number: usize) -> Option<Self> {
        let tag = Self(u8::try_from(number).ok()?);
        (tag == Self::OTHER || number < names().len()).then_some(tag)
    }
}

/// Makes this thread allocate under the tag of that name until the scope is dropped. If 254 other names exist already,
/// the tag is [`Tag::OTHER`].
///
/// ```
/// let scope = forebay::tag("optimizer");
/// assert_eq!(forebay::Tag::current().name(), "optimizer");
/// drop(scope);
/// assert_eq!(forebay::Tag::current(), forebay::Tag::NONE);
/// ```
pub fn tag(name: &str) -> TagScope {
    Tag::named(name).enter()
}

/// Makes a thread allocate under a tag until it is dropped. Made by [`Tag::enter`] and [`tag`].
#[derive(Debug)]
#[must_use = "the tag is left when the scope is dropped"]
pub struct TagScope {
    before: u8,
    /// The tag belongs to the thread, so the scope must stay on it.
    of_thread: PhantomData<*const ()>,
}

impl Drop for TagScope {
    #[inline]
    fn drop(&mut self) {
        thread_slot::set_tag(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree_and_scopes_nest() {
        let one = Tag::named("one of the tests");
        assert_eq!(Tag::named("one of the tests"), one);
        let two = Tag::named("two of the tests");
        assert_ne!(one, two);
        assert_eq!(one.name(), "one of the tests");
        assert_eq!(Tag::NONE.name(), "untagged");
        let outer = one.enter();
        {
            let _inner = two.enter();
            assert_eq!(Tag::current(), two);
            std::thread::spawn(|| assert_eq!(Tag::current(), Tag::NONE)).join().unwrap();
        }
        assert_eq!(Tag::current(), one);
        drop(two.enter_unless_tagged());
        assert_eq!(Tag::current(), one, "what the program said stays");
        drop(outer);
        {
            let _library = two.enter_unless_tagged();
            assert_eq!(Tag::current(), two);
        }
        assert_eq!(Tag::current(), Tag::NONE);
    }
}
