//! The lock between processes and threads.

use std::thread;
use std::time::{Duration, Instant};

use forebay::Error;
use forebay::named::SharedError;

use crate::party::{LENGTH, PART, Party, add, memory, name};
use crate::{Step, ensure};

pub(crate) fn exclusion(device: &str) -> Step {
    const ADDS: u64 = 300;
    let memory = memory(device)?;
    let name = name("exclusion");
    let buffer = memory.shared::<u64>(&name, LENGTH)?;
    let second = memory.open_shared::<u64>(&name)?;
    let mut parties: Vec<Party> =
        (0..2).map(|_| Party::start("partner", device, &name)).collect::<Step<_>>()?;
    parties.iter_mut().try_for_each(|party| party.ask("open", "ok"))?;
    parties.iter_mut().try_for_each(|party| party.tell(&format!("add {ADDS}")))?;
    // Two threads with one handle, and two with another.
    let done: Vec<Step> = thread::scope(|scope| {
        let threads: Vec<_> = [&buffer, &buffer, &second, &second]
            .into_iter()
            .map(|buffer| scope.spawn(move || (0..ADDS).try_for_each(|_| add(buffer))))
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    done.into_iter().collect::<Step<Vec<()>>>()?;
    for party in &mut parties {
        let answer = party.answer()?;
        ensure!(answer == "ok", "{answer}");
    }
    let mut counter = [0];
    buffer.read(3 * PART, &mut counter)?;
    ensure!(counter == [6 * ADDS], "{} of {} were counted", counter[0], 6 * ADDS);
    Ok(())
}

pub(crate) fn limits(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("limits");
    let (one, two) = (memory.shared::<u64>(&name, 1)?, memory.open_shared::<u64>(&name)?);
    let held = one.lock()?;
    match one.lock() {
        Err(Error::Shared(error)) => ensure!(*error == SharedError::AlreadyLocked, "{error}"),
        other => return Err(format!("locked twice: {other:?}").into()),
    }
    let begun = Instant::now();
    ensure!(two.try_lock_for(Duration::ZERO)?.is_none(), "two handles hold it");
    ensure!(two.try_lock_for(Duration::from_millis(50))?.is_none(), "two handles hold it");
    ensure!(begun.elapsed() >= Duration::from_millis(50), "it did not wait");
    let other = thread::scope(|scope| {
        let thread = scope.spawn(|| Ok(one.try_lock_for(Duration::from_millis(20))?.is_some()));
        thread.join().unwrap_or_else(|_| Err("a panic".into()))
    });
    ensure!(!(other as Step<bool>)?, "two threads hold it");
    drop(held);
    ensure!(two.try_lock_for(Duration::ZERO)?.is_some(), "it is still held");
    drop(one.lock()?);
    Ok(())
}

pub(crate) fn killed_holder(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("holder");
    let buffer = memory.shared::<u64>(&name, LENGTH)?;
    let mut holder = Party::start("partner", device, &name)?;
    holder.ask("open", "ok")?;
    holder.ask("lock", "ok")?;
    ensure!(buffer.try_lock_for(Duration::ZERO)?.is_none(), "it is not held");
    let begun = Instant::now();
    let freed = thread::scope(|scope| {
        let waiting = scope.spawn(|| buffer.lock().map(drop));
        thread::sleep(Duration::from_millis(20));
        drop(holder);
        waiting.join().is_ok_and(|locked| locked.is_ok())
    });
    ensure!(freed && begun.elapsed() < Duration::from_secs(5), "took {:?}", begun.elapsed());
    Ok(())
}

pub(crate) fn forked(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("forked");
    let buffer = memory.shared::<u64>(&name, LENGTH)?;
    let second = memory.open_shared::<u64>(&name)?;
    let lock = buffer.lock()?;
    let mut pipe = [0; 2];
    // SAFETY: there is room for both ends.
    ensure!(unsafe { libc::pipe(pipe.as_mut_ptr()) } == 0, "no pipe");
    // SAFETY: the child makes system calls, tries what it inherited, and sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = buffer.to_vec().is_err()
            && buffer.write(0, &[1]).is_err()
            && buffer.lock().is_err()
            && buffer.as_ptr().is_none()
            && memory.open_shared::<u64>(&name).is_err();
        drop(lock);
        drop(buffer);
        // SAFETY: one byte can be read there; the pause ends with the process.
        unsafe {
            libc::write(pipe[1], (&raw const refused).cast(), 1);
            libc::pause();
            libc::_exit(0);
        }
    }
    let mut refused = 0_u8;
    // SAFETY: one byte can be written there.
    let read = unsafe { libc::read(pipe[0], (&raw mut refused).cast(), 1) };
    let mut still_held = second.try_lock_for(Duration::ZERO)?.is_none();
    drop(lock);
    still_held &= second.try_lock_for(Duration::ZERO)?.is_some();
    drop((buffer, second));
    // The child lives, and has neither the name nor the lock.
    let made = memory.shared::<u64>(&name, LENGTH).map(drop);
    // SAFETY: the child is this test's own, and the pipe too.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    ensure!((read, refused) == (1, 1), "the child could use what it inherited");
    ensure!(still_held, "the child let go of the lock, or kept it");
    Ok(made?)
}
