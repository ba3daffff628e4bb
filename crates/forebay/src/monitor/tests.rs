//! What a snapshot of a process has, and how it is written.

use super::program::{Started, started};
use super::snapshot::{ProcessPool, TagTotals, shown_name};
use super::*;

#[test]
fn names_are_cut() {
    assert_eq!(shown_name(&"é".repeat(1000)).chars().count(), 64);
}

#[test]
fn the_snapshot_of_a_process_names_it_and_nothing_secret() {
    let mut snapshot = ProcessSnapshot::of_this_process();
    snapshot.pools.push(ProcessPool { pool: 3, ..ProcessPool::default() });
    let text = snapshot.to_json();
    let pid = std::process::id();
    assert!(text.starts_with(r#"{"schema":"forebay.process.v1","version":""#), "{text}");
    assert!(text.contains(&format!(r#""pid":{pid},"process":""#)), "{text}");
    assert!(
        text.contains(r#""pools":[{"pool":3,"name":"","kind":"","#) && !text.contains('\n'),
        "{text}"
    );
    // Neither a path nor an argument.
    assert!(!text.contains('/'), "{text}");
}

#[test]
fn a_script_is_known_by_its_command_line() {
    for (line, script) in [
        ("python3\0train.py\0--lr\0x\0", "train.py"),
        ("/usr/bin/python3.12\0-u\0/home/someone/secret/train.py\0--token=s3cret\0", "train.py"),
        ("python\0-m\0torch.distributed.run\0train.py\0", "torch.distributed.run"),
        ("python\0-um\0pkg.train\0", "pkg.train"),
        ("python\0-mpkg.train\0", "pkg.train"),
        ("python\0-X\0dev\0-Wignore\0--check-hash-based-pycs\0always\0a.py\0", "a.py"),
        ("python\0-m\0forebay.torch\0train.py\0", "train.py"),
        ("python\0-m\0forebay.torch\0-m\0pkg.train\0", "pkg.train"),
    ] {
        assert_eq!(started(line), Started::Script(script.to_owned()), "{line}");
    }
    let worker = "python\0-c\0from multiprocessing.spawn import spawn_main; spawn_main()\0--multiprocessing-fork\0";
    assert_eq!(started(worker), Started::Worker);
    for line in [
        "",
        "\0",
        "python\0",
        "python\0-c\0import a\0",
        "cargo\0run.py\0",
        "python\0-X",
        "python\0-\0",
        "python\0/\0",
    ] {
        assert_eq!(started(line), Started::Other, "{line:?}");
    }
}

#[test]
fn other_versions_and_long_lists_are_read() {
    let mut snapshot = ProcessSnapshot::of_this_process();
    let tags = vec![TagTotals { tag: "\"quoted\"".to_owned(), live_bytes: u64::MAX }];
    snapshot.pools = vec![ProcessPool { tags, ..ProcessPool::default() }, ProcessPool::default()];
    let text = snapshot.to_json();
    assert_eq!(serde_json::from_str::<ProcessSnapshot>(&text).unwrap(), snapshot);
    // What a later version adds is passed over, and what an earlier one lacks is 0.
    let other = r#"{"schema":"forebay.process.v1","pid":1,"later":[{}]}"#;
    assert_eq!(serde_json::from_str::<ProcessSnapshot>(other).unwrap().pid, 1);
    // A list without end is cut where forebay's own end.
    let long = format!(r#"{{"pools":[{}{{}}],"pid":1}}"#, "{},".repeat(100_000));
    let read = serde_json::from_str::<ProcessSnapshot>(&long).unwrap();
    assert_eq!((read.pools.len(), read.pid), (ProcessSnapshot::MAX_POOLS, 1));
    assert!(read.pools.capacity() <= 2 * ProcessSnapshot::MAX_POOLS);
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_does_not_listen_is_not_found() {
    // No process has this number: it is beyond the most that a system can have.
    let pid = u32::MAX;
    let read = Endpoint::of(pid).read(Duration::from_millis(100));
    assert_eq!(read, Err(MonitorError::NotFound { pid }));
    assert!(endpoints().iter().all(|endpoint| endpoint.pid != pid));
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_peer_that_does_not_read_is_left_in_time() {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    // More than any socket takes at once.
    let text = vec![b'x'; 16 << 20];
    let (silent, ours) = UnixStream::pair().unwrap();
    let begun = Instant::now();
    service::answer(ours.as_fd(), &text);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(10), "{took:?}");
    drop(silent);

    // One that goes away raises no signal, and one that reads gets all of it.
    let (gone, ours) = UnixStream::pair().unwrap();
    drop(gone);
    service::answer(ours.as_fd(), &text);
    let (mut reader, ours) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || service::answer(ours.as_fd(), &[b'y'; 64 << 10]));
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    thread.join().unwrap();
    assert_eq!(read.len(), 64 << 10);
}
