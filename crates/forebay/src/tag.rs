//! Tags: who a block is for. A thread allocates under one tag at a time, and statistics and reports
//! are told by tag.

use core::marker::PhantomData;
use std::sync::MutexGuard;

use crate::sync::fork::ForkSafeMutex;
use crate::sync::thread_slot;

/// How many tags there can be, the one without a name counted.
const MOST: usize = 256;

/// The names of tags, by number. The first is for what has none.
static NAMES: ForkSafeMutex<Vec<String>> = ForkSafeMutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<String>> {
    let mut names = NAMES.lock();
    if names.is_empty() {
        names.push("untagged".to_owned());
    }
    names
}

/// A tag, for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u8);

impl Tag {
    /// What is allocated under no tag.
    pub const NONE: Self = Self(0);

    /// The tag of that name, made where there is none yet. `None` where there are 256 already.
    pub fn named(name: &str) -> Option<Self> {
        let mut names = names();
        let number = names.iter().position(|other| other == name).or_else(|| {
            (names.len() < MOST).then(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        });
        number.and_then(|number| u8::try_from(number).ok()).map(Self)
    }

    /// Its name.
    pub fn name(self) -> String {
        names().get(usize::from(self.0)).cloned().unwrap_or_default()
    }

    /// Allocates under this tag, on this thread, until the scope is dropped. Scopes nest.
    ///
    /// ```
    /// use forebay::Tag;
    ///
    /// let weights = Tag::named("weights").ok_or("too many tags")?;
    /// let scope = weights.enter();
    /// assert_eq!(Tag::current(), weights);
    /// drop(scope);
    /// assert_eq!(Tag::current(), Tag::NONE);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter(self) -> TagScope {
        TagScope { before: thread_slot::set_tag(self.0), of_thread: PhantomData }
    }

    /// The same, where the thread allocates under no tag: one that it has already stays. For libraries
    /// that allocate on behalf of a program, which may have said more than they know.
    #[inline]
    pub fn enter_unless_tagged(self) -> TagScope {
        let before = thread_slot::tag();
        if before == Self::NONE.0 {
            thread_slot::set_tag(self.0);
        }
        TagScope { before, of_thread: PhantomData }
    }

    /// The number of the tag that this thread allocates under, or of this where that is none.
    #[inline(always)]
    pub(crate) fn unless_tagged(self) -> u8 {
        let current = thread_slot::tag();
        if current == Self::NONE.0 { self.0 } else { current }
    }

    /// The tag this thread allocates under.
    pub fn current() -> Self {
        Self(thread_slot::tag())
    }

    pub(crate) fn numbered(number: usize) -> Option<Self> {
        u8::try_from(number).ok().filter(|_| number < names().len()).map(Self)
    }
}

/// A stretch of a thread's time under one tag.
#[derive(Debug)]
#[must_use = "the tag is left when the scope is dropped"]
pub struct TagScope {
    before: u8,
    /// The tag is the thread's: the scope stays there.
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
        let one = Tag::named("one of the tests").unwrap();
        assert_eq!(Tag::named("one of the tests"), Some(one));
        let two = Tag::named("two of the tests").unwrap();
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
