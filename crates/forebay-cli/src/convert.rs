//! `forebay convert`: a recording in another form.

use std::io::{self, Write};

use forebay_core::Bytes;
use forebay_trace::format::{check_ending, read_path, write_path};
use forebay_trace::{FormatError, ReadOptions};

use crate::Ending;
use crate::command::ConvertOptions;
use crate::output::complain;

/// Reads, writes, and says on `out` what came of it.
pub(crate) fn run(options: &ConvertOptions, out: &mut dyn Write) -> io::Result<Ending> {
    let (input, output) = (options.input.display(), options.output.display());
    // Before anything is read: a large file is not read in vain.
    if let Err(error) = check_ending(&options.output) {
        complain(error);
        return Ok(Ending::BadUsage);
    }
    let mut reading = ReadOptions::default();
    reading.device = options.of_device;
    let trace = match read_path(&options.input, &reading) {
        Ok(trace) => trace,
        Err(error) => {
            complain(format_args!("{input}: {error}"));
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
    let size = |path| std::fs::metadata(path).map_or(0, |file| file.len());
    writeln!(
        out,
        "{}: {} events, {} read, {} written to {output}",
        trace.name(),
        trace.len(),
        Bytes::new(size(&options.input)),
        Bytes::new(size(&options.output)),
    )?;
    out.flush()?;
    Ok(Ending::Well)
}
