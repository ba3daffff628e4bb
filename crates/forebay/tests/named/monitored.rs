//! A process is read by another, while it works, is stopped, forks and is killed.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use forebay::buffer::BufferManager;
use forebay::monitor::{Endpoint, MonitorError, endpoints};

use crate::party::{Party, name, say};
use crate::{Step, ensure};

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

fn address(user: u32, pid: u32) -> Step<SocketAddr> {
    Ok(SocketAddr::from_abstract_name(format!("forebay.monitor/{user}/{pid}/0"))?)
}

/// The user of this process.
fn user() -> u32 {
    // SAFETY: it has no conditions.
    unsafe { libc::geteuid() }
}

/// Found and read while it lives, whatever other readers do; gone as soon as it is killed.
pub(crate) fn life(device: &str) -> Step {
    let mut partner = Party::start("partner", device, &name("watched"))?;
    partner.ask("create", "ok")?;
    let pid = partner.child.id();
    let endpoint = Endpoint::of(pid);
    // Another program's socket may have a name that is no text.
    let odd = [b"forebay-test-\xff".as_slice(), pid.to_string().as_bytes()].concat();
    let _odd = UnixListener::bind_addr(&SocketAddr::from_abstract_name(odd)?)?;
    ensure!(endpoints().contains(&endpoint), "{pid} is not listed: {:?}", endpoints());
    let text = endpoint.read(PATIENCE)?;
    for part in [
        r#"{"schema":"forebay.process.v1","version":""#,
        &format!(r#""pid":{pid},"process":"named"#),
        r#""pools":[{"pool":"#,
        r#""buffers":[{"manager":1,"#,
        r#""shared":1,"#,
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    // Readers that connect and do nothing else hold up neither the process nor the next reader.
    let silent: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect_addr(&address(user(), pid)?).map_err(Into::into))
        .collect::<Step<_>>()?;
    partner.ask("turn", "ok")?;
    endpoint.read(PATIENCE)?;
    drop(silent);
    partner.stop();
    let begun = Instant::now();
    let stopped = endpoint.read(Duration::from_millis(100));
    ensure!(matches!(stopped, Err(MonitorError::NoAnswer { received: 0, .. })), "{stopped:?}");
    ensure!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    partner.go_on();
    endpoint.read(PATIENCE)?;
    drop(partner);
    let gone = endpoint.read(PATIENCE);
    ensure!(gone == Err(MonitorError::NotFound { pid }), "{gone:?}");
    ensure!(!endpoints().contains(&endpoint), "{pid} is still listed");
    Ok(())
}

/// A forked child does not answer for its parent, and answers for itself once it has a pool.
pub(crate) fn forked(_: &str) -> Step {
    let _memory = BufferManager::host()?;
    Endpoint::of(std::process::id()).read(PATIENCE)?;
    // SAFETY: the child makes a pool, which a child may, and sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _memory = BufferManager::host();
        loop {
            std::thread::sleep(PATIENCE);
        }
    }
    let endpoint = Endpoint::of(child.cast_unsigned());
    let begun = Instant::now();
    let read = loop {
        match endpoint.read(PATIENCE) {
            Err(MonitorError::NotFound { .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            read => break read,
        }
    };
    let own = Endpoint::of(std::process::id()).read(PATIENCE);
    // SAFETY: the child is this test's own.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    let read = read?;
    ensure!(read.contains(&format!(r#""pid":{child},"#)), "the child says it is another: {read}");
    let managers = read.matches(r#"{"manager":"#).count();
    ensure!(managers == 1, "the child shows managers of its parent: {read}");
    ensure!(own?.contains(&format!(r#""pid":{},"#, std::process::id())), "the parent too");
    Ok(())
}

/// Another user gets nothing, and cannot pass for a process of this one.
pub(crate) fn other_user(device: &str) -> Step {
    let _memory = BufferManager::host()?;
    let pid = std::process::id();
    let mut outsider = Party::start("outsider", device, &pid.to_string())?;
    let answer = outsider.answer()?;
    ensure!(answer == "0 bytes", "another user got {answer}");
    let read = Endpoint::of(u32::MAX).read(PATIENCE);
    let expected = Err(MonitorError::OtherUser { pid: u32::MAX, owner: 54321 });
    ensure!(read == expected, "{read:?}");
    Endpoint::of(pid).read(PATIENCE)?;
    // A crowd of its connections keeps this user waiting for a moment, and not behind each of them.
    outsider.ask("crowd", "ok")?;
    for _ in 0..5 {
        let begun = Instant::now();
        Endpoint::of(pid).read(PATIENCE)?;
        let took = begun.elapsed();
        ensure!(took < Duration::from_millis(1500), "answered after {took:?}");
    }
    Ok(())
}

/// Connects as another user, and listens under a name of the test's.
pub(crate) fn outsider(pid: &str) -> Step {
    // SAFETY: no other thread runs here yet.
    ensure!(unsafe { libc::setuid(54321) } == 0, "cannot become another user");
    let _taken = UnixListener::bind_addr(&address(0, u32::MAX)?)?;
    let mut stream = UnixStream::connect_addr(&address(0, pid.parse()?)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    let read = stream.read_to_end(&mut text);
    say(&read.map_or_else(|error| error.to_string(), |count| format!("{count} bytes")));
    let crowded = address(0, pid.parse()?)?;
    for _ in std::io::stdin().lines() {
        let crowded = crowded.clone();
        std::thread::spawn(move || {
            loop {
                drop(UnixStream::connect_addr(&crowded));
            }
        });
        say("ok");
    }
    Ok(())
}
