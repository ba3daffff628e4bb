use core::cell::Cell;

use super::*;

/// Counts its drops.
#[derive(Debug)]
struct Counted<'a>(&'a Cell<u32>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn a_value_is_dropped_once_by_the_process_that_made_it() {
    let drops = Cell::new(0);
    let mut kept = LeakOnFork::new(Counted(&drops));
    assert!(kept.get().is_ok() && kept.get_mut().is_ok());
    drop(kept);
    assert_eq!(drops.get(), 1);
    let taken = LeakOnFork::new(Counted(&drops)).take();
    assert!(taken.is_ok());
    assert_eq!(drops.get(), 1, "the value is the caller's now");
    drop(taken);
    assert_eq!(drops.get(), 2);
}

#[test]
fn a_value_of_another_process_is_leaked() {
    let drops = Cell::new(0);
    // The generation that a child of this process has.
    let fork_generation = ForkGeneration(ForkGeneration::here().0.wrapping_add(1));
    let foreign = || LeakOnFork { value: ManuallyDrop::new(Counted(&drops)), fork_generation };
    assert_eq!(foreign().get().err(), Some(Forked));
    assert_eq!(foreign().get_mut().err(), Some(Forked));
    assert_eq!(foreign().take().err(), Some(Forked));
    assert_eq!(drops.get(), 0);
}

#[test]
#[cfg(all(unix, not(miri)))]
fn a_descriptor_is_closed_in_a_child_and_by_its_drop() {
    let (reader, writer) = std::io::pipe().unwrap();
    let writer = ProcessFd::new(writer.into());
    // SAFETY: the child makes one system call at a time, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(if writer.get().is_err() { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child is this test's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child could use it");
    // SAFETY: as above: a child that sleeps for ever, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
    assert!(writer.get().is_ok());
    drop(writer);
    // The pipe has no writer any more, while the child lives: reading ends. It is not known when the child has run
    // its handlers, but reading waits for that.
    let rest = std::io::read_to_string(reader);
    // SAFETY: as above.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, &raw mut status, 0)) };
    assert_eq!(rest.unwrap(), "");
}

#[test]
#[cfg(all(unix, not(miri)))]
fn a_number_that_is_another_file_by_now_is_left_alone() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let bound = ProcessFd::new(writer.into());
    let raw = bound.get().unwrap().as_raw_fd();
    // As a program does that closes descriptors it does not know, and opens its own.
    let other = std::fs::File::open("/").unwrap();
    // SAFETY: the descriptor is this test's, and replaced by another.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), raw) }, raw);
    // SAFETY: the child makes one system call, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(libc::fcntl(raw, libc::F_GETFD)) };
    }
    let mut status = -1;
    // SAFETY: the child is this test's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "a child closed the program's file");
    drop(bound);
    assert_eq!(file(raw), file(other.as_raw_fd()), "the drop closed the program's file");
    // SAFETY: it is this test's, and nothing else uses it.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
}
