//! Filing what came back from a machine with a GPU, so that figures have somewhere to come from.
//!
//! ```text
//!   benches/records/nvidia-h200/2026-11-15/record.json        what was run, with the commit, and all rows
//!                                          conformance.txt ...  what the parts said
//!                                          record-2.json ...    a second run of that day
//! ```

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::files;
use crate::workplace::Workplace;

/// What a record must say it is.
const SCHEMA: &str = "forebay.record.v1";

/// Where records go.
const RECORDS: &str = "benches/records";

/// Of what a part said, so much is kept; more is a log, not a record.
const MAX_TEXT: u64 = 256 << 10;

/// What is to be filed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Record {
    /// The folder that came back: the one with record.json in it.
    #[arg(value_name = "DIR")]
    from: PathBuf,
}

/// Where a record goes, by what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    gpu: String,
    date: String,
    commit: String,
}

impl Record {
    /// Files it.
    pub(crate) fn file(&self, place: &Workplace) -> Result<String, String> {
        let (path, label, left_out) = file(&self.from, &place.root().join(RECORDS))?;
        let mut said = format!("{} (commit {})", path.display(), label.commit);
        for name in left_out {
            said += &format!("\nleft out, as it is over 256 KiB: {name}");
        }
        Ok(said)
    }
}

/// Files a record and the texts beside it below `records`. Gives where the record is and which texts
/// were too long.
fn file(from: &Path, records: &Path) -> Result<(PathBuf, Label, Vec<String>), String> {
    let path = from.join("record.json");
    let text = files::read(&path)?;
    let record =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let label = label(&record)?;
    let folder = records.join(&label.gpu).join(&label.date);
    // A record is never replaced: the figures in papers came from it.
    let marks = std::iter::once(String::new()).chain((2_u32..).map(|number| format!("-{number}")));
    let mut free = marks.map(|mark| (folder.join(format!("record{mark}.json")), mark));
    let (to, mark) =
        free.find(|(path, _)| !path.exists()).ok_or("there are too many records of that day")?;
    files::write(&to, &text)?;
    let mut left_out = Vec::new();
    for path in files::entries(from)? {
        let size = path.metadata().map_err(files::told(&path))?.len();
        let Some(stem) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".txt"))
        else {
            continue;
        };
        if size > MAX_TEXT {
            left_out.push(format!("{stem}.txt"));
        } else {
            files::copy(&path, &folder.join(format!("{stem}{mark}.txt")))?;
        }
    }
    Ok((to, label, left_out))
}

/// What a record says of itself, refused where something is missing: a figure without its machine,
/// day and commit says nothing.
fn label(record: &Value) -> Result<Label, String> {
    let said = |key: &str| {
        let value = record[key].as_str().map(str::trim).filter(|text| !text.is_empty());
        value.ok_or_else(|| format!("the record has no \"{key}\""))
    };
    let schema = said("schema")?;
    if schema != SCHEMA {
        return Err(format!("the record is {schema:?}, and {SCHEMA:?} is what is filed here"));
    }
    let name = said("gpu")?;
    if name == "unknown" {
        return Err("the record does not know which GPU it is of".to_owned());
    }
    let (date, commit) = (said("date")?, said("commit")?);
    let day = date.get(..10).filter(|day| is_day(day));
    let day = day.ok_or_else(|| format!("{date:?} does not begin with a day, as 2026-11-15"))?;
    let hash = commit.strip_suffix("+changes").unwrap_or(commit);
    if hash.len() != 40 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("{commit:?} is no commit"));
    }
    if hash != commit {
        return Err(format!(
            "it was built from {hash} with changes that are in no commit: commit them and run it \
             again, so that others can have the same"
        ));
    }
    if record["rows"].as_array().is_none_or(Vec::is_empty) {
        return Err("the record has no rows".to_owned());
    }
    Ok(Label { gpu: folder_name(name), date: day.to_owned(), commit: commit.to_owned() })
}

fn is_day(text: &str) -> bool {
    let right = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(right)
}

/// "NVIDIA H200" as "nvidia-h200": letters and digits, and one dash for all that lies between.
fn folder_name(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<String> =
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "schema": SCHEMA,
            "gpu": "NVIDIA H200",
            "driver": "580.159",
            "date": "2026-11-15T10:00:00Z",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "rows": [{"row": "part"}],
        })
    }

    #[test]
    fn a_record_goes_by_gpu_and_day_and_replaces_none() {
        let place = tempfile::tempdir().unwrap();
        let (from, records) = (place.path().join("out"), place.path().join("records"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("record.json"), good().to_string()).unwrap();
        fs::write(from.join("kernels.txt"), "ok\n").unwrap();
        fs::write(from.join("peers.txt"), vec![b'x'; 300 << 10]).unwrap();
        let (path, label, left_out) = file(&from, &records).unwrap();
        let folder = records.join("nvidia-h200/2026-11-15");
        assert_eq!(path, folder.join("record.json"));
        assert_eq!(label.commit, "0123456789abcdef0123456789abcdef01234567");
        assert_eq!(left_out, ["peers.txt"]);
        assert_eq!(fs::read_to_string(folder.join("kernels.txt")).unwrap(), "ok\n");
        let (again, ..) = file(&from, &records).unwrap();
        assert_eq!(again, folder.join("record-2.json"));
        assert!(folder.join("kernels-2.txt").exists());
    }

    #[test]
    fn a_record_without_its_origin_is_refused() {
        assert!(label(&good()).is_ok());
        for (key, value, complaint) in [
            ("schema", json!("forebay.record.v9"), "forebay.record.v1"),
            ("gpu", json!("unknown"), "which GPU"),
            ("gpu", Value::Null, "no \"gpu\""),
            ("date", json!("yesterday"), "does not begin with a day"),
            ("date", json!("2026-11-ü5"), "does not begin with a day"),
            ("commit", json!("HEAD"), "is no commit"),
            (
                "commit",
                json!("0123456789abcdef0123456789abcdef01234567+changes"),
                "commit them and run it again",
            ),
            ("rows", json!([]), "no rows"),
        ] {
            let mut record = good();
            record[key] = value;
            let refused = label(&record).unwrap_err();
            assert!(refused.contains(complaint), "{key}: {refused}");
        }
    }

    #[test]
    fn a_name_makes_a_folder_and_no_path() {
        assert_eq!(folder_name("NVIDIA H200"), "nvidia-h200");
        assert_eq!(folder_name("../../etc/NVIDIA  A100-SXM4"), "etc-nvidia-a100-sxm4");
    }
}
