//! The live view in a terminal.
//!
//! ```text
//!   title, GPUs, warnings
//!   pools      a row for each, of all processes; one is selected
//!   detail     of the selected pool: memory over time, owners, rates, the rest of its process
//!   keys
//! ```

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay::monitor::{Endpoint, ProcessPool};
use forebay_core::{Bytes, counted};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table, TableState, Wrap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::order::Order;
use super::sample::{PoolKey, Process, Rates, Sample, Watch, is_tight, part};
use super::text::{NOBODY, UNMATCHED, device, others, over, owners, rate, without_pools};
use crate::Ending;
use crate::layout::plain;

/// How wide the bar of a pool is.
const BAR_WIDTH: u16 = 20;
const BAR: usize = BAR_WIDTH as usize;
/// The most letters of a filter.
const LONGEST_FILTER: usize = 64;
/// The lines below the picture of a pool.
const WORDS: u16 = 8;
/// Signals that end the view.
const ENDING_SIGNALS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// The longest wait for a key: a signal that comes just before a wait does not end it.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The shortest and the longest pause between two samples.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// What the user looks at.
pub(super) struct View {
    watch: Watch,
    sample: Sample,
    interval: Duration,
    paused: bool,
    order: Order,
    /// Whether letters go into the filter.
    is_typing: bool,
    table: TableState,
}

/// Shows everything until the user has seen enough.
pub(super) fn run(
    watch: Watch,
    first: Sample,
    interval: Duration,
    order: Order,
) -> io::Result<Ending> {
    let mut view = View::new(watch, first, interval, order);
    // The number of a signal that came; 0 before.
    let signal = Arc::new(AtomicUsize::new(0));
    for one in ENDING_SIGNALS {
        let number = usize::try_from(one).unwrap_or(0);
        signal_hook::flag::register_usize(one, Arc::clone(&signal), number)?;
    }
    let mut terminal = ratatui::try_init()?;
    let shown = view.show(&mut terminal, &signal);
    ratatui::restore();
    // The process ends as the signal would have ended it.
    if let Ok(came @ 1..) = i32::try_from(signal.load(Ordering::Relaxed)) {
        signal_hook::low_level::emulate_default_handler(came)?;
    }
    shown.map(|()| Ending::Well)
}

/// What keys are read from, as crossterm chooses it.
fn keyboard() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    match stdin.is_terminal() {
        true => stdin.as_fd().try_clone_to_owned(),
        false => File::open("/dev/tty").map(Into::into),
    }
}

/// Waits until a key can be read, a signal comes or `rest` has passed. Fails if the terminal is gone.
fn wait_for_key(keyboard: &OwnedFd, rest: Duration) -> io::Result<()> {
    let mut polled = [PollFd::new(keyboard, PollFlags::IN)];
    let rest = Timespec::try_from(rest).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&rest)) {
        Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            match polled.iter().any(|of| of.revents().intersects(gone)) {
                true => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the terminal is gone")),
                false => Ok(()),
            }
        }
    }
}

impl View {
    pub(super) fn new(watch: Watch, sample: Sample, interval: Duration, order: Order) -> Self {
        let table = TableState::new().with_selected(0);
        Self { watch, sample, interval, paused: false, order, is_typing: false, table }
    }

