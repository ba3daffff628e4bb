//! Lines of a report: labels, values and remarks in columns, words broken to fit, commands whole.
//!
//! ```text
//!     label               value               remark
//!     |<----- LABEL ----->|<---- VALUE ---->|
//!                         text that is longer goes on below,
//!                         as do remarks that find no room
//!                             a command, however long it is
//! ```

use std::io::{self, Write};

use anstyle::Style;

use crate::doctor::report::Fix;
use crate::layout::{Cell, QUIET, TITLE, length, plain, write_hanging};
use crate::output::Width;

/// How wide the first column is: its longest label, "transparent, files", and a gap.
const LABEL: usize = 20;
/// How wide the kind of a device is within it.
const KIND: usize = 10;
/// How wide values are, so that the remarks behind them line up.
const VALUE: usize = 18;
/// What stands before a line.
const MARGIN: usize = 2;
/// How far problems are set in, behind their numbers.
const NUMBER: usize = 4;

/// Where a report is written.
pub(super) struct Sheet<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) width: Width,
}

impl Sheet<'_> {
    /// A lead, and a text that begins `indent` columns behind the margin and goes on there.
    fn hang(&mut self, lead: &[Cell], text: Cell, indent: usize) -> io::Result<()> {
        let first = if lead.is_empty() { indent } else { 0 };
        let parts = [lead, &[text]].concat();
        write_hanging(&parts, (MARGIN + first, MARGIN + indent), self.width, self.out)
    }

    /// The title of a section.
    pub(super) fn title(&mut self, name: &str) -> io::Result<()> {
        writeln!(self.out, "\n{TITLE}{name}{TITLE:#}")
    }

    /// A label, a value, and a remark in quiet letters: beside the value where there is room, else
    /// below it.
    pub(super) fn line(&mut self, label: &str, value: &str, remark: &str) -> io::Result<()> {
        let (value, remark) = (plain(value), plain(remark));
        let room = self.value_room().saturating_sub(VALUE + MARGIN);
        if remark.is_empty() || length(&value) > VALUE || length(&remark) > room {
            self.paragraph(Style::new(), label, &value)?;
            return if remark.is_empty() { Ok(()) } else { self.note(QUIET, &remark) };
        }
        writeln!(self.out, "  {label:LABEL$}{value:VALUE$}  {QUIET}{remark}{QUIET:#}")
    }

    /// A label and a text that may take several lines.
    pub(super) fn paragraph(&mut self, style: Style, label: &str, text: &str) -> io::Result<()> {
        // The column after a lead is the space before the text.
        let lead = Cell::from(format!("{label:0$}", LABEL - 1));
        self.hang(&[lead], Cell::styled(text, style), LABEL)
    }

    /// A text below the values, that may take several lines.
    pub(super) fn note(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.hang(&[], Cell::styled(text, style), LABEL)
    }

    /// A kind of device with how it stands, and a text that may take several lines.
    pub(super) fn device(
        &mut self,
        kind: &str,
        (style, status): (Style, &str),
        text: &str,
    ) -> io::Result<()> {
        let kind = Cell::from(format!("{kind:0$}", KIND - 1));
        let status = Cell::styled(format!("{status:0$}", LABEL - KIND - 1), style);
        self.hang(&[kind, status], Cell::from(text), LABEL)
    }

    /// A cure below the values: what to do, and each command on a line of its own.
    pub(super) fn cure(&mut self, lead: &str, cure: &Fix) -> io::Result<()> {
        self.note(QUIET, &format!("{lead}: {}", introduction(cure)))?;
        self.commands(MARGIN + LABEL, cure)
    }

    /// A numbered text that may take several lines.
    pub(super) fn item(&mut self, style: Style, number: usize, text: &str) -> io::Result<()> {
        let number = Cell::styled(format!("{:1$}", format!("{number}."), NUMBER - 1), style);
        self.hang(&[number], Cell::from(text), NUMBER)
    }

    /// What belongs to a numbered text.
    pub(super) fn under_item(&mut self, text: &str) -> io::Result<()> {
        self.hang(&[], Cell::from(text), NUMBER)
    }

    /// The cure of a numbered text.
    pub(super) fn item_cure(&mut self, cure: &Fix) -> io::Result<()> {
        self.under_item(&format!("fix: {}", introduction(cure)))?;
        self.commands(MARGIN + NUMBER, cure)
    }

    /// Each command alone on its line and never broken: it is there to be copied.
    fn commands(&mut self, margin: usize, cure: &Fix) -> io::Result<()> {
        let margin = margin + 4;
        cure.commands.iter().try_for_each(|command| {
            writeln!(self.out, "{:margin$}{TITLE}{}{TITLE:#}", "", plain(command))
        })
    }

    /// How many letters find room behind a label.
    pub(super) fn value_room(&self) -> usize {
        self.width.columns().saturating_sub(MARGIN + LABEL)
    }
}

/// The words before the commands.
fn introduction(cure: &Fix) -> String {
    if cure.commands.is_empty() { cure.how.clone() } else { format!("{}:", cure.how) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(act: impl FnOnce(&mut Sheet<'_>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        act(&mut Sheet { out: &mut out, width: Width::new(60) }).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn words_are_broken_and_commands_are_not() {
        let command = "echo ".to_owned() + &"word ".repeat(30) + "end";
        let cure = Fix::command("a cure whose words are broken ".repeat(5).trim(), &command);
        let text = written(|sheet| {
            sheet.item(Style::new(), 1, &"something is wrong ".repeat(6))?;
            sheet.item_cure(&cure)
        });
        let (commands, words): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.contains("echo"));
        assert_eq!(commands.iter().map(|line| line.trim()).collect::<Vec<_>>(), [command]);
        assert!(words.len() > 4 && words.iter().all(|line| line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn a_remark_without_room_goes_below() {
        let text = written(|sheet| {
            sheet.line("short", "1", "fits here")?;
            sheet.line("long", "2", "this one finds no room beside its value")
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  short               1                   fits here");
        assert_eq!(lines[1], "  long                2");
        assert_eq!(lines[2..].join(" ").split_whitespace().count(), 8, "{text}");
    }
}
