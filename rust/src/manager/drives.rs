//! From settings to the drives of the disk tier.

use std::{path::Path, thread};

use super::{KvBlockManagerConfig, ManagerError};
use crate::{
    config::{
        Capacity, DiskConfig, DiskDurability, DriveConfig, Finding, Severity, Tier, format_size,
    },
    io::{PsyncEngine, PsyncOptions},
    pool::{PoolError, SlotPool},
    storage::disk::{
        DiskDirectory, DiskError, DiskOptions, DropReason, Durability, Geometry, Recovered,
        RecoveryReport, Superblocks,
    },
    sync::Arc,
    transfer::disk::{Drive, DriveOptions},
};

/// A drive that was opened.
pub(super) struct Opened {
    pub(super) options: DriveOptions,
    pub(super) report: RecoveryReport,
    pub(super) write_bytes_per_day: Option<u64>,
}

/// Opens the drives, all at the same time: each reads its table.
///
/// One of several that answers with an I/O error is left out, which costs its blocks and a warning.
/// What is wrong with settings or owners is an error whatever the others say.
pub(super) fn open(
    config: &KvBlockManagerConfig,
    drives: &[DriveConfig],
    geometry: Geometry,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Opened>, ManagerError> {
    let opened: Vec<Result<_, ManagerError>> = thread::scope(|scope| {
        let begun: Vec<_> = drives
            .iter()
            .map(|drive| scope.spawn(move || open_one(config, drive, geometry)))
            .collect();
        let ended = begun.into_iter().zip(drives);
        ended
            .map(|(opening, drive)| opening.join().unwrap_or_else(|_| Err(panicked(drive).into())))
            .collect()
    });
    let several = drives.len() > 1;
    let mut good = Vec::new();
    let mut dead = None;
    for (opened, drive) in opened.into_iter().zip(drives) {
        match opened {
            Ok((opened, found)) => {
                findings.extend(found);
                good.push(opened);
            }
            Err(ManagerError::Disk { source: source @ DiskError::Io(_) }) if several => {
                let source = source.on(&drive.dir.as_str().into());
                findings.push(Finding::new(
                    Severity::Warning,
                    "disk.drives",
                    &drive.dir,
                    format!("left out, its blocks are misses: {source}"),
                    "repair the drive and start again, or take it out of the list",
                ));
                dead = dead.or(Some(source));
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
    catch_up(&mut good)?;
    Ok(good)
}

/// A reset that a drive has not heard of is heard from the others.
fn catch_up(drives: &mut [Opened]) -> Result<(), DiskError> {
    let latest = drives.iter().map(|drive| drive.options.directory.generation()).max();
    for Opened { options, report, .. } in drives {
        let name = &options.name;
        let behind = options.directory.catch_up(latest.unwrap_or(0));
        if behind.map_err(|error| error.on(name))? {
            *report.dropped.entry(DropReason::Generation).or_default() += report.kept;
            report.kept = 0;
            options.recovered.clear();
        }
    }
    Ok(())
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
    let said =
        directory.findings().into_iter().map(|finding| info(&drive.dir, finding.to_string()));
    let findings = said.collect();
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

fn info(dir: &str, message: String) -> Finding {
    Finding::new(Severity::Info, "disk.dir", dir, message, "nothing is needed")
}

/// Opening never panics; a bug in it is an error all the same.
fn panicked(drive: &DriveConfig) -> DiskError {
    let reason = format!("opening {} broke off", drive.dir);
    crate::io::IoError::Thread { reason }.into()
}