    /// Shows everything until a key or a signal ends it.
    fn show(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        signal: &AtomicUsize,
    ) -> io::Result<()> {
        let keyboard = keyboard()?;
        let mut sampled = Instant::now();
        while signal.load(Ordering::Relaxed) == 0 {
            terminal.draw(|frame| self.draw(frame))?;
            let rest = self.interval.saturating_sub(sampled.elapsed());
            if event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && self.press(key)
                {
                    break;
                }
            } else if rest.is_zero() {
                sampled = Instant::now();
                if !self.paused {
                    self.sample = self.watch.sample();
                }
            } else {
                // Not crossterm's wait, which spins if the terminal is gone.
                wait_for_key(&keyboard, rest.min(LONGEST_WAIT))?;
            }
        }
        Ok(())
    }

    /// Does what a key says; whether that is to end.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind != KeyEventKind::Press {
            return false;
        }
        if self.is_typing {
            return self.type_filter(key);
        }
        let last = self.pools().len().saturating_sub(1);
        let at = self.table.selected().unwrap_or(0);
        match key.code {
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.order.sort = self.order.sort.next(),
            KeyCode::Esc if !self.order.filter.is_empty() => self.order.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Down | KeyCode::Char('j') => self.table.select(Some((at + 1).min(last))),
            KeyCode::Up | KeyCode::Char('k') => self.table.select(Some(at.saturating_sub(1))),
            KeyCode::Char('p') | KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval / 2).max(INTERVALS.0),
            // --interval may be longer than the keys go.
            KeyCode::Char('-') if self.interval < INTERVALS.1 => {
                self.interval = (self.interval * 2).min(INTERVALS.1);
            }
            _ => {}
        }
        false
    }

    /// A key while the filter is typed; whether it ends the view.
    fn type_filter(&mut self, key: KeyEvent) -> bool {
        let filter = &mut self.order.filter;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char(letter) if filter.chars().count() < LONGEST_FILTER => filter.push(letter),
            KeyCode::Backspace => _ = filter.pop(),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
        false
    }

    /// The pools that the user asked for, in order.
    fn pools(&self) -> Vec<(&Process, &ProcessPool, Rates)> {
        self.order.rows(&self.sample)
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let head = self.head();
        let tall = u16::try_from(head.len()).unwrap_or(1);
        let count = self.pools().len();
        let rows = u16::try_from(count).unwrap_or(u16::MAX).saturating_add(1);
        let [top, middle, bottom, foot] = Layout::vertical([
            Constraint::Length(tall),
            Constraint::Max(rows.max(2)),
            Constraint::Min(6),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(head), top);
        if count == 0 {
            let mut lines: Vec<Line<'_>> = without_pools(&self.sample).map(Line::from).collect();
            if !self.order.filter.is_empty() {
                lines = vec![Line::from(format!("{UNMATCHED}; Esc clears it"))];
            } else if lines.is_empty() {
                lines.push(Line::from(NOBODY));
            }
            let nobody = Paragraph::new(lines).wrap(Wrap { trim: true });
            frame.render_widget(nobody, middle.union(bottom));
        } else {
            // Pools come and go.
            let selected = self.table.selected().unwrap_or(0).min(count - 1);
            self.table.select(Some(selected));
            self.draw_pools(frame, middle);
            self.draw_detail(frame, bottom, selected);
        }
        let pause = if self.paused { " paused " } else { "" };
        let keys = if self.is_typing {
            format!(
                " filter: {}\u{2588}  Enter keeps it  Esc clears it ",
                plain(&self.order.filter)
            )
        } else {
            " q quit  \u{2191}\u{2193} select  s sort  / filter  p pause  + faster  - slower "
                .to_owned()
        };
        let foot_line = Line::from(vec![keys.reversed(), pause.yellow().reversed()]);
        frame.render_widget(foot_line, foot);
    }

    fn head(&self) -> Vec<Line<'_>> {
        let sample = &self.sample;
        let count = counted(sample.processes.len() as u64, "process");
        let title = format!(
            "  {count}, {}, every {:?}, by {}{}",
            counted(self.pools().len() as u64, "pool"),
            self.interval,
            self.order.sort.name(),
            match &self.order.filter {
                none if none.is_empty() => String::new(),
                filter => format!(", with \"{}\"", plain(filter)),
            }
        );
        let mut lines = vec![Line::from(vec!["forebay monitor".bold(), title.into()])];
        lines.extend(sample.devices_missing.iter().map(|reason| Line::from(reason.as_str().dim())));
        lines.extend(sample.devices.iter().map(|gpu| {
            let [bytes, total] = [gpu.used_bytes, gpu.total_bytes].map(Bytes::new);
            let busy = gpu.busy_percent.map_or(String::new(), |busy| format!(", {busy} % busy"));
            let style = if gpu.is_tight() { Style::new().red() } else { Style::new() };
            let name = plain(&gpu.name);
            Line::from(vec![
                Span::raw(format!("GPU {} {name} ", gpu.index)),
                Span::styled(bar(gpu.used_bytes, gpu.used_bytes, gpu.total_bytes), style),
                Span::styled(format!(" {bytes} of {total}{busy}"), style),
            ])
        }));
        let unreadable =
            sample.unreadable.iter().map(|one| Line::from(one.reason.as_str().yellow()));
        lines.extend(unreadable.take(3));
        let warnings = sample.warnings.iter();
        lines.extend(
            warnings.take(3).map(|warning| Line::from(format!("! {warning}").red().bold())),
        );
        lines
    }

    fn draw_pools(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let pools = self.pools();
        let has_ranks = pools.iter().any(|(process, ..)| process.snapshot.rank.is_some());
        let shown = PoolColumn::that_fit(area.width, has_ranks);
        let rows: Vec<Row<'_>> = pools
            .into_iter()
            .map(|(process, pool, rates)| {
                let cells =
                    shown.iter().map(|column| column.cell((column.text)(process, pool, rates)));
                let row = Row::new(cells);
                if is_tight(pool) { row.style(Style::new().fg(Color::Red)) } else { row }
            })
            .collect();
        let header = Row::new(shown.iter().map(|column| column.cell(column.title.to_owned())));
        let table = Table::new(rows, shown.iter().map(|column| column.width))
            .header(header.style(Style::new().add_modifier(Modifier::DIM)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn draw_detail(&self, frame: &mut Frame<'_>, area: Rect, selected: usize) {
        let Some(&(process, pool, rates)) = self.pools().get(selected) else { return };
        let of = &process.snapshot;
        let title = format!(" pool {} of {}: held over time ", pool.pool, full_title(process));
        let block = Block::bordered().title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        let [picture, words] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(WORDS)]).areas(inside);
        let pid = u32::try_from(of.pid).unwrap_or(0);
        let mut endpoint = Endpoint::of(pid);
        endpoint.copy = process.copy;
        let key: PoolKey = (endpoint, pool.pool);
        let width = usize::from(picture.width);
        let held: Vec<u64> = self.watch.moments(key).map(|moment| moment.held).collect();
        let held = held.get(held.len().saturating_sub(width)..).unwrap_or_default();
        let sparkline = Sparkline::default().data(held).max(pool.peak_held_bytes.max(1));
        frame.render_widget(sparkline.cyan(), picture);
        let text: Vec<Line<'_>> =
            detail(process, pool, rates).into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), words);
    }
}

