//! From settings to the drives of the disk tier.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use super::{KvBlockManagerConfig, ManagerError, disk_tier};
use crate::{
    config::{
        Capacity, DiskConfig, DiskDurability, DriveConfig, Finding, Severity, Tier, format_size,
    },
    io::{IoError, Lane, PsyncEngine, PsyncOptions},
    pool::{PoolError, SlotPool},
    seal::Fingerprint,
    storage::disk::{
        DiskDirectory, DiskError, DiskFinding, DiskOptions, DropReason, Durability, Geometry,
        Recovered, RecoveryReport, Superblocks,
    },
    sync::Arc,
    transfer::disk::{Answer, Drive, DriveOptions},
};

/// How long a drive may take to open. Its table is read, at a million records in a third of a second:
/// this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A drive that was opened.
pub(super) struct Opened {
    pub(super) options: DriveOptions,
    pub(super) report: RecoveryReport,
    pub(super) write_bytes_per_day: Option<u64>,
}

/// Opens the drives, all at the same time: each reads its table.
///
/// One of several that answers with an I/O error, or not at all, is left out, which costs its blocks
/// and a warning. What is wrong with settings or owners is an error whatever the others say.
pub(super) fn open(
    config: &KvBlockManagerConfig,
    drives: &[DriveConfig],
    geometry: Geometry,
    fingerprint: Fingerprint,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Opened>, ManagerError> {
    // All begin before one is waited for.
    let begun = drives.iter().map(|drive| {
        let (config, drive) = (config.clone(), drive.clone());
        Answer::of("dynamo-open", move || {
            let opened = catch_unwind(AssertUnwindSafe(|| open_one(&config, &drive, geometry)));
            opened.unwrap_or_else(|_| Err(panicked(&drive).into()))
        })
    });
    let begun: Vec<_> = begun.collect();
    let until = Instant::now() + PATIENCE;
    // One that is late lets go of its directory as it comes.
    let late = || {
        Err(DiskError::Io(IoError::Stuck { lane: Lane::Load, millis: PATIENCE.as_millis() as u64 })
            .into())
    };
    let opened = begun.into_iter().map(|begun| match begun {
        Ok(opening) => opening.by(until).unwrap_or_else(late),
        Err(error) => Err(DiskError::Io(error).into()),
    });
    let several = drives.len() > 1;
    let mut good = Vec::new();
    let mut dead = None;
    for (opened, drive) in opened.zip(drives) {
        match opened {
            Ok((opened, found)) => {
                findings.extend(found);
                good.push(opened);
            }
            Err(ManagerError::Disk { source: source @ DiskError::Io(_) }) if several => {
                dead = dead.or(Some(leave_out(&drive.dir.as_str().into(), source, findings)));
            }
            Err(ManagerError::Disk { source }) if several => {
                return Err(source.on(&drive.dir.as_str().into()).into());
            }
            Err(error) => return Err(error),
        }
    }
    match dead {
        Some(dead) if good.is_empty() => return Err(dead.into()),
        _ => {}
    }
    Ok(agree(good, fingerprint, &disk_tier::label(&config.settings), several, findings)?)
}

/// Says that a drive takes no part, and why.
fn leave_out(dir: &Arc<str>, why: DiskError, findings: &mut Vec<Finding>) -> DiskError {
    let why = why.on(dir);
    findings.push(Finding::new(
        Severity::Warning,
        "disk.drives",
        dir,
        format!("left out, its blocks are misses: {why}"),
        "repair the drive and start again, or take it out of the list",
    ));
    why
}

/// Brings the drives to one state. One of several that cannot take note of it is left out.
fn agree(
    drives: Vec<Opened>,
    fingerprint: Fingerprint,
    label: &str,
    several: bool,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Opened>, DiskError> {
    let generations = drives.iter().map(|drive| drive.options.directory.generation());
    let latest = generations.max().unwrap_or(0);
    let (mut good, mut dead) = (Vec::with_capacity(drives.len()), None);
    for mut drive in drives {
        let agreed = drive.catch_up(latest).and_then(|()| drive.claim(fingerprint, label));
        let name = &drive.options.name;
        match agreed {
            Ok(()) => good.push(drive),
            Err(error @ DiskError::Io(_)) if several => {
                dead = dead.or(Some(leave_out(name, error, findings)));
            }
            Err(error) if several => return Err(error.on(name)),
            Err(error) => return Err(error),
        }
    }
    match dead {
        Some(dead) if good.is_empty() => Err(dead),
        _ => Ok(good),
    }
}

impl Opened {
    /// A reset that a drive has not heard of is heard from the others: its blocks must not be found.
    fn catch_up(&mut self, latest: u64) -> Result<(), DiskError> {
        let Self { options, report, .. } = self;
        if options.directory.catch_up(latest)? {
            *report.dropped.entry(DropReason::Generation).or_default() += report.kept;
            report.kept = 0;
            options.recovered.clear();
        }
        Ok(())
    }

    /// Enters the fingerprint, while a drive that cannot can still be left out.
    fn claim(&mut self, fingerprint: Fingerprint, label: &str) -> Result<(), DiskError> {
        let options = &mut self.options;
        let claimed = options.directory.claim_fingerprint(*fingerprint.as_bytes(), label)?;
        options.recovered.retain(|block| Some(block.record.fingerprint) != claimed.1);
        Ok(())
    }
}

fn open_one(
    config: &KvBlockManagerConfig,
    drive: &DriveConfig,
    geometry: Geometry,
) -> Result<(Opened, Vec<Finding>), ManagerError> {
    let disk = &config.settings.disk;
    let (capacity, bytes) = size(drive, geometry)?;
    let options = options(disk, bytes, geometry);
    let (directory, Recovered { blocks: recovered, report }) = match config.volume(&drive.dir) {
        Some(volume) => DiskDirectory::open_on(volume.clone(), options)?,
        None => DiskDirectory::open(Path::new(&drive.dir), options)?,
    };
    let findings = directory.findings().iter().map(|found| finding(&drive.dir, found)).collect();
    let io = config.drive.io.clone().unwrap_or_else(|| PsyncOptions {
        load_threads: disk.io_threads,
        store_threads: disk.io_threads.div_ceil(2),
        load_queue: 1 << 16,
        store_queue: 1 << 14,
        ..PsyncOptions::default()
    });
    let threads = (io.load_threads, io.store_threads);
    let io = Arc::new(PsyncEngine::new(io).map_err(DiskError::from)?);
    let name = drive.dir.as_str().into();
    let options = DriveOptions { name, capacity, directory, recovered, io, threads };
    let write_bytes_per_day = drive.write_bytes_per_day;
    Ok((Opened { options, report, write_bytes_per_day }, findings))
}

fn options(disk: &DiskConfig, bytes: u64, geometry: Geometry) -> DiskOptions {
    let mut options = DiskOptions::new(bytes, geometry);
    options.direct = disk.direct;
    options.reuse = disk.reuse;
    options.durability = match disk.durability {
        DiskDurability::Power => Durability::Power,
        _ => Durability::Process,
    };
    options
}

/// Blocks, and the most bytes of everything.
fn size(drive: &DriveConfig, geometry: Geometry) -> Result<(usize, u64), ManagerError> {
    let max = SlotPool::MAX_CAPACITY;
    let (blocks, bytes) = match drive.capacity {
        Capacity::Bytes(bytes) => {
            let slots = geometry.slots_in(bytes).min(max as u64);
            (usize::try_from(slots).unwrap_or(max), bytes)
        }
        Capacity::Blocks(blocks) => (blocks, geometry.directory_bytes(blocks as u64)),
        _ => (0, 0),
    };
    if blocks == 0 {
        return Err(DiskError::InvalidConfig {
            field: "disk.bytes",
            value: format_size(bytes),
            remedy: "give room for at least one block",
        }
        .into());
    }
    if blocks > max {
        return Err(PoolError::InvalidCapacity { tier: Tier::Disk, capacity: blocks, max }.into());
    }
    Ok((blocks, bytes))
}

/// What was kept, and why the rest was not.
pub(super) fn recovery(drive: &Drive, reuse: bool, report: &RecoveryReport) -> Finding {
    let (dir, readable) = (drive.name(), drive.found());
    let mut said = vec![format!("{readable} blocks found")];
    let others = report.kept.saturating_sub(readable as u64);
    if others > 0 {
        said.push(format!("{others} of other models left alone"));
    }
    let dropped = report.dropped.iter();
    said.extend(dropped.map(|(reason, count)| format!("{count} dropped ({reason})")));
    if !report.removed.is_empty() {
        said.push(format!("{} old files removed", report.removed.len()));
    }
    said.extend(report.died.iter().map(|died| format!("the owner before died ({died})")));
    // Also what is said of a directory that is not to be reused.
    let lost = reuse && report.superblocks == Superblocks::Lost;
    if lost {
        said.push("the superblock was lost and the directory starts empty".to_owned());
    }
    let said = said.join(", ");
    if lost {
        let remedy = "look for damage on the drive";
        return Finding::new(Severity::Warning, "disk.dir", dir, said, remedy);
    }
    info(dir, said)
}

fn finding(dir: &str, found: &DiskFinding) -> Finding {
    if let DiskFinding::Overcommitted { .. } = found {
        let remedy = "lower the limit, or make room: what does not fit is not stored";
        return Finding::new(Severity::Warning, "disk.bytes", dir, found.to_string(), remedy);
    }
    info(dir, found.to_string())
}

fn info(dir: &str, message: String) -> Finding {
    Finding::new(Severity::Info, "disk.dir", dir, message, "nothing is needed")
}

/// Opening never panics; a bug in it is an error all the same.
fn panicked(drive: &DriveConfig) -> DiskError {
    let reason = format!("opening {} broke off", drive.dir);
    crate::io::IoError::Thread { reason }.into()
}
