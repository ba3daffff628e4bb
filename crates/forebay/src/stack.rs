//! Call stacks: captured as addresses, deduplicated, and symbolised only when displayed.
//!
//! ```text
//!   Stack::capture   frames of the thread ──> table of the process: equal stacks have one number   some microseconds
//!   {stack}          number ──> frames ──> "function file:line", a line for each                  some milliseconds
//! ```
//!
//! The table is bounded. Once it is full, any new stack becomes [`Stack::OTHER`], which says so.
//!
//! While the calling thread runs an interpreter, such as Python's, frames are the interpreter's rather than native
//! ones. A call that leaves the interpreter captures them first, and [enters](with_stack) them.

use core::cell::Cell;
use core::ffi::c_void;
use core::fmt;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sync::fork::ForkSafeMutex;

/// The most frames captured.
const MAX_FRAMES: usize = 64;

/// The most lines printed for a stack, starting at the program's first function.
const MAX_LINES: usize = 32;

/// The most distinct stacks: about 40 MB if all are deep, 75 MB if they are an interpreter's.
const MAX_STACKS: usize = 1 << 16;

/// First word of a stack, for native and interpreter frames.
const NATIVE: usize = 0;
const INTERPRETED: usize = 1;

/// Name prefixes of innermost functions to omit, as they say nothing about the program: this library's and Rust's.
const OWN: [&str; 10] = [
    "forebay::",
    "forebay_trace::record::Recorder",
    "forebay_trace::record::Intake",
    "forebay_capi::",
    "_forebay::",
    "backtrace::",
    "std::",
    "core::",
    "alloc::",
    "__rust",
];

/// A call stack, as a number in this process: equal stacks compare equal. `{}` lists its functions, innermost first,
/// one per line, with file and line if there is debug information. That takes some milliseconds. `{:#}` puts each on a
/// new, indented line, for lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack(u32);

thread_local! {
    /// The stack that captures of this thread return, if one was entered.
    static ENTERED: Cell<Stack> = const { Cell::new(Stack::NONE) };
}

static TABLE: ForkSafeMutex<Option<StackTable>> = ForkSafeMutex::new(None);

/// Held while a frame is symbolised: the symboliser has a lock and a cache, which must not be in use at a fork.
static NAMING: ForkSafeMutex<()> = ForkSafeMutex::new(());

static INTERPRETER: OnceLock<Interpreter> = OnceLock::new();

/// Number of pools that capture stacks.
static CAPTURING: AtomicUsize = AtomicUsize::new(0);

impl Stack {
    /// No captured stack.
    pub const NONE: Self = Self(0);
    /// A stack that did not fit: a process keeps 65,536 distinct ones.
    pub const OTHER: Self = Self(u32::MAX);

    /// Whether this is [`NONE`](Self::NONE).
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Captures the stack of the calling thread.
    pub fn capture() -> Self {
        let entered = ENTERED.get();
        if !entered.is_none() {
            return entered;
        }
        let mut frames = Vec::with_capacity(1 + MAX_FRAMES);
        frames.push(INTERPRETED);
        if let Some(interpreter) = INTERPRETER.get() {
            (interpreter.capture)(&mut frames, MAX_FRAMES);
        }
        if frames.len() == 1 {
            frames.clear();
            frames.push(NATIVE);
            capture_native(&mut frames);
        }
        TABLE.lock().get_or_insert_default().intern(&frames, MAX_STACKS)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Symbolise without the lock: that takes locks of its own.
        let frames = TABLE.lock().as_ref().and_then(|table| table.frames(*self));
        let interpreter = INTERPRETER.get();
        let text = match frames.as_deref().and_then(|frames| frames.split_first()) {
            _ if *self == Self::OTHER => {
                format!("(one of more than {MAX_STACKS} different call stacks)")
            }
            None => return Ok(()),
            Some((&whose, frames)) => match interpreter.filter(|_| whose == INTERPRETED) {
                Some(interpreter) => (interpreter.name)(frames),
                None => name_native(frames),
            },
        };
        if f.alternate() {
            return text.lines().try_for_each(|line| write!(f, "\n    {line}"));
        }
        f.write_str(&text)
    }
}

