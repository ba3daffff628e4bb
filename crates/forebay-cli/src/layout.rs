//! Fits text to the terminal's width: wraps words, and drops columns of tables.
//!
//! ```text
//!     label          first   second   remark      headings, in quiet letters
//!     a label that     1.0       20   verified    a row; a long label goes on below
//!     goes on
//!         text below the row, broken at spaces
//! ```
//!
//! A table is as wide as its cells need. If that is wider than the terminal, it drops columns, the least important
//! first, and then wraps its labels. Columns without any cells are not shown.

use std::fmt::Display;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use forebay_core::steers_display;

use crate::output::Width;

/// Headings, remarks and everything else that is secondary.
pub(crate) const QUIET: Style = Style::new().dimmed();
/// The name of a section.
pub(crate) const TITLE: Style = Style::new().bold();
/// A figure within its target, or a check that passed.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What the reader should know.
pub(crate) const NOTE: Style = AnsiColor::Yellow.on_default();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// What stands before every line of a table.
const MARGIN: usize = 2;
/// What stands between two columns.
const GAP: usize = 2;
/// How far text below a row is set in.
const BELOW: usize = 6;
/// A label is never broken into lines shorter than this.
const SHORTEST_LABEL: usize = 8;

/// Which side of its column a cell stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// What happens to a column where the terminal is too narrow for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenNarrow {
    /// It is always there, as wide as its widest cell.
    Keep,
    /// It is always there, and long cells are broken into several lines.
    Break,
    /// It is left out. Among several, the highest number goes first.
    Drop(u8),
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    side: Align,
    room: WhenNarrow,
}

impl Column {
    /// A column of figures.
    pub(crate) const fn figures(heading: &'static str, room: WhenNarrow) -> Self {
        Self { heading, side: Align::Right, room }
    }

    /// A column of words.
    pub(crate) const fn words(heading: &'static str, room: WhenNarrow) -> Self {
        Self { heading, side: Align::Left, room }
    }
}

/// The text of one column in one row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in `style`.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: plain(&text.into()), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// A line of a table, or several.
enum Entry {
    Row(Vec<Cell>),
    /// A sentence, in parts that each have a style.
    Below(Vec<Cell>),
}

/// A table that fits the terminal.
pub(crate) struct Table {
    columns: Vec<Column>,
    entries: Vec<Entry>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), entries: Vec::new() }
    }

    /// One more row; a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.entries.push(Entry::Row(cells.into()));
    }

    /// A sentence below the last row, made of parts that are joined by spaces.
    pub(crate) fn below(&mut self, parts: impl Into<Vec<Cell>>) {
        self.entries.push(Entry::Below(parts.into()));
    }

    /// Writes the headings and the rows. Gives the headings that were left out for lack of room.
    pub(crate) fn write(&self, width: Width, out: &mut dyn Write) -> io::Result<Vec<&'static str>> {
        let Layout { shown, left_out } = self.layout(width.full());
        let headings: Vec<Cell> =
            self.columns.iter().map(|column| Cell::styled(column.heading, QUIET)).collect();
        write_row(&shown, &headings, out)?;
        for entry in &self.entries {
            match entry {
                Entry::Row(cells) => write_row(&shown, cells, out)?,
                Entry::Below(parts) => write_hanging(parts, (BELOW, BELOW), width, out)?,
            }
        }
        Ok(left_out)
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Row(cells) => Some(cells.as_slice()),
            Entry::Below(_) => None,
        })
    }

    fn layout(&self, columns: usize) -> Layout {
        let mut shown: Vec<Shown> = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            let cells = self.rows().filter_map(|cells| cells.get(index));
            let widest = cells.map(|cell| length(&cell.text)).max().unwrap_or(0);
            if widest > 0 {
                let width = widest.max(length(column.heading));
                shown.push(Shown { index, column: *column, width });
            }
        }
        let mut left_out = Vec::new();
        while total(&shown) > columns {
            let rank = |shown: &Shown| match shown.column.room {
                WhenNarrow::Drop(rank) => Some(rank),
                WhenNarrow::Keep | WhenNarrow::Break => None,
            };
            // The last of equals goes first.
            let ranked = shown.iter().enumerate().filter_map(|(at, one)| Some((rank(one)?, at)));
            let Some((_, at)) = ranked.max() else { break };
            left_out.push(shown.remove(at).index);
        }
        // What is still too wide is broken, the widest label first and never to nothing.
        while total(&shown) > columns {
            let breakable = |shown: &&mut Shown| {
                shown.column.room == WhenNarrow::Break && shown.width > SHORTEST_LABEL
            };
            let widest = shown.iter_mut().filter(breakable).max_by_key(|shown| shown.width);
            let Some(widest) = widest else { break };
            widest.width -= 1;
        }
        left_out.sort_unstable();
        let heading = |index: usize| self.columns.get(index).map(|column| column.heading);
        Layout { shown, left_out: left_out.into_iter().filter_map(heading).collect() }
    }
}