/// All that is known of who a process is.
fn full_title(process: &Process) -> String {
    let of = &process.snapshot;
    let mut all = format!("{} {}", of.pid, process.title);
    // What stands in the title is not said twice.
    for more in [&of.script, &of.process].map(|name| plain(name)) {
        if !more.is_empty() && more != process.title {
            all += &format!(", {more}");
        }
    }
    of.rank.map_or(all.clone(), |rank| format!("{all}, rank {rank}"))
}

/// The heading of the column that only jobs of several processes have.
const RANK: &str = "rank";

/// A column of the table of pools.
struct PoolColumn {
    title: &'static str,
    width: Constraint,
    /// The fewest letters that it needs.
    least: u16,
    /// In a narrow terminal the columns with the highest number go first, and those with 0 stay: which process and device
    /// a pool is of says more than any figure.
    dropped: u8,
    text: fn(&Process, &ProcessPool, Rates) -> String,
}

impl PoolColumn {
    const ALL: [Self; 10] = [
        Self::new("process", Constraint::Fill(3), 20, 0, |process, _, _| {
            format!("{} {}", process.snapshot.pid, process.title)
        }),
        Self::figures(RANK, 4, 0, |process, _, _| {
            process.snapshot.rank.map_or(String::new(), |rank| rank.to_string())
        }),
        Self::figures("pool", 4, 0, |_, pool, _| pool.pool.to_string()),
        Self::new("device", Constraint::Fill(2), 12, 0, |_, pool, _| device(pool)),
        Self::figures("live, held, limit", BAR_WIDTH, 4, |_, pool, _| {
            bar(pool.live_bytes, pool.held_bytes, pool.limit_bytes)
        }),
        Self::figures("live", 10, 0, |_, pool, _| Bytes::new(pool.live_bytes).to_string()),
        Self::figures("held", 10, 0, |_, pool, _| Bytes::new(pool.held_bytes).to_string()),
        Self::figures("limit", 10, 2, |_, pool, _| Bytes::new(pool.limit_bytes).to_string()),
        Self::figures("waste", 7, 1, |_, _, rates| format!("{:.1} %", rates.waste * 100.0)),
        Self::figures("allocations/s", 13, 3, |_, _, rates| {
            rates.allocations.map_or("-".to_owned(), rate)
        }),
    ];

