//! What the monitor makes of what it reads: figures, warnings, and names that want to be more than names.

use forebay::monitor::{Endpoint, ProcessSnapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
#[cfg(target_os = "linux")]
use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr, unix::net::UnixListener};
use std::time::Duration;

use super::metrics::{self, Format};
use super::nvml::Gpu;
use super::order::{Order, SortKey};
use super::sample::{Sample, Watch, read_all};
use super::view::{View, bar};
use super::*;

const NAME: &str = "<script>\"\\\n\u{1b}[31m";

/// A process with two pools, one of them near its limit, after `allocations`.
fn snapshot(taken: u64, allocations: u64) -> ProcessSnapshot {
    let pool = |number: u64, held: u64| {
        json!({
            "pool": number, "kind": "sim", "ordinal": 0, "device": NAME, "pressure": "high",
            "limit_bytes": 1000, "group_held_bytes": held, "held_bytes": held, "live_bytes": 400,
            "requested_bytes": held / 2, "allocations": allocations, "peak_held_bytes": held,
            "driver_calls": 5, "driver_ns": 2_500_000,
            "driver_latency": [{"at_most_ns": 1000, "count": 2}, {"at_most_ns": u64::MAX, "count": 3}],
            "tags": [{"tag": NAME, "live_bytes": 300}, {"tag": "untagged", "live_bytes": 100}],
            "streams": [{"stream": 16, "allocations": 7}, {"stream": 1, "allocations": 2}],
        })
    };
    let process = json!({
        "schema": "forebay.process.v1", "taken_unix_ms": taken, "pid": 42, "process": NAME,
        "pools": [pool(1, 500), pool(2, 950)],
        "engines": [{"engine": 1, "kind": "sim", "uploads": {"bytes": 77, "transfers": 1, "busy_ns": 1}}],
        "buffers": [{"manager": 1, "buffers": 2, "created": 3, "host_bytes": 9}],
    });
    serde_json::from_value(process).unwrap()
}

fn gpu(used_bytes: u64) -> Gpu {
    let name = "NVIDIA \"H200\"".to_owned();
    Gpu { index: 0, name, total_bytes: 1000, used_bytes, busy_percent: Some(25) }
}

fn watched() -> (Watch, Sample) {
    let mut watch = Watch::new(None);
    let endpoint = Endpoint::of(42);
    watch.sample_of(vec![(endpoint, Ok(snapshot(1000, 100)))], Vec::new(), None);
    let gone = (Endpoint::of(43), Err(("process 43 does not answer".to_owned(), true)));
    let read = vec![(endpoint, Ok(snapshot(3000, 1100))), gone];
    let sample = watch.sample_of(read, vec![gpu(950)], None);
    (watch, sample)
}

#[test]
fn rates_are_a_second_and_warnings_come_above_nine_tenths() {
    let (watch, sample) = watched();
    assert_eq!(sample.processes[0].rates[0].allocations, Some(500.0));
    let held = watch.moments((Endpoint::of(42), 2)).map(|moment| moment.held);
    assert_eq!(held.collect::<Vec<_>>(), [950; 2]);
    let expected = [
        "GPU 0: 95 % of 1000 B is in use",
        "process 42, pool 2: 95 % of its limit of 1000 B is held",
    ];
    assert_eq!(sample.warnings, expected);
    let json: Value = serde_json::from_str(&sample.json().unwrap()).unwrap();
    assert_eq!(json["processes"][0]["rates"][0]["allocations_per_second"], 500.0);
    assert_eq!(json["schema"], "forebay.monitor.v1");
    assert_eq!(json["processes"][0]["pools"][1]["held_bytes"], 950);
    assert_eq!(json["unreadable"][0]["pid"], 43);
}