/// What is shown of a table, and the headings of what is not.
struct Layout {
    shown: Vec<Shown>,
    left_out: Vec<&'static str>,
}

/// A column that is shown.
struct Shown {
    index: usize,
    column: Column,
    width: usize,
}

fn total(shown: &[Shown]) -> usize {
    let widths: usize = shown.iter().map(|shown| shown.width).sum();
    MARGIN + widths + GAP * shown.len().saturating_sub(1)
}

/// Writes one row, on as many lines as its longest cell takes.
fn write_row(shown: &[Shown], cells: &[Cell], out: &mut dyn Write) -> io::Result<()> {
    let nothing = Cell::default();
    let parts: Vec<(&Shown, Style, Vec<String>)> = shown
        .iter()
        .map(|shown| {
            let cell = cells.get(shown.index).unwrap_or(&nothing);
            (shown, cell.style, folded(&cell.text, shown.width))
        })
        .collect();
    let lines = parts.iter().map(|(.., lines)| lines.len()).max().unwrap_or(0);
    for at in 0..lines {
        let mut line = String::new();
        // Spaces are written when something follows them, so that no line ends with any.
        let mut pending = MARGIN;
        for (shown, style, texts) in &parts {
            let text = texts.get(at).map_or("", String::as_str);
            let rest = shown.width.saturating_sub(length(text));
            if text.is_empty() {
                pending += shown.width + GAP;
                continue;
            }
            let (before, after) = match shown.column.side {
                Align::Left => (0, rest),
                Align::Right => (rest, 0),
            };
            line.push_str(&" ".repeat(pending + before));
            line.push_str(&format!("{style}{text}{style:#}"));
            pending = after + GAP;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// A paragraph set in by `margin`, as wide as prose should be.
pub(crate) fn paragraph(
    style: Style,
    text: &str,
    margin: usize,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_hanging(&[Cell::styled(text, style)], (margin, margin), width, out)
}

/// A line that begins with a name in `style`; what follows it is set in where it goes on below.
pub(crate) fn titled(
    (name, style): (&str, Style),
    text: &str,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let name = Cell::styled(name, style);
    // The second space of the two between a name and its text.
    write_hanging(&[name, Cell::from(format!(" {text}"))], (0, MARGIN), width, out)
}

/// Writes `parts`, joined by spaces, with one margin for the first line and one for the others.
pub(crate) fn write_hanging(
    parts: &[Cell],
    (first, others): (usize, usize),
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut line = " ".repeat(first);
    let mut used = first;
    let mut is_empty = true;
    for part in parts {
        let style = part.style;
        let room = width.columns().saturating_sub(others).max(1);
        for word in part.text.split(' ').flat_map(|word| folded(word, room)) {
            let space = usize::from(!is_empty);
            if used + space + length(&word) > width.columns() && !is_empty {
                writeln!(out, "{}", line.trim_end())?;
                (line, used, is_empty) = (" ".repeat(others), others, true);
            }
            if !is_empty {
                line.push(' ');
                used += 1;
            }
            if !word.is_empty() {
                line.push_str(&format!("{style}{word}{style:#}"));
            }
            used += length(&word);
            is_empty = false;
        }
    }
    writeln!(out, "{}", line.trim_end())
}

/// The text in lines of at most `room` letters, broken at spaces; a word that is longer keeps a
/// line for itself. Never empty.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in plain(text).split(' ') {
        let Some(last) = lines.last_mut() else { break };
        if last.is_empty() {
            last.push_str(word);
        } else if length(last) + 1 + length(word) <= room {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The same with words that are longer than a line broken too.
fn folded(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    for line in wrapped(text, room) {
        let letters: Vec<char> = line.chars().collect();
        if letters.len() <= room {
            lines.push(line);
        } else {
            lines.extend(letters.chunks(room).map(|part| part.iter().collect::<String>()));
        }
    }
    lines
}

/// The text in at most `room` letters, its middle left out where it is longer: the ends of a list
/// of paths say most.
pub(crate) fn shortened(text: &str, room: usize) -> String {
    const GAP: &str = "...";
    let count = length(text);
    if count <= room {
        return text.to_owned();
    }
    let kept = room.saturating_sub(GAP.len());
    let head: String = text.chars().take(kept.div_ceil(2)).collect();
    let tail: String = text.chars().skip(count.saturating_sub(kept / 2)).collect();
    format!("{head}{GAP}{tail}")
}

/// The text without control characters: what a file or a name holds must not steer the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|letter| if steers_display(letter) { '\u{fffd}' } else { letter }).collect()
}

/// A number with a comma every three digits.
pub(crate) fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