    const fn new(
        title: &'static str,
        width: Constraint,
        least: u16,
        dropped: u8,
        text: fn(&Process, &ProcessPool, Rates) -> String,
    ) -> Self {
        Self { title, width, least, dropped, text }
    }

    const fn figures(
        title: &'static str,
        width: u16,
        dropped: u8,
        text: fn(&Process, &ProcessPool, Rates) -> String,
    ) -> Self {
        Self::new(title, Constraint::Length(width), width, dropped, text)
    }

    /// Figures stand on the right, so that their places are below one another.
    fn cell(&self, text: String) -> Line<'static> {
        match self.width {
            Constraint::Length(_) => Line::from(text).right_aligned(),
            _ => Line::from(text),
        }
    }

    /// The columns that there is room for, with a space between them. That of ranks is there where a process has one.
    fn that_fit(room: u16, has_ranks: bool) -> Vec<Self> {
        let mut shown = Vec::from(Self::ALL);
        shown.retain(|column| has_ranks || column.title != RANK);
        while let Some(worst) = shown.iter().map(|column| column.dropped).max()
            && worst > 0
            && shown.iter().map(|column| u32::from(column.least) + 1).sum::<u32>()
                > u32::from(room) + 1
        {
            shown.retain(|column| column.dropped != worst);
        }
        shown
    }
}

/// The words about one pool and its process.
fn detail(process: &Process, pool: &ProcessPool, rates: Rates) -> Vec<String> {
    let per_second = |of: Option<f64>| of.map_or("-".to_owned(), rate);
    let mut lines = vec![
        format!(
            "{} in {}, {} requested; {} cached; {} at the peak; pressure {}; waste {:.1} %, {}",
            Bytes::new(pool.live_bytes),
            counted(pool.blocks, "block"),
            Bytes::new(pool.requested_bytes),
            Bytes::new(pool.cached_bytes),
            Bytes::new(pool.peak_held_bytes),
            plain(&pool.pressure),
            rates.waste * 100.0,
            over(rates.waste_window_ms),
        ),
        format!(
            "a second: {} allocations, {} misses, {} driver calls; {:.1} % of all from thread caches; {} between streams",
            per_second(rates.allocations),
            per_second(rates.misses),
            per_second(rates.driver_calls),
            part(pool.magazine_hits, pool.allocations) * 100.0,
            counted(pool.waits, "wait"),
        ),
    ];
    lines.extend(owners(pool));
    lines.extend(others(process));
    lines
}

/// A bar of two parts of a whole: full blocks up to the first, shaded ones up to the second.
pub(super) fn bar(live: u64, held: u64, whole: u64) -> String {
    let mark = |bytes: u64| {
        let scaled = u128::from(bytes.min(whole)) * BAR as u128;
        usize::try_from(scaled.checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(BAR)
    };
    let (live, held) = (mark(live), mark(held.max(live)));
    let [full, shaded, rest] = [live, held - live, BAR - held];
    "\u{2588}".repeat(full) + &"\u{2592}".repeat(shaded) + &"\u{00b7}".repeat(rest)
}
