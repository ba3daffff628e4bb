//! A headless Chromium, driven over its debugging pipe: messages of JSON that end in a zero byte.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What went wrong, in words.
pub(crate) type Fault = String;

/// How long one answer may take: the machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser of this machine.
pub(crate) fn find() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH")?;
    let files = names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}

/// A browser with one page.
pub(crate) struct Chromium {
    child: Child,
    input: File,
    output: BufReader<File>,
    session: Option<String>,
    asked: u64,
    /// What the page complained of: errors on its console, exceptions, what could not be loaded.
    pub(crate) complaints: Vec<String>,
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // A browser that does not end by itself is ended; one that has ended already is fine.
        let _ = self.send("Browser.close", &json!({}));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Chromium {
    /// Starts it with its files in `folder`.
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Self, Fault> {
        let said = |error: std::io::Error| format!("cannot start {}: {error}", program.display());
        let pipe = |name: &str| folder.join(name);
        let made = Command::new("mkfifo").args([pipe("in"), pipe("out")]).status().map_err(said)?;
        assert!(made.success(), "mkfifo failed");
        // It reads commands from descriptor 3 and writes answers to descriptor 4.
        let child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$IN\" 4>\"$OUT\""])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", pipe("profile").display()))
            .env("IN", pipe("in"))
            .env("OUT", pipe("out"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(said)?;
        let input = OpenOptions::new().write(true).open(pipe("in")).map_err(said)?;
        let output = BufReader::new(File::open(pipe("out")).map_err(said)?);
        let mut browser =
            Self { child, input, output, session: None, asked: 0, complaints: Vec::new() };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", attach)?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    fn send(&mut self, method: &str, parameters: &Value) -> Result<u64, Fault> {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).map_err(|error| format!("{method}: {error}"))?;
        Ok(self.asked)
    }

    /// Sends a command and waits for its result; what the page complains of meanwhile is kept.
    pub(crate) fn ask(&mut self, method: &str, parameters: Value) -> Result<Value, Fault> {
        let number = self.send(method, &parameters)?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let mut bytes = Vec::new();
            let most = 64 << 20;
            let read = (&mut self.output).take(most).read_until(0, &mut bytes);
            if read.map_err(|error| error.to_string())? == 0 {
                return Err(format!("{method}: the browser ended"));
            }
            bytes.pop();
            let mut message: Value =
                serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            self.hear(&message);
            if message["id"] == number {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}")),
                    None => Ok(message["result"].take()),
                };
            }
        }
        Err(format!("{method}: no answer within {PATIENCE:?}"))
    }

    fn hear(&mut self, message: &Value) {
        let parameters = &message["params"];
        let bad = ["error", "warning", "assert"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string())
            }
            Some("Runtime.consoleAPICalled")
                if bad.iter().any(|kind| parameters["type"] == *kind) =>
            {
                self.complaints.push(parameters["args"].to_string());
            }
            Some("Log.entryAdded")
                if bad.iter().any(|kind| parameters["entry"]["level"] == *kind) =>
            {
                self.complaints.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }

    /// The value of an expression in the page; of a promise, what it comes to.
    pub(crate) fn value(&mut self, expression: &str) -> Result<Value, Fault> {
        let wanted = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.ask("Runtime.evaluate", wanted)?;
        match answer.get("exceptionDetails") {
            Some(details) => Err(format!("{expression}: {details}")),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Opens a file and waits until the page is ready and drawn; how long that took.
    pub(crate) fn open(&mut self, page: &Path) -> Result<Duration, Fault> {
        self.open_address(&format!("file://{}", page.display()))
    }

    /// The same for an address.
    pub(crate) fn open_address(&mut self, address: &str) -> Result<Duration, Fault> {
        let began = Instant::now();
        self.ask("Page.navigate", json!({"url": address}))?;
        loop {
            if self.value("document.documentElement?.dataset.ready === 'yes'")? == true {
                self.drawn()?;
                return Ok(began.elapsed());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("the page is not ready: {:?}", self.complaints));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until what was asked for is drawn.
    pub(crate) fn drawn(&mut self) -> Result<(), Fault> {
        let frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))";
        self.value(frames).map(|_| ())
    }

    /// How wide the screen is, and whether it is dark.
    pub(crate) fn screen(&mut self, width: u32, dark: bool) -> Result<(), Fault> {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.ask("Emulation.setDeviceMetricsOverride", metrics)?;
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", features)?;
        self.drawn()
    }

    /// Presses a key in what has the focus.
    pub(crate) fn press(&mut self, key: &str) -> Result<(), Fault> {
        let text = if key.chars().count() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            self.ask("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "text": text}))?;
        }
        self.drawn()
    }

    /// A mouse event at a place of the window.
    pub(crate) fn mouse(
        &mut self,
        kind: &str,
        (x, y): (f64, f64),
        more: &Value,
    ) -> Result<(), Fault> {
        let mut event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
        if let (Some(event), Some(more)) = (event.as_object_mut(), more.as_object()) {
            event.extend(more.clone());
        }
        self.ask("Input.dispatchMouseEvent", event)?;
        self.drawn()
    }

    /// The middle of an element, in the window, after scrolling to it.
    pub(crate) fn middle(&mut self, id: &str) -> Result<(f64, f64), Fault> {
        let place = self.value(&format!(
            "(() => {{ const e = document.getElementById('{id}'); e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        ))?;
        let part = |index: usize| place[index].as_f64().ok_or(format!("{id} has no place"));
        Ok((part(0)?, part(1)?))
    }

    /// A picture of the whole page, as base64 of a PNG.
    pub(crate) fn picture(&mut self) -> Result<String, Fault> {
        let answer = self.ask("Page.captureScreenshot", json!({"captureBeyondViewport": false}))?;
        answer["data"].as_str().map(str::to_owned).ok_or("no picture".to_owned())
    }
}
