//! The page of `forebay report` in a real browser, and `forebay monitor` beside a program at work. What needs Chromium or
//! tmux is skipped where there is none.

// What tests share stands outside the functions that the lint knows as tests.
#![allow(clippy::unwrap_used)]

mod chromium;
mod monitor;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use forebay::{PoolOptions, StreamHandle, tag};
use forebay_core::Bytes;
use forebay_sim::{MemoryModel, SimMachine};
use forebay_trace::{TraceBuilder, Transfer, TransferDirection};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::{Value, json};

use chromium::{Chromium, Fault};

type Check = fn(&mut Chromium, &Path) -> Result<(), Fault>;

const CHECKS: [(&str, Check); 12] = [
    ("opens_without_a_complaint", opens),
    ("says_the_figures_of_the_data", says_the_figures),
    ("zooms_and_pans", zooms),
    ("scrubs_through_time", scrubs),
    ("sorts_tables", sorts),
    ("is_dark_and_narrow", dark_and_narrow),
    ("shows_owners_over_time_and_on_the_map", owners),
    ("goes_by_the_clock", clock),
    ("is_read_on_a_phone", phone),
    ("reads_no_data_as_html", hostile),
    ("shows_the_post_mortem_of_a_refusal", post_mortem),
    ("shows_a_pool_at_one_moment", moment),
];

