//! `--serve`: the sample as a web page, as JSON and for Prometheus.
//!
//! Four fixed answers to GET need no framework, and existing small servers lack what matters here: tiny_http limits
//! neither the size of a request nor the time to read it.
//!
//! ```text
//!   GET /             the page, which asks for /json every second
//!   GET /json         "schema": "forebay.monitor.v1"
//!   GET /metrics      Prometheus or OpenMetrics, as the request accepts
//! ```
//!
//! Read-only. Each connection has its own thread, is answered once and closed. There are at most 16: another one
//! replaces the oldest whose answer is not being made, so that idle clients cannot lock out others. A request has at
//! most 8 KiB and two seconds.
//!
//! Another site's page can point its name at this server (DNS rebinding), and the browser then takes both for one site.
//! So the server answers only requests to names that no other site can have: addresses, `localhost`, the machine's
//! name, and those of `--allow-host`. On loopback it accepts only loopback addresses and those of `--allow-host`.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::metrics::{self, Format};
use super::sample::{Sample, Watch};
use crate::{Ending, output};

/// The port, if none is named.
const PORT: u16 = 9470;
/// The longest request that is read.
const LONGEST_REQUEST: usize = 8 << 10;
/// How long a client may take to ask, and how long to take an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most connections at once.
const MAX_CONNECTIONS: usize = 16;
/// How long a sample serves all clients.
const SHORTEST_AGE: Duration = Duration::from_millis(250);

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Where to listen: an address and a port, or a port of loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl Default for Address {
    fn default() -> Self {
        Self(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let loopback = |port: u16| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let named = text.strip_prefix("localhost:").unwrap_or(text);
        let (port, address, ip) = (named.parse(), text.parse(), text.parse::<IpAddr>());
        let found = port.map(loopback).ok().or_else(|| address.ok());
        let found = found.or_else(|| ip.ok().map(|ip| SocketAddr::new(ip, PORT)));
        let wanted = "write ADDRESS:PORT, ADDRESS or PORT, such as 127.0.0.1:9470";
        found.map(Self).ok_or_else(|| wanted.to_owned())
    }
}

/// What all connections share.
struct Server {
    watch: Mutex<(Watch, Option<(Instant, Sample)>)>,
    names: Names,
    connections: Connections,
}

/// The names under which the server may be asked.
#[derive(Debug)]
pub(super) struct Names {
    /// Whether the server listens on loopback.
    is_local: bool,
    /// Those of `--allow-host`, and the machine's own unless the server listens on loopback.
    allowed: Vec<String>,
}

impl Names {
    /// Those of a server at this address.
    pub(super) fn of(address: IpAddr, mut allowed: Vec<String>) -> Self {
        let is_local = address.is_loopback();
        if !is_local {
            let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            allowed.extend([own.trim().to_owned()].into_iter().filter(|own| !own.is_empty()));
        }
        Self { is_local, allowed }
    }

    /// Whether a `Host` header has one of them. Requests without one are not a browser's.
    pub(super) fn allow(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => host.split(':').next(),
        };
        let name = name.unwrap_or_default();
        name.eq_ignore_ascii_case("localhost")
            || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback() || !self.is_local)
            || self.allowed.iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
    }
}

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<VecDeque<Arc<Connection>>>);

/// A client.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Whether its answer is being made. Then it keeps its place.
    is_served: AtomicBool,
}

/// A connection among the open ones, until it is dropped, however its thread ends.
#[derive(Debug)]
pub(super) struct Permit<'a>(&'a Connections, Arc<Connection>);

impl Connections {
    /// Gives a client a place. Where there is none left, the oldest client that is not being served loses its own; `None`
    /// where all are.
    pub(super) fn admit(&self, stream: TcpStream) -> Option<Permit<'_>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_CONNECTIONS {
            let idle = |one: &Arc<Connection>| !one.is_served.load(Ordering::Relaxed);
            let oldest = open.iter().position(idle).and_then(|at| open.remove(at))?;
            // Its thread wakes up and ends.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        let connection = Arc::new(Connection { stream, is_served: false.into() });
        open.push_back(Arc::clone(&connection));
        Some(Permit(self, connection))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|one| !Arc::ptr_eq(one, &self.1));
    }
}

