//! `forebay monitor` beside a program that allocates at full speed: in a terminal, in a browser, scraped, and killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay::{Bytes, HostDevice, Pool, StreamHandle, Tag};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::Value;

use crate::chromium::{self, Chromium};

const ROLE: &str = "MONITORED_PROGRAM";
/// Names that a terminal, a page or a metric must not obey.
const TAG: &str = "<script>document.title='hit'</script>\"\\";
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

type Case = fn() -> Result<Completion, Failed>;

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(&str, Case); 8] = [
        ("monitor_attaches_and_either_side_may_be_killed", kills),
        ("monitor_names_what_runs", named),
        ("monitor_in_a_terminal", terminal),
        ("monitor_as_a_page", page),
        ("monitor_is_scraped_under_load", scraped),
        ("monitor_answers_only_what_it_should", refusals),
        ("monitor_shows_gpus", gpus),
        ("monitor_costs_the_program_little", cost),
    ];
    cases.into_iter().map(|(name, case)| Trial::ignorable_test(name, case)).collect()
}

/// The program that is watched, if this process is it: allocates and frees until its input ends, and says how often.
pub(crate) fn run_if_watched() -> Option<ExitCode> {
    std::env::var_os(ROLE)?;
    if let Err(error) = work() {
        say(&error);
    }
    Some(ExitCode::FAILURE)
}

fn say(line: &dyn std::fmt::Display) {
    let mut out = std::io::stdout();
    // A test that is gone does not listen.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn work() -> Result<(), Box<dyn std::error::Error>> {
    let device = HostDevice::open()?;
    let pool = Pool::new(&device)?;
    let _tag = Tag::named(TAG).enter();
    let stream = StreamHandle::DEFAULT;
    // It stays as long as the program.
    pool.allocate(Bytes::mib(3), stream)?;
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines() {
            say(&counted.load(Ordering::Relaxed));
        }
        std::process::exit(0);
    });
    say(&"ready");
    loop {
        for size in [512, 4096, 65_536] {
            let block = pool.allocate(Bytes::new(size), stream)?;
            pool.free(block.address(), stream)?;
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A started program, with its lines. It is killed with the test.
struct Started {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    fn new(command: &mut Command) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no pipe")?;
        Ok(Self { input: child.stdin.take(), child, lines: BufReader::new(output).lines() })
    }

    fn line(&mut self) -> Result<String, Failed> {
        Ok(self.lines.next().ok_or("the program ended")??)
    }

    /// How often the watched program has gone round.
    fn rounds(&mut self) -> Result<u64, Failed> {
        writeln!(self.input.as_mut().ok_or("no pipe")?)?;
        Ok(self.line()?.parse()?)
    }

    /// Fails unless the watched program goes on.
    fn goes_on(&mut self) -> Result<(), Failed> {
        let before = self.rounds()?;
        wait_for("the program does not go on", || Ok(self.rounds()? > before))
    }

    fn id(&self) -> String {
        self.child.id().to_string()
    }
}

fn watched() -> Result<Started, Failed> {
    started(Command::new(std::env::current_exe()?).env(ROLE, "yes").env("FOREBAY_MONITOR", "on"))
}

fn started(command: &mut Command) -> Result<Started, Failed> {
    let mut program = Started::new(command)?;
    let said = program.line()?;
    if said == "ready" { Ok(program) } else { Err(said.into()) }
}

fn monitor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("monitor").env("FOREBAY_NVML", "/nowhere/libnvidia-ml.so.1");
    command
}

fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool, Failed>) -> Result<(), Failed> {
    let begun = Instant::now();
    while !holds()? {
        if begun.elapsed() > PATIENCE {
            return Err(what.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn ensure(holds: bool, what: impl Into<String>) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

fn kills() -> Result<Completion, Failed> {
    let mut program = watched()?;
    let pid = program.id();
    let once = monitor().args([&pid, "--once"]).env("COLUMNS", "140").output()?;
    let text = String::from_utf8_lossy(&once.stdout);
    ensure(once.status.success() && text.contains(&pid) && text.contains("host:0"), text.clone())?;
    ensure(text.contains("GPUs are not shown: /nowhere"), text)?;
    // Watched, and then the monitor is killed.
    let mut json = Started::new(monitor().args([&pid, "--json", "--interval", "0.1"]))?;
    let mut last = 0;
    for _ in 0..3 {
        let sample: Value = serde_json::from_str(&json.line()?)?;
        let pool = &sample["processes"][0]["pools"][0];
        let allocations = pool["allocations"].as_u64().unwrap_or(0);
        ensure(allocations > last, format!("{last} allocations and then {sample}"))?;
        ensure(pool["live_bytes"].as_u64() >= Some(3 << 20), sample.to_string())?;
        ensure(pool["tags"][0]["tag"] == TAG, sample.to_string())?;
        last = allocations;
    }
    drop(json);
    program.goes_on()?;
    // Watched, and then the program is killed: the monitor of that process ends by itself.
    let mut json = Started::new(monitor().args([&pid, "--json", "--interval", "0.1"]))?;
    json.line()?;
    drop(program);
    while json.lines.next().is_some() {}
    ensure(json.child.wait()?.success(), "the monitor failed")?;
    let gone = monitor().args([&pid, "--once"]).output()?;
    let said = String::from_utf8_lossy(&gone.stderr);
    let expected = format!("forebay: process {pid} does not answer");
    ensure(gone.status.code() == Some(1) && said.starts_with(&expected), said)?;
    // A program that does not ask to be watched is not.
    let mut command = Command::new(std::env::current_exe()?);
    let mut closed = started(command.env(ROLE, "yes").env_remove("FOREBAY_MONITOR"))?;
    let refused = monitor().args([&closed.id(), "--once"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure(refused.status.code() == Some(1) && said.contains("FOREBAY_MONITOR=on"), said)?;
    closed.goes_on()?;
    Ok(Completion::Completed)
}

/// A Python program, as far as its command line says, that a launcher started and that has a name.
fn named() -> Result<Completion, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("python3.12").args(["-u", "/home/someone/secret/train.py", "--token=s3cret"]);
    command.env(ROLE, "yes").env("FOREBAY_MONITOR", "on").env("RANK", "3").env("LOCAL_RANK", "1");
    let sample = |program: &Started| -> Result<Value, Failed> {
        let mut command = monitor();
        let run =
            command.args([&program.id(), "--once", "--json", "--interval", "0.2"]).output()?;
        ensure(!String::from_utf8_lossy(&run.stdout).contains("secret"), "it tells of paths")?;
        ensure(!String::from_utf8_lossy(&run.stdout).contains("s3cret"), "it tells of arguments")?;
        Ok(serde_json::from_slice::<Value>(&run.stdout)?["processes"][0].clone())
    };
    let program = started(&mut command)?;
    let told = sample(&program)?;
    ensure(told["title"] == "train.py" && told["rank"] == 3, told.to_string())?;
    let rates = &told["rates"][0];
    ensure(rates["allocations_per_second"].as_f64() > Some(0.0), told.to_string())?;
    ensure(rates["waste_window_ms"].as_u64() >= Some(100), told.to_string())?;
    let pid = program.id();
    let once = monitor().args([&pid, "--once"]).env("COLUMNS", "80").output()?;
    let text = String::from_utf8_lossy(&once.stdout);
    ensure(text.contains(&format!("{pid} train.py")) && text.contains("host:0"), text.clone())?;
    let once = monitor().args([&pid, "--once"]).env("COLUMNS", "140").output()?;
    let text = String::from_utf8_lossy(&once.stdout);
    // Ten looks, of which the first comes at once.
    ensure(text.contains("waste: mean of the last 1 s") || text.contains("last 2 s"), text)?;
    let other = monitor().args([&pid, "--once", "--filter", "nothing of this"]).output()?;
    let text = String::from_utf8_lossy(&other.stdout);
    ensure(other.status.success() && text.contains("no pool matches the filter"), text)?;
    drop(program);
    let program = started(command.env("FOREBAY_NAME", "monday's run"))?;
    let told = sample(&program)?;
    ensure(told["title"] == "monday's run" && told["script"] == "train.py", told.to_string())?;
    Ok(Completion::Completed)
}

/// A tmux server of the test's own.
struct Tmux(PathBuf);

impl Tmux {
    fn run(&self, arguments: &[&str]) -> Result<String, Failed> {
        let run = Command::new("tmux").arg("-S").arg(&self.0).args(arguments).output()?;
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    }

    fn shows(&self, text: &str) -> Result<(), Failed> {
        let mut last = String::new();
        let shown = wait_for("", || {
            last = self.run(&["capture-pane", "-p"])?;
            Ok(last.contains(text))
        });
        shown.map_err(|_| format!("the terminal does not show {text:?}, but\n{last}").into())
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.run(&["kill-server"]);
    }
}

fn terminal() -> Result<Completion, Failed> {
    if Command::new("tmux").arg("-V").output().is_err() {
        return Ok(Completion::ignored_with("skipped: there is no tmux in PATH"));
    }
    let mut program = watched()?;
    let folder = tempfile::tempdir()?;
    let tmux = Tmux(folder.path().join("tmux"));
    let command =
        format!("{} monitor {}; echo left $?", env!("CARGO_BIN_EXE_forebay"), program.id());
    tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", "140", "-y", "40", "sh"])?;
    // Attached, watched, left.
    tmux.run(&["send-keys", &command, "Enter"])?;
    tmux.shows("held over time")?;
    tmux.shows("1 process, 1 pool")?;
    tmux.run(&["send-keys", "p"])?;
    tmux.shows("paused")?;
    program.goes_on()?;
    tmux.run(&["send-keys", "q"])?;
    tmux.shows("left 0")?;
    program.goes_on()?;
    // Ended by a signal: the terminal is as before.
    let pid_file = folder.path().join("pid");
    let quoted = format!("sh -c 'echo $$ > {}; exec {}", pid_file.display(), command);
    let quoted = quoted.replace("; echo left", "'; echo left");
    tmux.run(&["send-keys", &format!("clear; {quoted}"), "Enter"])?;
    tmux.shows("held over time")?;
    let pid = std::fs::read_to_string(pid_file)?;
    ensure(Command::new("kill").arg(pid.trim()).status()?.success(), "no signal was sent")?;
    tmux.shows("left 143")?;
    tmux.run(&["send-keys", "clear; stty -a", "Enter"])?;
    tmux.shows(" icanon ")?;
    // Watched again while the program is killed.
    tmux.run(&["send-keys", &format!("clear; {command}"), "Enter"])?;
    tmux.shows("held over time")?;
    let gone = format!("process {} does not answer", program.id());
    drop(program);
    tmux.shows(&gone)?;
    tmux.run(&["send-keys", "q"])?;
    tmux.shows("left 0")?;
    Ok(Completion::Completed)
}

/// A server, and where it listens.
fn served(pid: &str) -> Result<(Started, String), Failed> {
    served_with(&[pid, "--serve", "127.0.0.1:0"])
}

fn served_with(arguments: &[&str]) -> Result<(Started, String), Failed> {
    let mut server = Started::new(monitor().args(arguments))?;
    let line = server.line()?;
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.ok_or(line.clone())?.to_owned();
    Ok((server, address))
}

/// Sends a request as it is, and gives the whole answer.
fn ask(address: &str, request: &str) -> Result<String, Failed> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn get(address: &str, path: &str) -> Result<String, Failed> {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

fn page() -> Result<Completion, Failed> {
    let Some(browser) = chromium::find() else {
        return Ok(Completion::ignored_with("skipped: there is no chromium in PATH"));
    };
    let mut program = watched()?;
    let (_server, address) = served(&program.id())?;
    let folder = tempfile::tempdir()?;
    let mut browser = Chromium::start(&browser, folder.path())?;
    browser.screen(1280, false)?;
    browser.open_address(&format!("http://{address}/"))?;
    let text = "document.getElementById('processes').textContent";
    let shown = browser.value(text)?.to_string();
    ensure(shown.contains("pool 1 on host:0") && shown.contains("<script>"), shown)?;
    ensure(browser.value("document.title")? == "forebay monitor", "a tag ran as a script")?;
    // It goes on by itself.
    let rate = "[...document.querySelectorAll('dt')].find(one => one.textContent === 'allocations a second').nextSibling.textContent";
    wait_for("no rate is shown", || Ok(browser.value(rate)? != "-"))?;
    save(&mut browser, "monitor-light")?;
    browser.screen(360, true)?;
    let wide = browser.value("document.documentElement.scrollWidth")?;
    ensure(wide.as_u64() <= Some(360), format!("{wide} pixels wide on a screen of 360"))?;
    save(&mut browser, "monitor-dark")?;
    ensure(browser.complaints.is_empty(), format!("{:?}", browser.complaints))?;
    program.goes_on()?;
    // The program ends, and the page says so.
    let gone = format!("process {} does not answer", program.id());
    drop(program);
    wait_for("the page does not say that the process is gone", || {
        Ok(browser.value(text)?.to_string().contains(&gone))
    })?;
    ensure(browser.complaints.is_empty(), format!("{:?}", browser.complaints))?;
    Ok(Completion::Completed)
}

/// Keeps a picture where a person asks for one.
fn save(browser: &mut Chromium, name: &str) -> Result<(), Failed> {
    if let Some(folder) = std::env::var_os("FOREBAY_TEST_PICTURES") {
        std::fs::write(Path::new(&folder).join(name).with_extension("base64"), browser.picture()?)?;
    }
    Ok(())
}

fn scraped() -> Result<Completion, Failed> {
    let mut program = watched()?;
    let (_server, address) = served(&program.id())?;
    let json: Value = serde_json::from_str(body(&get(&address, "/json")?))?;
    ensure(json["schema"] == "forebay.monitor.v1", json.to_string())?;
    let mut last = 0;
    for _ in 0..5 {
        let answer = get(&address, "/metrics")?;
        let found =
            body(&answer).lines().find(|line| line.starts_with("forebay_pool_allocations_total{"));
        let count = found.and_then(|line| line.rsplit(' ').next()).ok_or(answer.clone())?;
        let count: u64 = count.parse()?;
        ensure(count > last, format!("{count} allocations after {last}"))?;
        last = count;
        std::thread::sleep(Duration::from_millis(260));
    }
    program.goes_on()?;
    let metrics = get(&address, "/metrics")?;
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut checked) = checked else {
        return Ok(Completion::ignored_with(
            "skipped: scraped, but there is no promtool in PATH (Debian's package prometheus)",
        ));
    };
    checked.stdin.take().ok_or("no pipe")?.write_all(body(&metrics).as_bytes())?;
    let output = checked.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    ensure(output.status.success() && said.is_empty(), format!("promtool: {said}\n{metrics}"))?;
    Ok(Completion::Completed)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn refusals() -> Result<Completion, Failed> {
    let program = watched()?;
    let (_server, address) = served(&program.id())?;
    // Idle clients hold up no other, even when they are more than the server takes.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(&address)).collect();
    let begun = Instant::now();
    get(&address, "/page.css")?;
    let took = begun.elapsed();
    ensure(took < Duration::from_millis(1500), format!("answered after {took:?}"))?;
    let host = format!("Host: {address}\r\n\r\n");
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\n{host}"), "200 OK"),
        (format!("GET /../etc/passwd HTTP/1.1\r\n{host}"), "404 Not Found"),
        (format!("POST /json HTTP/1.1\r\n{host}"), "405 Method Not Allowed"),
        (format!("DELETE / HTTP/1.1\r\n{host}"), "405 Method Not Allowed"),
        ("GET /json HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), "403 Forbidden"),
        ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
    ] {
        let answer = ask(&address, &request)?;
        ensure(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            format!("{request}: {answer}"),
        )?;
    }
    // A request that is too long is answered, however much of it is on its way then.
    for times in [3000, 1_000_000] {
        let answer = ask(&address, &"GET /".repeat(times))?;
        ensure(answer.starts_with("HTTP/1.1 431 "), answer)?;
    }
    drop(silent);
    // Nothing that the environment or the arguments of the program say.
    let everything = get(&address, "/json")? + &get(&address, "/metrics")?;
    let path = std::env::current_exe()?.display().to_string();
    ensure(!everything.contains(ROLE) && !everything.contains(&path), everything)?;
    let remote = monitor().args(["--serve", "0.0.0.0:0"]).output()?;
    let said = String::from_utf8_lossy(&remote.stderr);
    ensure(remote.status.code() == Some(2) && said.contains("--allow-remote"), said)?;
    // Open to other machines, it still answers no name that another site could have.
    let options = ["--serve", "0.0.0.0:0", "--allow-remote", "--allow-host", "gpu7.example.org"];
    let (_server, address) = served_with(&options)?;
    let address = address.replace("0.0.0.0", "127.0.0.1");
    for (host, status) in [
        ("evil.example", "403 Forbidden"),
        ("gpu7.example.org", "200 OK"),
        ("127.0.0.1", "200 OK"),
        ("10.0.0.7:9470", "200 OK"),
    ] {
        let answer = ask(&address, &format!("GET /json HTTP/1.1\r\nHost: {host}\r\n\r\n"))?;
        ensure(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), format!("{host}: {answer}"))?;
    }
    Ok(Completion::Completed)
}

/// The functions of NVIDIA's management library that are called, with one GPU and one that is lost.
const LIBRARY: &str = r#"
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)0x1234; return index != 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, "Fake GPU", length);
    return device != (void *)0x1234;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 1000; memory[1] = 50; memory[2] = 950;
    return device != (void *)0x1234;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { (void)device; (void)rates; return 3; }
const char *nvmlErrorString(int status) { (void)status; return "some error"; }
"#;

fn gpus() -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let (source, library) = (folder.path().join("nvml.c"), folder.path().join("nvml.so"));
    std::fs::write(&source, LIBRARY)?;
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Ok(Completion::ignored_with(
            "skipped: there is no C compiler for a library to load",
        ));
    }
    let program = watched()?;
    let run = monitor()
        .args([&program.id(), "--once", "--json"])
        .env("FOREBAY_NVML", &library)
        .output()?;
    let sample: Value = serde_json::from_slice(&run.stdout)?;
    let expected = serde_json::json!([{
        "index": 0, "name": "Fake GPU", "total_bytes": 1000, "used_bytes": 950, "busy_percent": null,
    }]);
    ensure(sample["devices"] == expected, sample.to_string())?;
    let missing = "GPU 1 is not shown: nvmlDeviceGetHandleByIndex_v2: some error";
    ensure(sample["devices_missing"] == missing, sample.to_string())?;
    ensure(sample["warnings"][0] == "GPU 0: 95 % of 1000 B is in use", sample.to_string())?;
    Ok(Completion::Completed)
}

/// Rounds of the watched program for each second that its thread was on a processor, over a while: other programs on the
/// machine do not count.
fn speed(program: &mut Started, time: Duration) -> Result<f64, Failed> {
    let path = format!("/proc/{0}/task/{0}/schedstat", program.id());
    let mut read = || -> Result<(u64, u64), Failed> {
        let text = std::fs::read_to_string(&path)?;
        let on_processor = text.split(' ').next().ok_or("no time")?.parse()?;
        Ok((program.rounds()?, on_processor))
    };
    let (rounds, begun) = read()?;
    std::thread::sleep(time);
    let (more, ended) = read()?;
    Ok((more - rounds) as f64 * 1e9 / (ended - begun) as f64)
}

/// How often the program goes round with a monitor at ten times its default rate, and without, in turns.
fn cost() -> Result<Completion, Failed> {
    let (turns, time) = match std::env::var("FOREBAY_TEST_TURNS") {
        Ok(turns) => (turns.parse()?, Duration::from_secs(1)),
        Err(_) => (6, Duration::from_millis(150)),
    };
    let interval = std::env::var("FOREBAY_TEST_INTERVAL").unwrap_or_else(|_| "0.1".to_owned());
    let mut program = watched()?;
    let mut said = String::new();
    // What else runs on the machine may slow down one side: three attempts.
    for _ in 0..3 {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            alone.push(speed(&mut program, time)?);
            let arguments = [&program.id(), "--json", "--interval", &interval];
            let mut monitor = Started::new(monitor().args(arguments))?;
            monitor.line()?;
            // Nobody reads on: the pipe takes some hundred lines.
            beside.push(speed(&mut program, time)?);
        }
        let [alone, beside] = [&mut alone, &mut beside].map(|all| {
            all.sort_unstable_by(f64::total_cmp);
            (all.get(all.len() / 2).copied().unwrap_or(0.0), all.last().copied().unwrap_or(0.0))
        });
        let loss = |alone: f64, beside: f64| (1.0 - beside / alone) * 100.0;
        let (median, best) = (loss(alone.0, beside.0), loss(alone.1, beside.1));
        said = format!(
            "loss of {median:.2} % by median, {best:.2} % by best of {turns}; {alone:.0?}, {beside:.0?}"
        );
        if std::env::var_os("FOREBAY_TEST_TURNS").is_some() {
            return Ok(Completion::ignored_with(said));
        }
        // The default rate may cost 2 %: ten times the rate has to cost less than ten times half of that.
        if best < 10.0 {
            return Ok(Completion::Completed);
        }
    }
    Err(said.into())
}
