//! Creating and opening.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use forebay::named::{SharedError, SharedOptions};
use forebay::{Bytes, Error, SharedBuffer};

use crate::party::{LENGTH, PART, Party, check_part, memory, name, pattern};
use crate::{Step, ensure};

/// Whether a call failed as expected.
macro_rules! ensure_refused {
    ($result:expr, $pattern:pat $(if $condition:expr)?) => {
        match $result {
            Err(Error::Shared(error)) => {
                ensure!(matches!(&*error, $pattern $(if $condition)?), "refused with {error}");
                ensure!(!error.to_string().is_empty(), "no words");
            }
            other => return Err(format!("not refused: {other:?}").into()),
        }
    };
}

pub(crate) fn data(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("data");
    let one = memory.shared::<u64>(&name, LENGTH)?;
    let two = memory.open_shared::<u64>(&name)?;
    ensure!(two.to_vec()? == vec![0; LENGTH], "new elements are not zero");
    one.write(0, &pattern(0, 1))?;
    check_part(&two, 0, 1)?;
    two.fill(7)?;
    ensure!(one.to_vec()? == vec![7; LENGTH], "the fill did not arrive");
    ensure!(one.write(LENGTH - 1, &[1, 2]).is_err(), "written past the end");
    ensure!(one.read(usize::MAX, &mut [1, 2]).is_err(), "read past the end");
    ensure!(one.to_vec()? == vec![7; LENGTH], "a refused call has written");
    ensure!((two.len(), two.size()) == (LENGTH, Bytes::new(8 * LENGTH as u64)), "wrong figures");
    let creator = two.creator();
    // SAFETY: it has no conditions.
    let user = unsafe { libc::geteuid() };
    ensure!((creator.pid, creator.uid) == (std::process::id(), user), "{creator:?}");
    // Odd sizes: parts of words.
    let bytes = memory.shared::<u8>(&format!("{name}-bytes"), 1003)?;
    bytes.write(5, &[1; 990])?;
    bytes.write(11, &[2, 3, 4])?;
    let found = bytes.to_vec()?;
    ensure!(found[..5] == [0; 5] && found[995..] == [0; 8], "written beside the range");
    ensure!(found[10..15] == [1, 2, 3, 4, 1], "{:?}", &found[10..15]);
    let empty = memory.shared::<u8>(&format!("{name}-empty"), 0)?;
    ensure!(empty.is_empty() && empty.to_vec()?.is_empty(), "an empty buffer has elements");
    Ok(())
}

pub(crate) fn refusals(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("refusals");
    ensure_refused!(memory.open_shared::<f32>(&name), SharedError::NotFound { .. });
    let kept = memory.shared::<f32>(&name, 100)?;
    ensure_refused!(memory.shared::<f32>(&name, 100), SharedError::Taken { .. });
    ensure_refused!(memory.open_shared::<u32>(&name), SharedError::WrongType { .. });
    ensure_refused!(memory.open_shared::<f64>(&name), SharedError::WrongType { .. });
    ensure_refused!(memory.open_shared::<[f32; 2]>(&name), SharedError::WrongType { .. });
    ensure_refused!(
        memory.shared_or_open::<f32>(&name, 101),
        SharedError::WrongLength { expected: 101, found: 100, .. }
    );
    let renamed = SharedOptions::new().type_name("sample");
    ensure_refused!(renamed.open::<f32>(&memory, &name), SharedError::WrongType { .. });
    let other = crate::party::memory(if device == "host" { "sim" } else { "host" })?;
    ensure_refused!(other.open_shared::<f32>(&name), SharedError::WrongDevice { .. });
    ensure!(memory.shared::<()>("nothing", 1).is_err(), "elements without bytes");
    ensure!(memory.shared::<u64>("all", usize::MAX / 8).is_err(), "more than all addresses");
    ensure!(memory.shared::<u64>("all", usize::MAX).is_err(), "more than a number");
    ensure!(memory.open_shared::<f32>(&name)?.len() == 100, "spoilt by refusals");
    drop(kept);
    ensure_refused!(memory.open_shared::<f32>(&name), SharedError::NotFound { .. });
    Ok(())
}

pub(crate) fn names(device: &str) -> Step {
    let memory = memory(device)?;
    for bad in ["", "a b", "a/b", "ä", "a\0", &"n".repeat(81)] {
        ensure_refused!(memory.shared::<u8>(bad, 1), SharedError::InvalidName { .. });
        ensure_refused!(memory.open_shared::<u8>(bad), SharedError::InvalidName { .. });
        ensure_refused!(memory.shared_or_open::<u8>(bad, 1), SharedError::InvalidName { .. });
    }
    let long = format!("{:x<80}", name("A.b_c-"));
    let kept = memory.shared::<u8>(&long, 1)?;
    ensure!(memory.open_shared::<u8>(&long)?.name() == kept.name(), "another name");
    Ok(())
}

pub(crate) fn names_end(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("ends");
    for round in 0..200 {
        let one = memory.shared::<u64>(&name, 10)?;
        let two = (round % 2 == 0).then(|| memory.open_shared::<u64>(&name)).transpose()?;
        drop(one);
        if let Some(two) = two {
            ensure_refused!(memory.shared::<u64>(&name, 10), SharedError::Taken { .. });
            drop(memory.open_shared::<u64>(&name)?);
            drop(two);
        }
    }
    Ok(())
}