/// The distinct stacks of a process.
#[derive(Default)]
struct StackTable {
    numbers: HashMap<Arc<[usize]>, Stack>,
    /// By number, starting at 1.
    stacks: Vec<Arc<[usize]>>,
}

impl StackTable {
    /// Finds or adds the stack with these frames.
    fn intern(&mut self, frames: &[usize], most: usize) -> Stack {
        if let Some(&stack) = self.numbers.get(frames) {
            return stack;
        }
        let number = u32::try_from(self.stacks.len() + 1).ok();
        let Some(number) = number.filter(|_| self.stacks.len() < most) else {
            return Stack::OTHER;
        };
        let frames: Arc<[usize]> = frames.into();
        self.stacks.push(Arc::clone(&frames));
        self.numbers.insert(frames, Stack(number));
        Stack(number)
    }

    fn frames(&self, stack: Stack) -> Option<Arc<[usize]>> {
        self.stacks.get(usize::try_from(stack.0.checked_sub(1)?).ok()?).cloned()
    }
}

/// How an interpreter in this process reports its frames, two words each. The words stay valid while the process runs.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// Adds the words of at most that many frames, innermost first; none if the calling thread may not query the
    /// interpreter now. Does not wait.
    pub capture: fn(&mut Vec<usize>, usize),
    /// Describes the frames, one per line.
    pub name: fn(&[usize]) -> String,
}

/// Captures frames of an interpreter from now on. Only the first call has an effect.
pub fn set_interpreter(interpreter: Interpreter) {
    let _ = INTERPRETER.set(interpreter);
}

/// Whether any pool is capturing stacks.
pub fn is_capturing() -> bool {
    CAPTURING.load(Ordering::Relaxed) > 0
}

/// Whether new stacks are still stored. If not, an interpreter need not keep names for them.
pub fn has_room_for_stacks() -> bool {
    TABLE.lock().as_ref().is_none_or(|table| table.stacks.len() < MAX_STACKS)
}

/// Runs `work`; every capture of this thread meanwhile returns `stack`, unless that is none.
pub fn with_stack<R>(stack: Stack, work: impl FnOnce() -> R) -> R {
    /// Restores the previous stack, even if the work panics.
    struct Before(Stack);
    impl Drop for Before {
        fn drop(&mut self) {
            ENTERED.set(self.0);
        }
    }
    let _before = Before(ENTERED.replace(stack));
    work()
}

/// Counts a pool as capturing stacks until it is dropped.
#[derive(Debug)]
pub(crate) struct Capturing(());

