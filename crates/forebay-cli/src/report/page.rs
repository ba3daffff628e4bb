//! The page: one HTML file with everything in it.

use serde_json::Error;

use super::data::Report;

/// The frame, with a mark for each part.
const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");

/// The program, in the order in which its parts need each other.
const SCRIPTS: [&str; 5] = [
    include_str!("page/base.js"),
    include_str!("page/chart.js"),
    include_str!("page/map.js"),
    include_str!("page/tables.js"),
    include_str!("page/main.js"),
];

/// The page of a report. It loads nothing.
pub(super) fn page(report: &Report) -> Result<String, Error> {
    let title = escaped(&report.run.name);
    let data = inert(&serde_json::to_string(report)?);
    let script = SCRIPTS.concat();
    let parts = [
        ("{{title}}", &*title),
        ("{{style}}", STYLE),
        ("{{script}}", &script),
        ("{{data}}", &data),
    ];
    let mut page = String::with_capacity(data.len() + (1 << 16));
    let mut rest = FRAME;
    // Marks are looked for in the frame alone: what was filled in may look like one.
    while let Some((mark, text)) =
        parts.iter().filter(|(mark, _)| rest.contains(mark)).min_by_key(|(mark, _)| rest.find(mark))
    {
        if let Some((before, after)) = rest.split_once(mark) {
            page.push_str(before);
            page.push_str(text);
            rest = after;
        }
    }
    page.push_str(rest);
    Ok(page)
}

/// JSON that ends no element and begins no comment: all of these characters are within strings.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Text between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_element_it_is_in() {
        assert_eq!(escaped("<script>\"&"), "&lt;script&gt;&quot;&amp;");
        let text = "</script><!-- & {{data}}";
        let json = inert(&serde_json::to_string(text).unwrap());
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