pub(crate) fn creating_threads(device: &str) -> Step {
    let memory = memory(device)?;
    for round in 0..20 {
        let name = name(&format!("threads-{round}"));
        let barrier = Barrier::new(8);
        let made: Vec<_> = thread::scope(|scope| {
            let create = || {
                barrier.wait();
                memory.shared::<u64>(&name, 100)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let won = made.iter().filter(|made| made.is_ok()).count();
        ensure!((made.len(), won) == (8, 1), "{won} of {} created it", made.len());
        for lost in made.into_iter().filter(Result::is_err) {
            ensure_refused!(lost, SharedError::Taken { .. });
        }
    }
    Ok(())
}

fn start(count: usize, device: &str, name: &str) -> Step<Vec<Party>> {
    (0..count).map(|_| Party::start("partner", device, name)).collect()
}

pub(crate) fn creating_processes(device: &str) -> Step {
    let name = name("processes");
    let mut parties = start(3, device, &name)?;
    for _ in 0..10 {
        parties.iter_mut().try_for_each(|party| party.tell("create"))?;
        let answers: Vec<String> = parties.iter_mut().map(Party::answer).collect::<Step<_>>()?;
        let won = answers.iter().filter(|answer| *answer == "ok").count();
        ensure!(won == 1, "{won} created it: {answers:?}");
        parties.iter_mut().try_for_each(|party| party.ask("drop", "ok"))?;
    }
    Ok(())
}

pub(crate) fn create_or_open(device: &str) -> Step {
    let name = name("either");
    let mut parties = start(3, device, &name)?;
    for _ in 0..20 {
        parties.iter_mut().try_for_each(|party| party.tell("either"))?;
        for party in &mut parties {
            let answer = party.answer()?;
            ensure!(answer == "ok", "{answer}");
        }
        // All have the same one.
        let before = parties.len();
        parties.iter_mut().try_for_each(|party| party.ask("add 5", "ok"))?;
        let mut counter = [0];
        memory(device)?.open_shared::<u64>(&name)?.read(3 * PART, &mut counter)?;
        ensure!(counter == [5 * before as u64], "{counter:?}");
        parties.iter_mut().try_for_each(|party| party.tell("drop"))?;
        parties.iter_mut().try_for_each(|party| party.answer().map(drop))?;
    }
    Ok(())
}

pub(crate) fn death_of_the_creator(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("death");
    let mut creator = Party::start("partner", device, &name)?;
    creator.ask("create", "ok")?;
    creator.ask("turn", "ok")?;
    let kept = memory.open_shared::<u64>(&name)?;
    let pid = creator.child.id();
    drop(creator);
    check_part(&kept, 1, 1)?;
    ensure!(kept.creator().pid == pid, "another creator");
    kept.write(0, &pattern(0, 3))?;
    // The name still works, and so it does when the second is gone too.
    let mut third = Party::start("partner", device, &name)?;
    third.ask("open", "ok")?;
    third.ask("seen 3", "ok")?;
    drop(kept);
    let again = memory.open_shared::<u64>(&name)?;
    check_part(&again, 0, 3)?;
    drop(third);
    drop(again);
    ensure_refused!(memory.open_shared::<u64>(&name), SharedError::NotFound { .. });
    drop(memory.shared::<u64>(&name, 3)?);
    Ok(())
}

pub(crate) fn stopped(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("stopped");
    let mut alone = Party::start("partner", device, &name)?;
    alone.ask("create", "ok")?;
    alone.stop();
    let begun = Instant::now();
    let hasty = SharedOptions::new().patience(Duration::from_millis(300));
    ensure_refused!(
        hasty.open::<u64>(&memory, &name),
        SharedError::NoAnswer { attempts, waited, .. }
            if *attempts > 0 && waited.as_millis() >= 300
    );
    ensure!(begun.elapsed() < Duration::from_secs(3), "took {:?}", begun.elapsed());
    alone.go_on();
    let kept = memory.open_shared::<u64>(&name)?;
    alone.stop();
    // This process has the name too, and answers itself.
    for _ in 0..50 {
        drop(memory.open_shared::<u64>(&name)?);
    }
    alone.go_on();
    drop(kept);
    Ok(())
}

pub(crate) fn other_user(device: &str) -> Step {
    let memory = memory(device)?;
    let name = name("user");
    let own = memory.shared::<u64>(&name, LENGTH)?;
    let any = SharedOptions::new().any_user();
    let open: SharedBuffer<u64> = any.create(&memory, &format!("{name}-any"), LENGTH)?;
    open.write(0, &pattern(0, 1))?;
    let mut stranger = Party::start("stranger", device, &name)?;
    let refused = stranger.answer()?;
    ensure!(refused.starts_with("no living process"), "{refused}");
    let opened = stranger.answer()?;
    ensure!(opened == "ok", "{opened}");
    // Anybody can take a name; nobody is taken in by it.
    let taken = format!("{name}-taken");
    ensure_refused!(
        memory.open_shared::<u64>(&taken),
        SharedError::OtherUser { owner: 54321, user: 0, .. }
    );
    ensure_refused!(memory.shared::<u64>(&taken, 1), SharedError::Taken { .. });
    drop((own, open));
    Ok(())
}