#[test]
fn a_table_has_the_figures_and_steers_no_terminal() {
    let (_, sample) = watched();
    let mut out = Vec::new();
    text::write(&sample, Width::new(160), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(!out.contains(NAME) && !out.contains("\\\n"), "{out}");
    // Without the styles, which stand between words.
    let out = anstream::adapter::strip_str(&out).to_string();
    for part in ["400 B", "950 B", "95 %", "50.0 %", "500", "GPU 0", "warning: process 42", "77 B"]
    {
        assert!(out.contains(part), "{part} is not in {out}");
    }
}

#[test]
fn a_process_without_pools_is_named() {
    let process = json!({
        "schema": "forebay.process.v1", "pid": 42, "process": "trainer",
        "buffers": [{"created": 1, "host_bytes": 77}],
    });
    let process: ProcessSnapshot = serde_json::from_value(process).unwrap();
    let mut watch = Watch::new(None);
    // Beside one with pools, what it has is not told as theirs.
    let both =
        vec![(Endpoint::of(41), Ok(snapshot(1, 1))), (Endpoint::of(42), Ok(process.clone()))];
    let mut out = Vec::new();
    text::write(&watch.sample_of(both, Vec::new(), None), Width::new(200), &mut out).unwrap();
    let out = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
    let owned = |line: &&str| line.contains("77 B on the host");
    let line = out.lines().find(owned).unwrap();
    assert!(line.contains("process 42 trainer"), "{out}");
    let sample = watch.sample_of(vec![(Endpoint::of(42), Ok(process))], Vec::new(), None);
    let mut out = Vec::new();
    text::write(&sample, Width::new(80), &mut out).unwrap();
    let mut view = View::new(watch, sample, Duration::from_secs(1), Order::default());
    let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let table = String::from_utf8(out).unwrap();
    let table = anstream::adapter::strip_str(&table).to_string();
    for shown in [table, terminal.backend().to_string()] {
        assert!(shown.contains("process 42 trainer has no pool now"), "{shown}");
        assert!(!shown.contains("no process of this user"), "{shown}");
    }
}

#[test]
fn metrics_are_of_their_format() {
    let (_, sample) = watched();
    let text = metrics::write(&sample, Format::Prometheus);
    let pool = r#"pid="42",process="<script>\"\\\n"#;
    for line in [
        "# TYPE forebay_pool_held_bytes gauge",
        "# TYPE forebay_pool_allocations_total counter",
        "# TYPE forebay_pool_driver_call_duration_seconds histogram",
        r#"forebay_process_up{pid="43"} 0"#,
        r#"forebay_gpu_memory_used_bytes{gpu="0",name="NVIDIA \"H200\""} 950"#,
        r#"forebay_gpu_busy_ratio{gpu="0",name="NVIDIA \"H200\""} 0.25"#,
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
    }
    for (start, end) in [
        ("forebay_pool_allocations_total{", " 1100"),
        ("forebay_pool_driver_call_duration_seconds_bucket{", ",le=\"0.000001\"} 2"),
        ("forebay_pool_driver_call_duration_seconds_bucket{", ",le=\"+Inf\"} 5"),
        ("forebay_pool_driver_call_duration_seconds_sum{", "} 0.0025"),
        ("forebay_tag_live_bytes{", ",tag=\"untagged\"} 100"),
        ("forebay_transfer_bytes_total{", "direction=\"to_device\"} 77"),
    ] {
        let fits = |line: &&str| line.starts_with(start) && line.ends_with(end);
        let found = text.lines().find(fits).unwrap_or_else(|| panic!("{start}{end}: {text}"));
        assert!(found.contains(pool), "{found}");
    }
    // Every family is whole: its samples follow its two lines of comment and nothing else.
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        assert!(families.insert(line.to_owned()), "twice: {line}");
    }
    let open = metrics::write(&sample, Format::OpenMetrics);
    assert!(
        open.ends_with("# EOF\n") && open.contains("# TYPE forebay_pool_allocations counter\n")
    );
    assert_eq!(Format::accepted("application/openmetrics-text;version=1.0.0"), Format::OpenMetrics);
}

