//! Tables and paragraphs at given widths.

use proptest::prelude::*;

use super::*;

/// What a table looks like without its colours, and what it left out.
fn shown(table: &Table, columns: usize) -> (String, Vec<&'static str>) {
    let mut out = Vec::new();
    let left_out = table.write(Width::new(columns), &mut out).unwrap();
    (stripped(&out), left_out)
}

fn stripped(out: &[u8]) -> String {
    anstream::adapter::strip_str(std::str::from_utf8(out).unwrap()).to_string()
}

fn sample(name: &str) -> Table {
    let mut table = Table::new([
        Column::words("name", WhenNarrow::Break),
        Column::figures("first", WhenNarrow::Keep),
        Column::figures("spare", WhenNarrow::Drop(1)),
        Column::figures("rare", WhenNarrow::Drop(2)),
        Column::figures("never", WhenNarrow::Keep),
        Column::words("", WhenNarrow::Keep),
    ]);
    let row = |name: &str, last: &str| {
        let wide = "1".repeat(20);
        [
            name.into(),
            "1.0".into(),
            wide.as_str().into(),
            wide.as_str().into(),
            "".into(),
            last.into(),
        ]
    };
    table.row(row(name, "verified"));
    table.row(row("short", ""));
    table.below([Cell::from("below the row "), "word ".repeat(30).trim().into()]);
    table
}

#[test]
fn a_table_leaves_out_what_matters_least() {
    let table = sample("a name");
    let (all, left_out) = shown(&table, 100);
    assert_eq!(left_out, [""; 0]);
    assert!(all.starts_with("  name    first                 spare"), "{all}");
    assert!(!all.contains("never"), "a column without cells is not there\n{all}");
    let (some, left_out) = shown(&table, 60);
    assert_eq!(left_out, ["rare"]);
    assert!(some.contains("spare") && some.contains("verified"), "{some}");
    let longer = sample("a name of thirty-two letters!!!!");
    assert_eq!(shown(&longer, 60).1, ["spare", "rare"], "in the order of the columns");
    assert!(some.lines().all(|line| !line.ends_with(' ')), "{some}");
}

#[test]
fn long_names_are_broken_and_nothing_is_lost() {
    let name = "a long name with spaces, and ".repeat(4) + &"x".repeat(90);
    let (text, _) = shown(&sample(&name), 60);
    let first = text.lines().skip(1).take_while(|line| !line.trim_start().starts_with("short"));
    let label = |line: &str| line.chars().take(45).collect::<String>();
    let letters = |text: &str| text.chars().filter(|&letter| letter != ' ').collect::<String>();
    let kept: String = first.map(|line| letters(&label(line).replace("1.0", ""))).collect();
    assert!(kept.starts_with(&letters(&name)), "{kept}\n{text}");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let (text, _) = shown(&sample("a\u{1b}[2Jb\n"), 80);
    assert!(text.contains("a\u{fffd}[2Jb\u{fffd}"), "{text:?}");
}

#[test]
fn a_title_is_followed_by_its_text() {
    let mut out = Vec::new();
    titled(("NAME", Style::new().bold()), "what it does", Width::new(80), &mut out).unwrap();
    assert_eq!(stripped(&out), "NAME  what it does\n");
    out.clear();
    titled(("NAME", Style::new()), "word ".repeat(20).trim(), Width::new(60), &mut out).unwrap();
    let text = stripped(&out);
    assert!(text.lines().skip(1).all(|line| line.starts_with("  word")), "{text}");
    assert_eq!(text.split_whitespace().count(), 21, "{text}");
}

#[test]
fn the_middle_is_left_out_of_what_is_long() {
    assert_eq!(shortened("/opt/a:/opt/b", 13), "/opt/a:/opt/b");
    assert_eq!(shortened("/opt/a:/opt/b:/opt/c", 13), "/opt/...opt/c");
    assert_eq!(shortened("long", 3), "...");
    assert_eq!(shortened("ééééééééé", 7).chars().count(), 7);
}

proptest! {
    #[test]
    fn no_line_is_wider_than_asked(
        names in prop::collection::vec("\\PC{0,120}", 1..4),
        text in "\\PC{0,300}",
        columns in 60_usize..160,
    ) {
        let mut table = sample("x");
        for name in &names {
            table.row([name.as_str().into(), "2".into(), text.chars().take(9).collect::<String>().into()]);
        }
        table.below([Cell::from(text.as_str())]);
        let (shown, _) = shown(&table, columns);
        let wide = shown.split('\n').find(|line| length(line) > columns);
        prop_assert_eq!(wide, None);
        let mut out = Vec::new();
        paragraph(QUIET, &text, 4, Width::new(columns), &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        let said = anstream::adapter::strip_str(&said).to_string();
        prop_assert_eq!(said.split('\n').find(|line| length(line) > columns), None);
    }
}

#[test]
fn numbers_are_grouped() {
    let said = [0, 999, 1000, 1_234_567].map(grouped);
    assert_eq!(said, ["0", "999", "1,000", "1,234,567"]);
}
