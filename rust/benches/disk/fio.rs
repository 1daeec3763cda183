//! fio as a child process.
//!
//! One job for each way, some passes over a file that has been written before; the rate is what its
//! JSON says: bytes over the runtime of the job that took longest.
//!
//! Its buffers come from malloc, which is asked to have them in huge pages, and are aligned to them:
//! fio has no option for transparent ones. Without the alignment part of the buffers lies in small
//! pages, and it loses a tenth to a half.
//!
//! Which engine is fastest depends on machine and kernel, so the fastest of a trial is taken, each way
//! for itself. `libaio` and `io_uring` keep the depth from one thread; `psync` with a thread for each
//! request is our own shape. On a virtual machine with two cores they were within their noise of each
//! other while nothing else ran; beside other work `psync` gets more of the processors. Its rate
//! flatters it a little: each of its threads has a clock of its own, which starts when it can.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::figure::median;
use crate::{DEPTH, FILE, MIB, PASSES, Way, plain};

const ENGINES: [&str; 3] = ["libaio", "io_uring", "psync"];

/// How to call it.
pub(crate) struct Fio {
    /// Written and read.
    files: [PathBuf; 2],
    piece: usize,
    direct: bool,
    /// The fastest for writing and for reading.
    engines: [&'static str; 2],
}

impl Fio {
    /// `None` where there is no fio. Writes both files, and finds the fastest engines.
    pub(crate) fn new(files: [&Path; 2], piece: usize) -> Option<Self> {
        if Command::new("fio").arg("--version").output().is_err() {
            return None;
        }
        let (_, direct) = plain::open(files[0]);
        let files = files.map(Path::to_path_buf);
        let mut fio = Self { files, piece, direct, engines: ["libaio"; 2] };
        for _ in 0..2 {
            fio.rate(Way::Write);
            fio.files.reverse();
        }
        fio.engines = [Way::Write, Way::Read].map(|way| {
            let rate = |engine: &'static str| {
                let rate = || rate_of(&fio.run(&[(way, engine)]).ok()?);
                // A kernel may lack one of them.
                let rates = (0..3).map(|_| rate().unwrap_or(0.0)).collect();
                (median(rates), engine)
            };
            let rates = ENGINES.map(rate);
            rates.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap().1
        });
        Some(fio)
    }

    /// What it is, for a figure.
    pub(crate) fn name(&self, way: Way) -> String {
        let [write, read] = self.engines;
        match way {
            Way::Write => format!("fio {write}"),
            Way::Read => format!("fio {read}"),
            Way::Mixed => format!("fio {write} and {read}"),
        }
    }

    /// Bytes per second of one call.
    pub(crate) fn rate(&self, way: Way) -> f64 {
        let [write, read] = self.engines;
        let report = match way {
            Way::Write => self.run(&[(way, write)]),
            Way::Read => self.run(&[(way, read)]),
            Way::Mixed => self.run(&[(Way::Write, write), (Way::Read, read)]),
        };
        rate_of(&report.unwrap()).unwrap()
    }

    /// Its report on some jobs at once.
    fn run(&self, jobs: &[(Way, &str)]) -> Result<Value, String> {
        let mut fio = Command::new("fio");
        fio.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        let direct = u8::from(self.direct);
        fio.args(["--output-format=json", "--thread", "--group_reporting", "--fallocate=posix"]);
        fio.arg(format!("--mem_align={}", 2 * MIB));
        fio.arg(format!("--direct={direct}")).arg(format!("--bs={}", self.piece));
        for (way, engine) in jobs {
            let file = &self.files[usize::from(*way == Way::Read)];
            fio.arg(format!("--name={}", way.name())).arg("--new_group");
            fio.arg(format!("--rw={}", way.name())).arg(format!("--filename={}", file.display()));
            fio.arg(format!("--ioengine={engine}"));
            fio.arg(format!("--loops={PASSES}"));
            if *engine == "psync" {
                let part = FILE / DEPTH;
                fio.arg(format!("--numjobs={DEPTH}"));
                fio.arg(format!("--size={part}")).arg(format!("--offset_increment={part}"));
            } else {
                fio.arg(format!("--iodepth={DEPTH}")).arg(format!("--size={FILE}"));
            }
        }
        let output = fio.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }
}

/// Bytes of all jobs over the time of the longest.
fn rate_of(report: &Value) -> Option<f64> {
    let (mut bytes, mut millis) = (0, 0);
    for job in report["jobs"].as_array()? {
        for way in ["read", "write"] {
            bytes += job[way]["io_bytes"].as_u64()?;
            millis = millis.max(job[way]["runtime"].as_u64()?);
        }
    }
    assert_eq!(bytes % (PASSES * FILE) as u64, 0, "fio moves what ours does");
    Some(bytes as f64 * 1e3 / millis.max(1) as f64)
}