/// Answers until the program is ended.
pub(super) fn run(
    Address(address): &Address,
    (allow_remote, allow_host): (bool, &[String]),
    watch: Watch,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    if !address.ip().is_loopback() && !allow_remote {
        output::complain(format_args!(
            "{address} can be reached from other machines, and nothing asks who they are: name a loopback address, or \
             add --allow-remote"
        ));
        return Ok(Ending::BadUsage);
    }
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => {
            output::complain(format_args!("cannot listen at {address}: {error}"));
            return Ok(Ending::Fault);
        }
    };
    let bound = listener.local_addr()?;
    writeln!(out, "the page is at http://{bound}/, the metrics at http://{bound}/metrics")?;
    out.flush()?;
    let names = Names::of(address.ip(), allow_host.to_vec());
    let server =
        Server { watch: Mutex::new((watch, None)), names, connections: Connections::default() };
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // No descriptor is left, or the client is gone.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let Some(place) = server.connections.admit(stream) else { continue };
            let server = &server;
            // Where no thread can be had, the client is left without an answer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || {
                // A client that goes away has its reasons.
                let _ = server.answer(&place.1);
            });
        }
    });
    Ok(Ending::Well)
}

/// A status line, and a content with its type.
type Answer = (&'static str, &'static str, String);

const TEXT: &str = "text/plain; charset=utf-8";

impl Server {
    fn answer(&self, Connection { stream, is_served }: &Connection) -> io::Result<()> {
        let head = request(stream)?;
        is_served.store(true, Ordering::Relaxed);
        let answer = match head {
            Some(head) => self.content(&head),
            None => Ok(("431 Request Header Fields Too Large", TEXT, "too long\n".to_owned())),
        };
        is_served.store(false, Ordering::Relaxed);
        let (status, kind, content) = answer?;
        let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             frame-ancestors 'none'; base-uri 'none'\r\n\r\n",
            content.len()
        );
        send(stream, (head + &content).as_bytes())?;
        drain(stream)
    }

    /// What a request gets.
    fn content(&self, head: &str) -> io::Result<Answer> {
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let header = |wanted: &str| {
            let found = head.lines().skip(1).filter_map(|line| line.split_once(':'));
            let mut found = found.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| value.trim())
        };
        if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
            return Ok(("400 Bad Request", TEXT, "not HTTP/1\n".to_owned()));
        }
        if !header("host").is_none_or(|host| self.names.allow(host)) {
            let help = if self.names.is_local { "a loopback address" } else { "an address" };
            let help = format!(
                "ask for {help}, or start the monitor with --allow-host and the name that you ask for\n"
            );
            return Ok(("403 Forbidden", TEXT, help));
        }
        if method != "GET" {
            return Ok(("405 Method Not Allowed", TEXT, "read-only: use GET\n".to_owned()));
        }
        let ok = |kind, content| Ok(("200 OK", kind, content));
        match target.split('?').next().unwrap_or_default() {
            "/" => ok("text/html; charset=utf-8", PAGE.to_owned()),
            "/page.css" => ok("text/css; charset=utf-8", STYLE.to_owned()),
            "/page.js" => ok("text/javascript; charset=utf-8", SCRIPT.to_owned()),
            "/json" => ok("application/json", self.sample().json()?),
            "/metrics" => {
                let format = Format::accepted(header("accept").unwrap_or_default());
                ok(format.content_type(), metrics::write(&self.sample(), format))
            }
            _ => Ok(("404 Not Found", TEXT, "there are /, /json and /metrics\n".to_owned())),
        }
    }

    /// A sample that is new enough.
    fn sample(&self) -> Sample {
        let mut shared = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (watch, last) = &mut *shared;
        match last {
            Some((taken, sample)) if taken.elapsed() < SHORTEST_AGE => sample.clone(),
            _ => {
                let sample = watch.sample();
                *last = Some((Instant::now(), sample.clone()));
                sample
            }
        }
    }
}

/// The head of a request; `None` if it is too long.
fn request(mut stream: &TcpStream) -> io::Result<Option<String>> {
    let begun = Instant::now();
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let rest = PATIENCE.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(rest))?;
        let count = stream.read(&mut part)?;
        head.extend_from_slice(part.get(..count).unwrap_or_default());
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            head.truncate(end);
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
        if head.len() > LONGEST_REQUEST {
            return Ok(None);
        }
        if count == 0 || begun.elapsed() >= PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Sends an answer, for as long as a client may take.
fn send(mut stream: &TcpStream, mut answer: &[u8]) -> io::Result<()> {
    let begun = Instant::now();
    while !answer.is_empty() {
        let rest = PATIENCE.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero());
        stream.set_write_timeout(Some(rest.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.write(answer)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => answer = answer.get(sent..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Reads what the client still sends, for as long as it may take: a connection that is closed with something unread is
/// reset, and the client may lose the answer.
fn drain(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let (begun, mut part) = (Instant::now(), [0; 16 << 10]);
    while let Some(rest) = PATIENCE.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero()) {
        stream.set_read_timeout(Some(rest))?;
        if stream.read(&mut part)? == 0 {
            break;
        }
    }
    Ok(())
}