impl Capturing {
    pub(crate) fn begin() -> Self {
        CAPTURING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        CAPTURING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds the return addresses of the calling thread, innermost first.
fn capture_native(frames: &mut Vec<usize>) {
    let add = |frame: &backtrace::Frame| {
        frames.push(frame.ip() as usize);
        frames.len() <= MAX_FRAMES
    };
    // SAFETY: only the debugging library of Windows needs the lock that the other function takes.
    #[cfg(unix)]
    unsafe {
        backtrace::trace_unsynchronized(add);
    }
    #[cfg(not(unix))]
    backtrace::trace(add);
}

/// Whether a function says nothing about the program. Goes by the file if debug information lacks module names.
fn is_own(name: &str, file: Option<&Path>) -> bool {
    let name = name.trim_start_matches('<');
    // Functions of the C interface have no module.
    let is_c = name.starts_with("forebay_") && !name.contains("::");
    OWN.iter().any(|begin| name.starts_with(begin)) || is_c || file.is_some_and(is_own_file)
}

/// Crate folders have the crate's name, followed by its version if from a registry.
fn is_own_file(file: &Path) -> bool {
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let of_crate = parts.windows(2).filter(|pair| pair.get(1).is_some_and(|part| part == "src"));
    file.starts_with("/rustc")
        || of_crate.filter_map(|pair| pair.first()).any(|folder| {
            let version = folder.rfind('-').filter(|&dash| {
                folder
                    .get(dash + 1..)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            });
            match folder.get(..version.unwrap_or(folder.len())) {
                Some("forebay" | "forebay-capi" | "forebay-py" | "backtrace") => true,
                Some("forebay-trace") => file.ends_with("src/record.rs"),
                _ => false,
            }
        })
}

/// Whether a function is a test of this crate and so counts as the program.
fn is_test(name: &str, file: Option<&Path>) -> bool {
    let in_tests = |file: &Path| file.iter().any(|part| part == "tests" || part == "tests.rs");
    cfg!(test) && (name.contains("::tests::") || file.is_some_and(in_tests))
}

/// One line per frame: "function file:line", as far as known.
fn name_native(frames: &[usize]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for &address in frames {
        // Lock for one frame at a time, because a fork waits for this lock.
        let _naming = NAMING.lock();
        backtrace::resolve(address as *mut c_void, |symbol| {
            let name = symbol.name().map(|name| format!("{name:#}")).unwrap_or_default();
            let file = symbol.filename();
            let is_own = is_own(&name, file) && !is_test(&name, file);
            if lines.is_empty() && is_own || lines.len() >= MAX_LINES {
                return;
            }
            let place =
                file.map(|file| format!(" {}:{}", file.display(), symbol.lineno().unwrap_or(0)));
            lines.push(format!("{name}{}", place.unwrap_or_default()));
        });
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn captured_here() -> Stack {
        Stack::capture()
    }

    #[test]
    fn equal_stacks_are_one_and_an_entered_one_counts() {
        let both: Vec<Stack> = (0..2).map(|_| captured_here()).collect();
        let other = captured_here();
        assert!(both[0] == both[1] && both[0] != other && !other.is_none());
        assert_eq!(with_stack(other, captured_here), other);
        assert_eq!(
            (with_stack(Stack::NONE, captured_here).is_none(), ENTERED.get()),
            (false, Stack::NONE)
        );
        assert_eq!(Stack::NONE.to_string(), "");
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = StackTable::default();
        for frame in 0..1000_usize {
            assert_eq!(table.intern(&[0, frame], 100) == Stack::OTHER, frame >= 100);
        }
        assert_eq!((table.stacks.len(), table.numbers.len()), (100, 100));
        assert!(Stack::OTHER.to_string().contains("65536"));
        assert_eq!(table.intern(&[0, 7], 100), Stack(8), "what is there is found");
        assert_eq!(table.frames(Stack(8)).as_deref(), Some(&[0, 7][..]));
        assert_eq!((table.frames(Stack::NONE), table.frames(Stack(101))), (None, None));
    }

    #[test]
    fn files_of_the_library_are_told_from_the_programs() {
        for own in [
            "/home/a/.cargo/registry/src/index-1/backtrace-0.3.77/src/backtrace/mod.rs",
            "/home/a/.cargo/registry/src/index-1/forebay-0.1.0/src/pool/api.rs",
            "/rustc/59807616/library/core/src/ops/function.rs",
            "/home/a/forebay/crates/forebay/src/pool/api.rs",
            "crates/forebay-trace/src/record.rs",
        ] {
            assert!(is_own("name", Some(Path::new(own))), "{own}");
        }
        for others in [
            "/home/a/.cargo/registry/src/index-1/burn-0.1.0/src/lib.rs",
            "/home/a/forebay/crates/forebay-trace/src/record/tests.rs",
            "/home/a/forebay-users/src/main.rs",
            "src/main.rs",
        ] {
            assert!(!is_own("name", Some(Path::new(others))), "{others}");
        }
        assert!(is_own("forebay_alloc", None) && is_own("<forebay::pool::Pool>::allocate", None));
        assert!(!is_own("forebay_users::main", None));
    }
}
