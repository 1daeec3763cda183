//! Control groups, versions 1 and 2.
//!
//! A limit may sit on any group between the process and the root, so all of them are read. Usage
//! counts cached file pages, which the kernel drops under pressure; the inactive ones do not count
//! here, or a container that has read a large model file would look full.

use std::fs;
use std::path::{Path, PathBuf};

/// The names that differ between the versions.
struct Version {
    file_system: &'static str,
    /// What the mount options say where each controller has a hierarchy of its own.
    mount_option: Option<&'static str>,
    limits: &'static [&'static str],
    usage: &'static str,
    inactive_file: &'static str,
    /// Where the hierarchy is mounted when the mount table does not say.
    usual_mount: &'static str,
}

const V1: Version = Version {
    file_system: "cgroup",
    mount_option: Some("memory"),
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file",
    usual_mount: "/sys/fs/cgroup/memory",
};

/// Past `memory.high` a group is throttled to a crawl, which is as bad as the end.
const V2: Version = Version {
    file_system: "cgroup2",
    mount_option: None,
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    inactive_file: "inactive_file",
    usual_mount: "/sys/fs/cgroup",
};

/// For each limit on this process's groups: bytes left under it and the file that sets it, the
/// innermost group first.
pub(super) fn headrooms(root: &Path) -> Vec<(u64, PathBuf)> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    for line in membership.lines() {
        // hierarchy-id:controllers:path, where version 2 names no controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => &V2,
            names if names.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        let (top, inside) = locate(&mounts, version, group);
        let top = root.join(top.trim_start_matches('/'));
        let innermost = top.join(inside);
        for dir in innermost.ancestors().take_while(|dir| dir.starts_with(&top)) {
            collect(dir, version, &mut found);
        }
    }
    found
}

/// The mount point of the hierarchy, and the group's path below it.
///
/// A container often sees only its own part of the tree: the mount then starts at some group, and
/// the path of the process is relative to that. A group that is not below the mount's start cannot
/// be seen; the mount point itself is the closest.
fn locate<'a>(mounts: &'a str, version: &Version, group: &'a str) -> (&'a str, &'a str) {
    let (start, point) = mounts
        .lines()
        .find_map(|line| mount_of(line, version))
        .unwrap_or(("/", version.usual_mount));
    let inside = match group.strip_prefix(start.trim_end_matches('/')) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_matches('/'),
        _ => "",
    };
    // Outside the process's cgroup namespace.
    let inside = if inside.split('/').any(|part| part == "..") { "" } else { inside };
    (point, inside)
}

/// The start and the mount point of a line of `mountinfo`, if it is the hierarchy looked for.
fn mount_of<'a>(line: &'a str, version: &Version) -> Option<(&'a str, &'a str)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fs_fields = file_system.split(' ');
    let (kind, _device, options) = (fs_fields.next()?, fs_fields.next()?, fs_fields.next()?);
    let wanted = kind == version.file_system
        && version.mount_option.is_none_or(|wanted| options.split(',').any(|o| o == wanted));
    let mut fields = mount.split(' ').skip(3);
    wanted.then_some((fields.next()?, fields.next()?))
}

/// Adds the limits of one group.
fn collect(dir: &Path, version: &Version, found: &mut Vec<(u64, PathBuf)>) {
    let usage = number(&dir.join(version.usage)).unwrap_or(0);
    let held = usage.saturating_sub(inactive_file(dir, version));
    for name in version.limits {
        let file = dir.join(name);
        // "max" and absent files are no limit.
        if let Some(limit) = number(&file) {
            found.push((limit.saturating_sub(held), file));
        }
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn inactive_file(dir: &Path, version: &Version) -> u64 {
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    stat.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|&(name, _)| name == version.inactive_file)
        .and_then(|(_, bytes)| bytes.trim().parse().ok())
        .unwrap_or(0)
}