fn main() -> ExitCode {
    if let Some(code) = monitor::run_if_watched() {
        return code;
    }
    let trials = CHECKS.map(|(name, check)| Trial::ignorable_test(name, move || run(check)));
    let trials = trials.into_iter().chain(monitor::trials()).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run(check: Check) -> Result<Completion, Failed> {
    let Some(program) = chromium::find() else {
        return Ok(Completion::ignored_with("skipped: there is no chromium in PATH"));
    };
    let folder = tempfile::tempdir()?;
    let mut browser = Chromium::start(&program, folder.path())?;
    browser.screen(1280, false)?;
    check(&mut browser, folder.path())?;
    if !browser.complaints.is_empty() {
        return Err(format!("the page complained: {:?}", browser.complaints).into());
    }
    Ok(Completion::Completed)
}

/// The page of a recording.
fn written(folder: &Path, recording: &Path) -> PathBuf {
    let page = folder.join("page.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    // However busy the machine is.
    command.args(["report", "--limit", "none"]).arg(recording).arg("-o").arg(&page);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    page
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-trace").join(name)
}

fn snapshot(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    browser.open(&written(folder, &data("tests/data/torch_snapshot.pickle"))).map(|_| ())
}

fn expect(fact: bool, what: &str) -> Result<(), Fault> {
    if fact { Ok(()) } else { Err(what.to_owned()) }
}

/// A recording with transfers, threads, and a tag that is no HTML.
fn with_transfers(folder: &Path) -> PathBuf {
    let mut builder = TraceBuilder::new("transfers");
    for block in 0..50 {
        builder.allocate(block, Bytes::mib(block + 1), block % 3).unwrap();
        builder.tag("<script>document.title='owned'</script>");
        builder.stack("inner a.rs:1\nouter b.rs:2");
        builder.thread(u32::from(block % 2 == 0));
        builder.time(block * 1000);
        let [begin, end] = [block * 1000, block * 1500].map(Duration::from_nanos);
        let direction = match block % 2 {
            0 => TransferDirection::Upload,
            _ => TransferDirection::Download,
        };
        builder.transfer(Transfer { begin, end, bytes: Bytes::mib(1), direction });
    }
    let path = folder.join("transfers.fbt");
    forebay_trace::format::write_path(&builder.finish(), &path).unwrap();
    path
}

/// Part of time that a chart shows, in events.
fn shown(browser: &mut Chromium) -> Result<(f64, f64), Fault> {
    let range = browser
        .value("['from', 'to'].map(key => Number(document.getElementById('time').dataset[key]))")?;
    Ok((range[0].as_f64().unwrap_or(-1.0), range[1].as_f64().unwrap_or(-1.0)))
}

fn opens(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    let names =
        ["data/gpt2_train.csv.gz", "tests/data/rmm_log.csv", "tests/data/torch_snapshot.pickle"];
    let files = names.map(|name| (data(name), 3)).into_iter();
    for (file, canvases) in files.chain([(with_transfers(folder), 4)]) {
        let name = file.display();
        let took = browser.open(&written(folder, &file))?;
        // Two seconds, and a machine that is busy with other tests.
        expect(took < Duration::from_secs(10), &format!("{name} took {took:?} to open"))?;
        let figures = browser.value("document.querySelectorAll('#figures dd').length")?;
        expect(figures.as_u64() >= Some(5), &format!("{name}: {figures} figures"))?;
        // Something other than the background is drawn on every canvas.
        let drawn = browser.value(
            "[...document.querySelectorAll('section:not([hidden]) canvas')].map(c => new Set(new Uint32Array(c.getContext('2d')\
             .getImageData(0, 0, c.width, c.height).data.buffer)).size)",
        )?;
        let colors: Vec<u64> =
            drawn.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        expect(
            colors.len() == canvases && colors.iter().all(|&count| count > 3),
            &format!("{name}: {drawn}"),
        )?;
        let hungry = browser.value("performance.getEntriesByType('resource').length")?;
        expect(hungry == 0, &format!("{name}: {hungry} things were loaded"))?;
    }
    // What a page complains of would be heard.
    browser.value("console.error('heard')")?;
    let heard = std::mem::take(&mut browser.complaints);
    expect(heard.len() == 1 && heard[0].contains("heard"), &format!("{heard:?}"))
}

/// What the page says is what the data has, in the words of the command.
fn says_the_figures(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    snapshot(browser, folder)?;
    let report = browser.value("JSON.parse(document.getElementById('data').textContent)")?;
    let bytes = |figure: &Value| Bytes::new(figure.as_u64().unwrap()).to_string();
    let tiles = browser
        .value("[...document.querySelectorAll('#figures dd')].map(tile => tile.firstChild.data)")?;
    expect(tiles[0] == bytes(&report["run"]["peak_requested_bytes"]), &format!("{tiles}"))?;
    expect(tiles[1] == bytes(&report["policies"][0]["peak_reserved_bytes"]), &format!("{tiles}"))?;
    let cells = browser.value(
        "[...document.querySelectorAll('#policies tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))",
    )?;
    for row in report["policies"].as_array().unwrap() {
        let wanted = [
            row["policy"].as_str().unwrap().to_owned(),
            row["pass"].to_string(),
            bytes(&row["peak_reserved_bytes"]),
            format!("{:.4}", row["ratio"].as_f64().unwrap()),
        ];
        let said = cells
            .as_array()
            .unwrap()
            .iter()
            .any(|cells| wanted.iter().enumerate().all(|(at, text)| cells[at] == *text));
        expect(said, &format!("{wanted:?} is not in {cells}"))?;
    }
    Ok(())
}

fn zooms(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    snapshot(browser, folder)?;
    let all = shown(browser)?;
    expect(all == (0.0, 458.0), &format!("at first {all:?}"))?;
    browser.value("document.getElementById('zoom-in').click()")?;
    browser.drawn()?;
    let near = shown(browser)?;
    expect(near.1 - near.0 < 300.0, &format!("after the button {near:?}"))?;
    browser.value("document.getElementById('time').focus()")?;
    browser.press("+")?;
    let nearer = shown(browser)?;
    expect(nearer.1 - nearer.0 < near.1 - near.0, &format!("after + {nearer:?}"))?;
    browser.press("ArrowLeft")?;
    let moved = shown(browser)?;
    expect(moved.0 < nearer.0, &format!("after an arrow {moved:?}"))?;
    let at = browser.middle("time")?;
    browser.mouse("mouseWheel", at, &json!({"deltaX": 0, "deltaY": -100}))?;
    let wheeled = shown(browser)?;
    expect(wheeled.1 - wheeled.0 < moved.1 - moved.0, &format!("after the wheel {wheeled:?}"))?;
    browser.mouse("mousePressed", at, &json!({}))?;
    browser.mouse("mouseMoved", (at.0 + 120.0, at.1), &json!({"buttons": 1}))?;
    browser.mouse("mouseReleased", (at.0 + 120.0, at.1), &json!({}))?;
    let dragged = shown(browser)?;
    expect(dragged.0 < wheeled.0, &format!("after dragging {dragged:?}"))?;
    browser.press("0")?;
    let again = shown(browser)?;
    expect(again == all, &format!("after 0 {again:?}"))
}

fn scrubs(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    snapshot(browser, folder)?;
    let live = |browser: &mut Chromium, event: u64| {
        browser.value(&format!(
            "(() => {{ const s = document.getElementById('scrub'); s.value = {event}; \
             s.dispatchEvent(new Event('input')); }})()"
        ))?;
        browser.drawn()?;
        // The page against its own data, counted in another way.
        let wanted = browser.value(&format!(
            "(b => b.born.filter((born, i) => born <= {event} && {event} < b.freed[i]).length)\
             (JSON.parse(document.getElementById('data').textContent).map.blocks)"
        ))?;
        let got = browser.value("Number(document.getElementById('map').dataset.blocks)")?;
        expect(got == wanted, &format!("after event {event}: {got} drawn, {wanted} live"))?;
        Ok::<_, Fault>(got)
    };
    let counts = [live(browser, 0)?, live(browser, 100)?, live(browser, 457)?];
    expect(counts[0] == 1 && counts[1] != counts[0], &format!("{counts:?}"))?;
    browser.value("document.getElementById('map').focus()")?;
    browser.press("ArrowRight")?;
    let told = browser.value("document.getElementById('map-block').textContent")?;
    expect(told.as_str().is_some_and(|told| told.contains("on stream")), &format!("{told}"))
}

fn sorts(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    snapshot(browser, folder)?;
    let column = |browser: &mut Chromium| {
        browser.value("[...document.querySelectorAll('#policies tbody tr')].map(row => Number(row.cells[3].textContent))")
    };
    let press = "document.querySelectorAll('#policies th button')[3].click()";
    browser.value(press)?;
    let down: Vec<f64> =
        serde_json::from_value(column(browser)?).map_err(|error| error.to_string())?;
    browser.value(press)?;
    let up: Vec<f64> =
        serde_json::from_value(column(browser)?).map_err(|error| error.to_string())?;
    expect(down.len() == 10 && down.is_sorted_by(|a, b| a >= b), &format!("{down:?}"))?;
    expect(up.is_sorted() && up.first() < up.last(), &format!("{up:?}"))?;
    let said =
        browser.value("document.querySelectorAll('#policies th')[3].getAttribute('aria-sort')")?;
    expect(said == "ascending", &format!("{said}"))
}

fn dark_and_narrow(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    snapshot(browser, folder)?;
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(paper)?;
    let light_picture = browser.picture()?;
    browser.screen(1280, true)?;
    let dark = browser.value(paper)?;
    expect(light == "rgb(255, 255, 255)" && dark != light, &format!("{light} and {dark}"))?;
    expect(browser.picture()? != light_picture, "the picture is the same in the dark")?;
    for width in [320, 400, 1280] {
        browser.screen(width, true)?;
        let over = browser.value("document.documentElement.scrollWidth - innerWidth")?;
        expect(over.as_i64() <= Some(0), &format!("{over} pixels too wide at {width}"))?;
        let canvas =
            browser.value("document.getElementById('time').getBoundingClientRect().width")?;
        expect(
            canvas.as_f64() > Some(f64::from(width) * 0.8),
            &format!("a chart of {canvas} at {width}"),
        )?;
    }
    Ok(())
}

/// Two tags, a call site each, and a block without either; a pause before the last event.
fn owned(folder: &Path) -> PathBuf {
    let mut builder = TraceBuilder::new("a pool");
    let sites = [
        "load_a_batch_of_the_training_set /home/someone/a/long/way/to/data/loader.py:61",
        "forward model.py:7",
    ];
    for block in 0..9_u64 {
        builder.allocate(block, Bytes::mib(block + 1), 0).unwrap();
        if block < 8 {
            let number = usize::from(block % 2 == 1);
            builder.tag(["batch", "weights"][number]);
            builder.stack(&format!("{}\nmain train.py:1", sites[number]));
        }
        builder.time(block * 1_000_000 + if block == 8 { 90_000_000_000 } else { 0 });
    }
    builder.remarks().began = Some(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let path = folder.join("monday.fbt");
    forebay_trace::format::write_path(&builder.finish(), &path).unwrap();
    path
}

/// The texts of elements.
fn texts(browser: &mut Chromium, selector: &str) -> Result<Vec<String>, Fault> {
    let found = browser.value(&format!(
        "[...document.querySelectorAll({})].map(e => e.textContent)",
        json!(selector)
    ))?;
    serde_json::from_value(found).map_err(|error| error.to_string())
}

/// How many pixels of a canvas have a color of the style sheet.
fn painted(browser: &mut Chromium, canvas: &str, color: &str) -> Result<u64, Fault> {
    let found = browser.value(&format!(
        "(() => {{ const c = document.getElementById('{canvas}'); \
         const hex = getComputedStyle(document.documentElement).getPropertyValue('--{color}').trim(); \
         const wanted = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16)); \
         const copy = document.createElement('canvas'); [copy.width, copy.height] = [c.width, c.height]; \
         const pen = copy.getContext('2d', {{ willReadFrequently: true }}); pen.drawImage(c, 0, 0); \
         const all = pen.getImageData(0, 0, c.width, c.height).data; let found = 0; \
         for (let at = 0; at < all.length; at += 4) if (wanted.every((part, i) => all[at + i] === part)) found += 1; \
         return found; }})()"
    ))?;
    found.as_u64().ok_or(format!("{found} pixels"))
}

fn owners(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    browser.open(&written(folder, &owned(folder)))?;
    let heading = texts(browser, "h1, #when")?;
    let wanted = ["monday", "Recorded 2023-11-14, 22:13 UTC, over 1:30, as \u{201c}a pool\u{201d}"];
    expect(heading == wanted, &format!("{heading:?}"))?;
    for list in ["time-owners", "map-owners"] {
        let names = texts(browser, &format!("#{list} .name"))?;
        expect(names == ["batch", "weights", "untagged"], &format!("{names:?}"))?;
    }
    // At the peak, which is the last event.
    let figures = texts(browser, "#time-owners .figure")?;
    expect(figures == ["16.00 MiB", "20.00 MiB", "9.00 MiB"], &format!("{figures:?}"))?;
    for dark in [false, true] {
        browser.screen(1280, dark)?;
        for canvas in ["time", "map"] {
            for color in ["o0", "o1", "unowned"] {
                let pixels = painted(browser, canvas, color)?;
                expect(
                    pixels > 500,
                    &format!("{pixels} pixels of {color} on {canvas}, dark: {dark}"),
                )?;
            }
        }
        // The colors of the caption are those of the map.
        let held = painted(browser, "map", "held")?;
        expect(held > 500, &format!("{held} pixels of memory in no block"))?;
    }
    let note = texts(browser, "#map-note")?.concat();
    expect(!["Dark", "light", "faint"].iter().any(|word| note.contains(word)), &note)?;
    // Another choice is one for the whole page.
    browser.value("(by => { by.value = 'size'; by.dispatchEvent(new Event('change')); })(document.querySelector('.by'))")?;
    browser.drawn()?;
    let chosen = browser.value("[...document.querySelectorAll('.by')].map(by => by.value)")?;
    let names = texts(browser, "#map-owners .name")?;
    expect(chosen == json!(["size", "size"]), &format!("{chosen}"))?;
    expect(
        names.len() == 8 && names.contains(&"blocks of 9.00 MiB".to_owned()),
        &format!("{names:?}"),
    )?;
    expect(painted(browser, "map", "o3")? > 100, "the map is as it was")?;
    // The rows of each table of owners come to the peak.
    let sums = texts(browser, "#owners tfoot tr")?;
    expect(sums.len() == 4, &format!("{sums:?}"))?;
    expect(sums.iter().all(|sum| sum.contains("45.00 MiB100.0 %9")), &format!("{sums:?}"))
}

fn clock(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    browser.open(&written(folder, &owned(folder)))?;
    let told = texts(browser, "#time-readout")?.concat();
    expect(told.starts_with("After event 8, 1:30.008: "), &told)?;
    let events = painted(browser, "time", "o0")?;
    browser.value("(along => { along.value = 'clock'; along.dispatchEvent(new Event('change')); })(document.getElementById('along'))")?;
    browser.drawn()?;
    let all = shown(browser)?;
    expect(all == (0.0, 90_008_000_000.0), &format!("{all:?}"))?;
    // By the clock nearly all of the run is the pause, at the height before the last event.
    let pause = painted(browser, "time", "o0")?;
    expect(pause > events * 3 / 2, &format!("{events} pixels by events, {pause} by the clock"))?;
    browser.value("document.getElementById('time').focus()")?;
    browser.press("p")?;
    let peak = shown(browser)?;
    expect(peak.0 > 80e9 && peak.1 == all.1, &format!("{peak:?}"))?;
    browser.press("0")?;
    browser.value("(along => { along.value = 'events'; along.dispatchEvent(new Event('change')); })(document.getElementById('along'))")?;
    browser.drawn()?;
    let again = shown(browser)?;
    expect(again == (0.0, 9.0), &format!("{again:?}"))?;
    // Without a clock there is no such choice.
    let plain = folder.join("plain.csv");
    std::fs::write(&plain, "op,id,bytes,stream\na,1,512,0\n").map_err(|error| error.to_string())?;
    browser.open(&written(folder, &plain))?;
    expect(
        browser.value("document.getElementById('along').offsetParent === null")? == true,
        "a choice",
    )
}

/// Call sites stand above their figures, whole and within the screen.
fn phone(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    browser.open(&written(folder, &owned(folder)))?;
    browser.screen(400, false)?;
    let cells = browser.value(
        "[...document.querySelectorAll('#owners td.stack, .owners .name')].map(cell => { const box = cell.getBoundingClientRect(); \
         return { text: cell.textContent, left: box.left, right: box.right, cut: cell.scrollWidth - cell.clientWidth, \
         font: parseFloat(getComputedStyle(cell).fontSize) }; })",
    )?;
    let cells = cells.as_array().map(Vec::as_slice).unwrap_or_default();
    let site =
        |cell: &&Value| cell["text"].as_str().is_some_and(|text| text.contains("loader.py:61"));
    expect(cells.iter().filter(site).count() >= 2, &format!("{cells:?}"))?;
    for cell in cells {
        let figure = |key: &str| cell[key].as_f64().unwrap_or(f64::NAN);
        let fits = figure("left") >= 0.0 && figure("right") <= 400.0 && figure("cut") <= 0.0;
        expect(fits && figure("font") >= 12.0, &format!("{cell}"))?;
    }
    let scrolls = browser.value(
        "[...document.querySelectorAll('#owners .scroll')].map(box => box.scrollWidth - box.clientWidth)",
    )?;
    let none =
        scrolls.as_array().is_some_and(|all| all.iter().all(|over| over.as_i64() <= Some(0)));
    expect(none, &format!("tables are wider than the screen by {scrolls}"))
}

fn hostile(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    let recording = folder
        .join("<img src=x onerror=alert(1)><script>document.title='owned'<")
        .with_extension("csv");
    std::fs::write(&recording, "op,id,bytes,stream\na,1,512,0\n")
        .map_err(|error| error.to_string())?;
    browser.open(&written(folder, &recording))?;
    let heading = browser.value("document.querySelector('h1').textContent")?;
    expect(
        heading.as_str().is_some_and(|text| text.starts_with("<img src=x")),
        &format!("{heading}"),
    )?;
    for page in [None, Some(written(folder, &with_transfers(folder)))] {
        if let Some(page) = page {
            browser.open(&page)?;
            let shown = browser.value("document.getElementById('owners').textContent")?;
            let shown = shown.as_str().unwrap_or_default();
            for part in ["By tag", "By thread", "By call site", "<script>document.title"] {
                expect(shown.contains(part), &format!("{part} is not in {shown}"))?;
            }
        }
        let found =
            browser.value("document.querySelectorAll('img').length + document.scripts.length")?;
        expect(found == 2, &format!("{found} scripts and images"))?;
        let title = browser.value("document.title")?;
        expect(title != "owned", "a script of the data ran")?;
    }
    Ok(())
}

/// What a pool of 16 MiB writes that refuses 4 MiB for its holes: every other block of 1 MiB is free.
fn refused(folder: &Path) -> PathBuf {
    let path = folder.join("oom.txt");
    let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
    let options = PoolOptions::new().max_bytes(Bytes::mib(16));
    let pool = options
        .set(|set| set.stacks(true).set("oom_report", path.to_str().unwrap()).unwrap())
        .build(&machine.device(0).unwrap())
        .unwrap();
    let stream = StreamHandle::DEFAULT;
    let blocks: Vec<_> = (0..16)
        .map(|number| {
            let names = ["weights", "<script>document.title='owned'</script>"];
            let _tag = (number % 5 > 0).then(|| tag(names[usize::from(number > 9)]));
            pool.allocate(Bytes::mib(1), stream).unwrap()
        })
        .collect();
    for block in blocks.iter().step_by(2) {
        pool.free_block(*block, stream).unwrap();
    }
    let _tag = tag("activations");
    pool.allocate(Bytes::mib(4), stream).unwrap_err();
    path
}

fn post_mortem(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    // The text stands for the snapshot beside it.
    browser.open(&written(folder, &refused(folder)))?;
    let text = browser.value("document.body.innerText")?;
    let text = text.as_str().unwrap_or_default();
    for part in [
        "4.00 MiB",
        "but in 8 holes",
        "What would have helped",
        "A limit of 20971520 B (20.00 MiB) would have served it",
        "activations",
        "(no tag)",
        "8.00 MiB in blocks and 8.00 MiB in holes drawn, of 16.00 MiB held",
        "Everything is drawn",
    ] {
        expect(text.contains(part), &format!("{part} is not in {text}"))?;
    }
    for part in ["leak", "batch", "over time", "NaN", "undefined"] {
        expect(!text.contains(part), &format!("{part} is in {text}"))?;
    }
    // Blocks have the color of their tag.
    let names = texts(browser, "#map-owners .name")?;
    expect(names.contains(&"weights".to_owned()) && names.len() == 3, &format!("{names:?}"))?;
    for color in ["o0", "o1", "unowned", "hole"] {
        expect(painted(browser, "map", color)? > 100, &format!("no {color} on the map"))?;
    }
    // Blocks, holes and lines between them are drawn.
    let colors = browser.value(
        "(c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)\
         (document.getElementById('map'))",
    )?;
    expect(colors.as_u64() >= Some(3), &format!("{colors} colors"))?;
    browser.value("document.getElementById('map').focus()")?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        browser.press("ArrowRight")?;
        seen.push(browser.value("document.getElementById('map-block').textContent")?);
    }
    let said =
        |part: &str| seen.iter().any(|text| text.as_str().is_some_and(|text| text.contains(part)));
    expect(said("A hole of 1.00 MiB at 0x") && said(" old"), &format!("{seen:?}"))?;
    let rows = browser.value(
        "[...document.querySelectorAll('#owners table')].slice(0, 2).map(table => [...table.tBodies[0].rows].length)",
    )?;
    expect(rows[0] == 3, &format!("{rows} rows by tag and by stack"))?;
    let found =
        browser.value("document.querySelectorAll('img').length + document.scripts.length")?;
    expect(found == 2, &format!("{found} scripts and images"))?;
    expect(browser.value("document.title")? != "owned", "a script of the data ran")?;
    for width in [320, 1280] {
        browser.screen(width, true)?;
        let over = browser.value("document.documentElement.scrollWidth - innerWidth")?;
        expect(over.as_i64() <= Some(0), &format!("{over} pixels too wide at {width}"))?;
    }
    Ok(())
}

/// The oldest form of a snapshot, which says next to nothing.
fn moment(browser: &mut Chromium, folder: &Path) -> Result<(), Fault> {
    browser.open(&written(folder, &data("../../fuzz/seeds/trace_files/pool.json")))?;
    let text = browser.value("document.body.innerText")?;
    let text = text.as_str().unwrap_or_default();
    for part in ["No request was refused", "(no tag)", "<script>alert(1)</script>", "1.50 KiB"] {
        expect(text.contains(part), &format!("{part} is not in {text}"))?;
    }
    expect(!text.contains("What would have helped"), text)
}
