//! Finds and reads processes of this user.

use core::time::Duration;
use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::service::PREFIX;
use super::{Endpoint, MonitorError};
use crate::user;

/// The longest accepted answer; genuine ones are a tenth of it.
const LONGEST: usize = 2 << 20;

/// All names of this user in this network namespace, by process. Other users may have taken some of them, which
/// [`Endpoint::connect`] detects.
pub fn endpoints() -> Vec<Endpoint> {
    // Other programs' sockets may have names of arbitrary bytes.
    let listed = fs::read("/proc/net/unix").unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let prefix = format!("@{PREFIX}{}/", user::own());
    let named = |line: &str| {
        let (_, name) = line.split_once(&prefix)?;
        let (pid, copy) = name.split_once('/')?;
        Some(Endpoint { pid: pid.parse().ok()?, copy: copy.parse().ok()? })
    };
    let mut found: Vec<Endpoint> = listed.lines().filter_map(named).collect();
    // An accepted connection has the name of its listener.
    found.sort_unstable();
    found.dedup();
    found
}

/// A connection to a process whose user, according to the system, is this one.
#[derive(Debug)]
#[must_use = "a connection that is not read costs the process an answer for nothing"]
pub struct Connection {
    pid: u32,
    stream: UnixStream,
}

impl Endpoint {
    /// Connects, without waiting. Anyone can take a name, so this checks the user of the process first. If the
    /// process's backlog is full, returns [`MonitorError::Busy`]: try again.
    pub fn connect(self) -> Result<Connection, MonitorError> {
        self.connect_within(None)
    }

    /// Connects, waiting at most that long in the backlog.
    fn connect_within(self, patience: Option<Duration>) -> Result<Connection, MonitorError> {
        let Self { pid, copy } = self;
        let system =
            |call| move |errno: Errno| MonitorError::System { call, message: errno.to_string() };
        let name = format!("{PREFIX}{}/{pid}/{copy}", user::own());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes());
        let address = address.map_err(system("sockaddr_un"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(system("socket"))?;
        if let Some(patience) = patience {
            // A zero timeout would mean no limit.
            let limit = Some(patience.max(Duration::from_millis(1)));
            set_socket_timeout(&socket, Timeout::Send, limit).map_err(system("SO_SNDTIMEO"))?;
            fcntl_setfl(&socket, OFlags::empty()).map_err(system("fcntl"))?;
        }
        match connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Err(MonitorError::NotFound { pid }),
            Err(Errno::AGAIN | Errno::INTR) => return Err(MonitorError::Busy { pid }),
            Err(errno) => return Err(system("connect")(errno)),
        }
        let owner = user::at_other_end(&socket).map_err(system("SO_PEERCRED"))?.uid;
        if owner != user::own() {
            return Err(MonitorError::OtherUser { pid, owner });
        }
        // Reads block, each with a timeout.
        fcntl_setfl(&socket, OFlags::empty()).map_err(system("fcntl"))?;
        Ok(Connection { pid, stream: socket.into() })
    }

    /// Reads the process as one line of JSON with "schema": "forebay.process.v1". Waits at most `patience`.
    ///
    /// ```
    /// use core::time::Duration;
    /// use forebay::monitor::Endpoint;
    /// use forebay::{HostDevice, PoolOptions};
    ///
    /// let options = PoolOptions::new().set(|set| set.monitor(true));
    /// let _pool = options.build(&HostDevice::open()?)?;
    /// let text = Endpoint::of(std::process::id()).read(Duration::from_secs(10))?;
    /// assert!(text.starts_with("{\"schema\":\"forebay.process.v1\","));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(self, patience: Duration) -> Result<String, MonitorError> {
        let begun = Instant::now();
        let connection = self.connect_within(Some(patience))?;
        connection.read(patience.saturating_sub(begun.elapsed()))
    }
}

impl Connection {
    /// Reads the process, as [`Endpoint::read`] does.
    pub fn read(mut self, patience: Duration) -> Result<String, MonitorError> {
        let (begun, pid) = (Instant::now(), self.pid);
        let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let received = text.len();
            let no_answer = || MonitorError::NoAnswer { pid, waited: begun.elapsed(), received };
            let rest = patience.saturating_sub(begun.elapsed());
            let limit = self.stream.set_read_timeout(Some(rest).filter(|rest| !rest.is_zero()));
            if rest.is_zero() || limit.is_err() {
                return Err(no_answer());
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err(no_answer()),
                Ok(count) => text.extend_from_slice(part.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(no_answer()),
            }
            if text.last() == Some(&b'\n') {
                return Ok(String::from_utf8_lossy(&text).trim_end().to_owned());
            }
            if text.len() > LONGEST {
                return Err(MonitorError::TooLong { pid, most: LONGEST });
            }
        }
    }
}
