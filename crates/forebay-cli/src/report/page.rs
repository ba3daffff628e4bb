//! The page: one HTML file with everything in it.

use serde_json::Error;

use super::data::Report;
use super::postmortem::PostMortem;

/// The frame, with a mark for each part.
const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = include_str!("page/page.css");

/// A kind of page: what it is called, its sections, and its program in the order in which its parts need each other.
struct Kind {
    brand: &'static str,
    main: &'static str,
    scripts: &'static [&'static str],
}

const RUN: Kind = Kind {
    brand: "forebay report",
    main: include_str!("page/run.html"),
    scripts: &[
        include_str!("page/base.js"),
        include_str!("page/time.js"),
        include_str!("page/owners.js"),
        include_str!("page/chart.js"),
        include_str!("page/map.js"),
        include_str!("page/tables.js"),
        include_str!("page/run-tables.js"),
        include_str!("page/main.js"),
    ],
};

const POST_MORTEM: Kind = Kind {
    brand: "forebay post-mortem",
    main: include_str!("page/postmortem.html"),
    scripts: &[
        include_str!("page/base.js"),
        include_str!("page/moment.js"),
        include_str!("page/map.js"),
        include_str!("page/tables.js"),
        include_str!("page/postmortem.js"),
    ],
};

/// The page of a report. It loads nothing.
pub(super) fn page(report: &Report) -> Result<String, Error> {
    Ok(filled(&RUN, report.run.title(), &serde_json::to_string(report)?))
}

/// The page of a pool at one moment. It loads nothing.
pub(super) fn post_mortem_page(found: &PostMortem) -> Result<String, Error> {
    Ok(filled(&POST_MORTEM, &found.title, &serde_json::to_string(found)?))
}

fn filled(kind: &Kind, title: &str, json: &str) -> String {
    let (title, data, script) = (escaped(title), inert(json), kind.scripts.concat());
    let parts = [
        ("{{title}}", &*title),
        ("{{brand}}", kind.brand),
        ("{{style}}", STYLE),
        ("{{main}}", kind.main),
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
    page
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