/// A process of the user may say anything; and two copies of forebay in one that is stopped are two.
#[test]
fn figures_that_nobody_has_break_nothing() {
    let (most, mut watch) = (u64::MAX, Watch::new(None));
    let bucket = json!({"at_most_ns": most, "count": most});
    let liar = json!({
        "pid": 1, "pools": vec![json!({"driver_latency": [bucket, bucket]}); 1000],
        "buffers": [{"created": most, "shared": most}],
    });
    let mut second = Endpoint::of(43);
    second.copy = 1;
    let silent = || Err(("\u{1b}[31m".to_owned(), false));
    let read = vec![
        (Endpoint::of(42), Ok(serde_json::from_value(liar).unwrap())),
        (Endpoint::of(43), silent()),
        (second, silent()),
    ];
    let sample = watch.sample_of(read, Vec::new(), None);
    assert_eq!(sample.processes[0].snapshot.pid, 42, "it says that it is another");
    assert_eq!(sample.processes[0].snapshot.pools.len(), ProcessSnapshot::MAX_POOLS);
    assert!(!sample.unreadable[0].reason.contains('\u{1b}'), "{:?}", sample.unreadable);
    text::write(&sample, Width::new(160), &mut Vec::new()).unwrap();
    let text = metrics::write(&sample, Format::Prometheus);
    let silent: Vec<&str> =
        text.lines().filter(|line| line.starts_with("forebay_process_up{pid=\"43")).collect();
    let expected =
        [r#"forebay_process_up{pid="43"} 0"#, r#"forebay_process_up{pid="43",copy="1"} 0"#];
    assert_eq!(silent, expected);
}

/// Takes the names of processes that do not exist, from a number on, and answers no connection.
#[cfg(target_os = "linux")]
fn take_names(first: u32, count: u32) -> (Vec<Endpoint>, Vec<UnixListener>) {
    let user = rustix::process::geteuid().as_raw();
    let take = |pid: u32| {
        let name = format!("forebay.monitor/{user}/{pid}/0");
        let address = SocketAddr::from_abstract_name(name).unwrap();
        (Endpoint::of(pid), UnixListener::bind_addr(&address).unwrap())
    };
    (first..first + count).map(take).unzip()
}

/// Beyond the most that any system has; apart from those of the same test beside this one.
#[cfg(target_os = "linux")]
fn no_process() -> u32 {
    (1 << 31) | ((std::process::id() & 0x7f_ffff) << 8)
}

#[test]
#[cfg(target_os = "linux")]
fn processes_beyond_the_most_are_counted() {
    let (silent, _listeners) = take_names(no_process(), 70);
    let (read, left_out) = read_all(&silent, true);
    assert_eq!((read.len(), left_out), (64, 6));
    // Names that lead nowhere are no processes.
    drop(_listeners);
    let (read, left_out) = read_all(&silent, true);
    assert_eq!((read.len(), left_out), (0, 0));
    let (read, _) = read_all(&silent[..1], false);
    assert!(matches!(read[..], [(_, Err((_, true)))]), "{read:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn names_that_take_no_connection_hide_no_process() {
    let options = forebay::PoolOptions::new().set(|set| set.monitor(true));
    let _pool = options.build(&forebay::HostDevice::open().unwrap()).unwrap();
    let own = Endpoint::of(std::process::id());
    let (mut targets, listeners) = take_names(no_process() + 100, 100);
    let mut line = Vec::new();
    for (listener, endpoint) in listeners.iter().zip(&targets) {
        rustix::net::listen(listener, 0).unwrap();
        while let Ok(connection) = endpoint.connect() {
            line.push(connection);
        }
    }
    targets.push(own);
    let begun = std::time::Instant::now();
    let (read, left_out) = read_all(&targets, true);
    let took = begun.elapsed();
    let found: Vec<Endpoint> =
        read.iter().filter(|(_, read)| read.is_ok()).map(|(endpoint, _)| *endpoint).collect();
    assert_eq!(found, [own], "{read:?}");
    // Some of the others are named, and all are counted.
    assert_eq!((read.len(), left_out), (1 + 8, 92), "{read:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_server_is_asked_by_names_that_no_other_site_has() {
    let names = |address: &str, allowed: &[&str]| {
        let allowed = allowed.iter().map(|&name| name.to_owned()).collect();
        serve::Names::of(address.parse().unwrap(), allowed)
    };
    let (local, remote) = (names("127.0.0.1", &[]), names("0.0.0.0", &[]));
    let proxied = names("127.0.0.1", &["gpu7.example.org"]);
    for loopback in ["localhost", "LOCALHOST:9470", "127.0.0.1:9470", "[::1]:9470"] {
        assert!(
            [&local, &remote, &proxied].iter().all(|names| names.allow(loopback)),
            "{loopback}"
        );
    }
    for address in ["10.1.2.3:9470", "[2001:db8::7]:9470"] {
        assert!(remote.allow(address) && !local.allow(address), "{address}");
    }
    for foreign in
        ["evil.example", "evil.example:9470", "10.1.2.3.evil.example", "", "[evil]", "::"]
    {
        assert!([&local, &remote, &proxied].iter().all(|names| !names.allow(foreign)), "{foreign}");
    }
    assert!(proxied.allow("GPU7.example.org:443") && !local.allow("gpu7.example.org"));
    if let Ok(own) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        assert!(remote.allow(&format!("{}:9470", own.trim())) && !local.allow(own.trim()));
    }
}

#[test]
fn clients_that_ask_nothing_give_way_to_further_ones() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connections = serve::Connections::default();
    let connect = || {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (client, listener.accept().unwrap().0)
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        let (client, stream) = connect();
        held.push((client, connections.admit(stream).unwrap()));
    }
    // The first four were closed; the fifth still has its place.
    for (client, _) in &mut held[..4] {
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    held[4].0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(held[4].0.read(&mut [0]).is_err(), "closed though there was room");
}

#[test]
fn the_view_shows_pools_and_follows_keys() {
    let (watch, sample) = watched();
    let mut view = View::new(watch, sample, Duration::from_secs(1), Order::default());
    let mut terminal = Terminal::new(TestBackend::new(140, 30)).unwrap();
    let mut shown = |view: &mut View| {
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    };
    let first = shown(&mut view);
    for part in
        ["1 process, 2 pools", "pool 1 of 42", "! process 42, pool 2", "q quit", "500 B", "77 B"]
    {
        assert!(first.contains(part), "{part} is not in {first}");
    }
    let mut press = |code| view.press(KeyEvent::new(code, KeyModifiers::NONE));
    assert!(!press(KeyCode::Down) && !press(KeyCode::Down) && !press(KeyCode::Char('+')));
    assert!(!press(KeyCode::Char('p')));
    let second = shown(&mut view);
    for part in ["pool 2 of 42", "500ms", "paused"] {
        assert!(second.contains(part), "{part} is not in {second}");
    }
    assert!(view.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
    assert!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert_eq!(bar(25, 50, 100).chars().filter(|&part| part == '\u{2592}').count(), 5);
    assert_eq!([bar(u64::MAX, 7, 1), bar(1, 1, 0)].map(|bar| bar.chars().count()), [20, 20]);
}

/// However narrow the terminal, a pool is shown with its process, its device and what it holds.
#[test]
fn a_narrow_view_keeps_process_and_device() {
    for width in [60, 70, 80, 99, 100, 120, 200] {
        let (watch, sample) = watched();
        let mut view = View::new(watch, sample, Duration::from_secs(1), Order::default());
        let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        for part in ["process", "42 <script>", "device", "sim:0", "held", "950 B"] {
            assert!(shown.contains(part), "{part} is not in {shown} at {width}");
        }
    }
}

/// Three processes: a job of two under torchrun, and one that has a name of its own. Each has a pool on another device.
fn jobs() -> (Watch, Sample) {
    let process = |pid: u64, more: Value, held: u64, requested: u64| {
        let mut process = json!({
            "schema": "forebay.process.v1", "taken_unix_ms": 1, "pid": pid, "process": "python3",
            "pools": [{"pool": 1, "kind": "cuda", "ordinal": pid - 50, "device": "NVIDIA H200", "limit_bytes": 1_u64 << 40,
                "held_bytes": held, "live_bytes": requested, "requested_bytes": requested}],
        });
        process.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let endpoint = Endpoint::of(u32::try_from(pid).unwrap());
        (endpoint, Ok(serde_json::from_value(process).unwrap()))
    };
    let script = "pretrain_a_large_language_model.py";
    let read = vec![
        process(50, json!({"script": script, "rank": 0}), 1 << 30, 1 << 30),
        process(51, json!({"script": script, "rank": 13}), 3 << 30, 1 << 30),
        process(
            52,
            json!({"script": "serve.py", "name": "chat\u{1b}[2J\u{202e}service"}),
            2 << 30,
            0,
        ),
    ];
    let mut watch = Watch::new(None);
    let sample = watch.sample_of(read, Vec::new(), None);
    (watch, sample)
}

fn table(sample: &Sample, width: usize) -> String {
    let mut out = Vec::new();
    text::write(sample, Width::new(width), &mut out).unwrap();
    anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
}

fn pids(sample: &Sample) -> Vec<u64> {
    sample.processes.iter().map(|process| process.snapshot.pid).collect()
}

#[test]
fn a_process_is_called_by_its_name_or_script_and_rank() {
    let (watch, sample) = jobs();
    let titles: Vec<&str> = sample.processes.iter().map(|process| &*process.title).collect();
    let script = "pretrain_a_large_language_model.py";
    assert_eq!(titles, [script, script, "chat\u{fffd}[2J\u{fffd}service"]);
    let json: Value = serde_json::from_str(&sample.json().unwrap()).unwrap();
    assert_eq!(
        (&json["processes"][1]["rank"], &json["processes"][1]["title"]),
        (&json!(13), &json!(script))
    );
    let mut view = View::new(watch, sample.clone(), Duration::from_secs(1), Order::default());
    let mut terminal = Terminal::new(TestBackend::new(160, 30)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    for shown in [table(&sample, 160), terminal.backend().to_string()] {
        for part in ["50 pretrain_a_large", "rank", " 13 ", "chat", "service"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(
            !shown.contains(['\u{1b}', '\u{202e}']) && !shown.contains("51 python3"),
            "{shown}"
        );
    }
    let long = json!({"schema": "forebay.process.v1", "process": "x".repeat(10_000)});
    let long = vec![(Endpoint::of(1), Ok(serde_json::from_value(long).unwrap()))];
    let long = Watch::new(None).sample_of(long, Vec::new(), None);
    assert_eq!(long.processes[0].title.chars().count(), 64);
    let metrics = metrics::write(&sample, Format::Prometheus);
    let labels = format!(r#"{{pid="51",process="python3",script="{script}",rank="13",pool="1","#);
    assert!(metrics.contains(&labels), "{metrics}");
}

#[test]
fn pools_are_sorted_and_filtered() {
    let asked = |sort: SortKey, filter: &str| {
        let (_, mut sample) = jobs();
        let order = Order { sort, filter: filter.to_owned() };
        let rows: Vec<u64> = order.rows(&sample).iter().map(|(of, ..)| of.snapshot.pid).collect();
        order.apply(&mut sample);
        assert_eq!(pids(&sample), rows, "the view and the table");
        rows
    };
    assert_eq!(asked(SortKey::Process, ""), [50, 51, 52]);
    assert_eq!(asked(SortKey::Held, ""), [51, 52, 50]);
    assert_eq!(asked(SortKey::Limit, ""), [50, 51, 52]);
    assert_eq!(asked(SortKey::Waste, ""), [52, 51, 50]);
    assert_eq!(asked(SortKey::Held, "PRETRAIN"), [51, 50]);
    assert_eq!(asked(SortKey::Held, "cuda:1"), [51]);
    assert_eq!(asked(SortKey::Process, "rank 13"), [51]);
    assert_eq!(asked(SortKey::Process, "service"), [52]);
    assert_eq!(asked(SortKey::Process, "nothing"), [0; 0]);
    let (_, mut sample) = jobs();
    Order { sort: SortKey::Held, filter: "nothing".to_owned() }.apply(&mut sample);
    assert!(table(&sample, 80).contains("no pool matches the filter"));
}

#[test]
fn keys_sort_and_filter_the_view() {
    let (watch, sample) = jobs();
    let mut view = View::new(watch, sample, Duration::from_secs(1), Order::default());
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    let mut shown = |view: &mut View| {
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    };
    let press = |view: &mut View, code| view.press(KeyEvent::new(code, KeyModifiers::NONE));
    press(&mut view, KeyCode::Char('s'));
    let sorted = shown(&mut view);
    let place = |pid: &str| sorted.find(&format!("\"{pid} ")).unwrap_or_else(|| panic!("{sorted}"));
    assert!(place("51") < place("52") && place("52") < place("50"), "{sorted}");
    assert!(sorted.contains("by held"), "{sorted}");
    press(&mut view, KeyCode::Char('/'));
    // While the filter is typed, letters are letters.
    for letter in "qserve".chars() {
        assert!(!press(&mut view, KeyCode::Char(letter)));
    }
    assert!(shown(&mut view).contains("no pool matches the filter"));
    for _ in 0..6 {
        press(&mut view, KeyCode::Backspace);
    }
    "serve".chars().for_each(|letter| assert!(!press(&mut view, KeyCode::Char(letter))));
    press(&mut view, KeyCode::Enter);
    let found = shown(&mut view);
    assert!(
        found.contains("1 pool,")
            && found.contains("with \"serve\"")
            && !found.contains("51 pretrain"),
        "{found}"
    );
    // Esc clears the filter, and then ends the view.
    assert!(!press(&mut view, KeyCode::Esc) && shown(&mut view).contains("3 pools"));
    press(&mut view, KeyCode::Char('/'));
    for _ in 0..1000 {
        press(&mut view, KeyCode::Char('x'));
    }
    press(&mut view, KeyCode::Esc);
    assert!(shown(&mut view).contains("3 pools") && press(&mut view, KeyCode::Esc));
}

/// What a program frees between two of its steps is not wasted all of the time, nor never.
#[test]
fn waste_is_that_of_a_window() {
    let mut watch = Watch::new(None);
    let mut look = |seconds: u64, requested: u64| {
        let process = json!({
            "schema": "forebay.process.v1", "taken_unix_ms": seconds * 1000, "pid": 42, "process": "trainer",
            "pools": [{"pool": 1, "kind": "sim", "held_bytes": 1000, "requested_bytes": requested}],
        });
        let read = vec![(Endpoint::of(42), Ok(serde_json::from_value(process).unwrap()))];
        let sample = watch.sample_of(read, Vec::new(), None);
        let rates = sample.processes[0].rates[0];
        (rates.waste, rates.waste_window_ms, table(&sample, 100))
    };
    let (waste, window, said) = look(1, 1000);
    assert_eq!((waste, window), (0.0, 0));
    assert!(said.contains("waste: at this moment"), "{said}");
    let (waste, window, said) = look(4, 0);
    assert_eq!((waste, window), (0.5, 3000));
    assert!(said.contains("50.0 %") && said.contains("waste: mean of the last 3 s"), "{said}");
    // The first moment is over a minute ago, and the second just within it.
    let (waste, window, said) = look(64, 800);
    assert_eq!((waste, window), (0.6, 60_000));
    assert!(said.contains("mean of the last 60 s"), "{said}");
    // A clock that goes back leaves what it says was later.
    assert_eq!(look(2, 500).1, 1000);
}

/// At 80 columns, in the view and in the table: who, where, and how much.
#[test]
fn eighty_columns_are_enough() {
    let (watch, sample) = jobs();
    let mut view = View::new(watch, sample.clone(), Duration::from_secs(1), Order::default());
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let lines = table(&sample, 80);
    assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
    let shown = terminal.backend().to_string();
    assert!(shown.contains("51 pretrain_a") && shown.contains("waste"), "{shown}");
    for shown in [lines, shown] {
        for part in ["51 pretra", "13", "cuda:1", "3.00 GiB", "process", "device"] {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
    }
}

#[test]
fn addresses_are_loopback_unless_said() {
    let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
    assert_eq!(read("8080").unwrap(), "127.0.0.1:8080");
    assert_eq!(read("localhost:0").unwrap(), "127.0.0.1:0");
    assert_eq!(read("0.0.0.0:80").unwrap(), "0.0.0.0:80");
    assert_eq!(read("[::1]:80").unwrap(), "[::1]:80");
    assert_eq!(read("::1").unwrap(), "[::1]:9470");
    assert!(["", "example.org:80", "70000", "-1"].iter().all(|text| read(text).is_err()));
}
