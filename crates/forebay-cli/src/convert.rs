//! `forebay convert`: converts a recording to another format.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use forebay_core::{Bytes, counted};
use forebay_trace::FormatError;
use forebay_trace::format::{check_ending, write_path};
use serde::Serialize;

use crate::Ending;
use crate::limit::ReadingOptions;
use crate::output::complain;
use crate::source::{Recording, Source};

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.convert.v1";

/// The options of `forebay convert`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The recording to read, in any format; "-" reads standard input.
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The file to write; its ending selects the format: .csv, .fbt, .pickle, .log or .json, each also with .gz.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// Print one line of JSON, with "schema": "forebay.convert.v1".
    #[arg(long)]
    pub json: bool,
}

/// The result, for programs.
#[derive(Serialize)]
struct Row<'a> {
    schema: &'static str,
    trace: &'a str,
    input: String,
    output: String,
    events: u64,
    read_bytes: u64,
    written_bytes: u64,
}

/// Converts the recording, and reports the result on `out`.
pub(crate) fn run(options: &ConvertOptions, out: &mut dyn Write) -> io::Result<Ending> {
    let (input, output) = (options.input.display(), options.output.display());
    // Check this first, so that a large file is not read in vain.
    if let Err(error) = check_ending(&options.output) {
        complain(error);
        return Ok(Ending::BadUsage);
    }
    let reading = options.reading.options();
    let source = Source::of(&options.input);
    let Recording { trace, bytes } = match source.read(&reading) {
        Ok(recording) => recording,
        Err(error) => {
            complain(format_args!("{source}: {error}"));
            return Ok(Ending::Fault);
        }
    };
    if let Err(error) = write_path(&trace, &options.output) {
        complain(format_args!("{output}: {error}"));
        return Ok(match error {
            FormatError::UnknownEnding { .. } => Ending::BadUsage,
            _ => Ending::Fault,
        });
    }
    let row = Row {
        schema: SCHEMA,
        trace: trace.name(),
        input: input.to_string(),
        output: output.to_string(),
        events: trace.len() as u64,
        read_bytes: bytes,
        written_bytes: std::fs::metadata(&options.output).map_or(0, |file| file.len()),
    };
    // One write, so that other programs' lines do not interrupt it.
    let text = match options.json {
        true => serde_json::to_string(&row)?,
        false => format!(
            "{}: {}, {} read, {} written to {output}",
            row.trace,
            counted(row.events, "event"),
            Bytes::new(row.read_bytes),
            Bytes::new(row.written_bytes),
        ),
    };
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(Ending::Well)
}
