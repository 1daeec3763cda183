//! Trace files: plain or gzip, told apart by their first bytes, never by their name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::{TraceError, TraceProblem};
use super::format::TraceFormat;
use super::trace::{Trace, TraceBuilder};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Most bytes of one line: above any request within the limit on blocks that is written sensibly,
/// and what keeps a file without line ends (or a gzip bomb) from filling memory.
const MAX_LINE_BYTES: u64 = 64 << 20;

impl Trace {
    /// Reads the trace at `path`. Its format is found from its first line unless given.
    ///
    /// The trace is named after the file, without the endings `.gz` and `.jsonl`. Lines of white
    /// space are skipped; a file without a request is an empty trace only if `format` is given.
    pub fn open(path: impl AsRef<Path>, format: Option<TraceFormat>) -> Result<Trace, TraceError> {
        let path = path.as_ref();
        let mut line = None;
        read(path, format, &mut line).map_err(|problem| TraceError {
            path: path.to_owned(),
            line,
            problem,
        })
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.strip_suffix(".jsonl").unwrap_or(name).to_owned()
}

/// `at` is the number of the line being read, for the error.
fn read(
    path: &Path,
    format: Option<TraceFormat>,
    at: &mut Option<u64>,
) -> Result<Trace, TraceProblem> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(TraceProblem::Io)?);
    let is_gzip = file.fill_buf().map_err(TraceProblem::Io)?.starts_with(&GZIP_MAGIC);
    let trace = if is_gzip {
        parse(BufReader::new(MultiGzDecoder::new(file)), TraceProblem::Gzip, format, at)?
    } else {
        parse(file, TraceProblem::Io, format, at)?
    };
    Ok(trace.finish(name_of(path)))
}

fn parse(
    mut lines: impl BufRead,
    io_problem: fn(io::Error) -> TraceProblem,
    mut format: Option<TraceFormat>,
    at: &mut Option<u64>,
) -> Result<TraceBuilder, TraceProblem> {
    let mut trace = TraceBuilder::default();
    let mut line = Vec::new();
    for number in 1.. {
        *at = Some(number);
        line.clear();
        let mut limited = lines.by_ref().take(MAX_LINE_BYTES + 1);
        if limited.read_until(b'\n', &mut line).map_err(io_problem)? == 0 {
            break;
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            return Err(TraceProblem::LineTooLong { limit: MAX_LINE_BYTES });
        }
        let content = line.trim_ascii();
        if content.is_empty() {
            continue;
        }
        let format = match format {
            Some(format) => format,
            None => *format.insert(TraceFormat::detect(content)?),
        };
        format.read(content, &mut trace)?;
    }
    *at = None;
    match format {
        Some(_) => Ok(trace),
        None => Err(TraceProblem::UnknownFormat),
    }
}
