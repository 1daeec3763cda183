//! A volume in memory that remembers what a drive might have lost.
//!
//! Per sector: the bytes that are durable, and every later version in order. A sync makes the last
//! version durable. After a power failure each sector holds its durable bytes or any one of the later
//! versions, independently of all others; lengths and names likewise. After a kill everything that
//! was written is there, up to some sector of the write that was under way.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::mix;
use crate::io::{FileOp, IoError, IoFile, IoMode, OpenFile, Place, Volume};
use crate::sync::{Arc, Mutex, MutexGuard};

/// What a drive writes whole or not at all.
pub const SECTOR: usize = 512;

type Sector = [u8; SECTOR];

/// How the run over a volume ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process is killed; the system goes on and keeps what was written.
    Kill,
    /// The power fails: what was not synced is there, or not, as the seed decides.
    Power {
        /// Decides.
        seed: u64,
    },
}

/// A volume in memory; clones share it.
#[derive(Clone)]
pub struct MemoryVolume {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Clone, Default)]
struct Disk {
    /// Names as they are, and as they are known to last.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    nodes: Vec<Node>,
    /// Sectors there is room for.
    capacity: Option<usize>,
    /// Operations until it stops; `None`: it does not.
    left: Option<u64>,
    /// Changing operations so far.
    operations: u64,
    /// Decides how much of the write at which it stops gets through.
    seed: u64,
    /// What it cannot.
    no_allocate: bool,
    no_punch: bool,
}

#[derive(Clone, Default)]
struct Node {
    len: u64,
    durable_len: u64,
    durable: BTreeMap<u64, Sector>,
    /// Later versions, oldest first; never an empty list.
    later: BTreeMap<u64, Vec<Sector>>,
}

impl Node {
    fn sector(&self, number: u64) -> Sector {
        let later = self.later.get(&number).and_then(|versions| versions.last());
        *later.or_else(|| self.durable.get(&number)).unwrap_or(&[0; SECTOR])
    }

    /// Sectors of a range that have no room yet.
    fn missing(&self, range: Range<u64>) -> Vec<u64> {
        let numbers = range.start / SECTOR as u64..range.end.div_ceil(SECTOR as u64);
        let has =
            |number: &u64| self.later.contains_key(number) || self.durable.contains_key(number);
        numbers.filter(|number| !has(number)).collect()
    }

    fn sync(&mut self) {
        for (number, versions) in std::mem::take(&mut self.later) {
            self.durable.extend(versions.last().map(|&last| (number, last)));
        }
        self.durable_len = self.len;
    }

    /// Keeps per sector and for the length what `choose(options)` picks; 0 is the durable one.
    fn settle(&mut self, choose: &mut impl FnMut(usize) -> usize) {
        for (number, versions) in std::mem::take(&mut self.later) {
            if let Some(pick) = choose(versions.len() + 1).checked_sub(1) {
                self.durable.insert(number, versions[pick]);
            }
        }
        self.len = [self.durable_len, self.len][choose(2)];
        self.cut();
        self.durable_len = self.len;
    }

    /// What lies past the end is gone.
    fn cut(&mut self) {
        let end = self.len.div_ceil(SECTOR as u64);
        self.durable.retain(|&number, _| number < end);
        let tail = (self.len % SECTOR as u64) as usize;
        if let Some(sector) = self.durable.get_mut(&(end.saturating_sub(1)))
            && tail > 0
        {
            sector[tail..].fill(0);
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut at = offset;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let (number, start) = (at / SECTOR as u64, (at % SECTOR as u64) as usize);
            let (now, rest) = bytes.split_at(bytes.len().min(SECTOR - start));
            let mut sector = self.sector(number);
            sector[start..start + now.len()].copy_from_slice(now);
            self.later.entry(number).or_default().push(sector);
            at += now.len() as u64;
            bytes = rest;
        }
        self.len = self.len.max(at);
    }
}

impl Disk {
    fn used(&self) -> usize {
        let sectors = |node: &Node| {
            let fresh = node.later.keys().filter(|&number| !node.durable.contains_key(number));
            node.durable.len() + fresh.count()
        };
        self.names.values().map(|&node| sectors(&self.nodes[node])).sum()
    }

    fn alive(&self) -> io::Result<()> {
        if self.left == Some(0) { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }

    /// Counts a changing operation. `Err` when the run is over; otherwise whether this is the last
    /// one, which may get through in part.
    fn step(&mut self) -> io::Result<bool> {
        self.alive()?;
        self.operations += 1;
        let Some(left) = &mut self.left else { return Ok(false) };
        *left -= 1;
        Ok(*left == 0)
    }

    fn room(&self, sectors: usize) -> io::Result<()> {
        if self.capacity.is_some_and(|capacity| self.used() + sectors > capacity) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }
}

impl MemoryVolume {
    /// An empty volume.
    pub fn new() -> Self {
        Self { disk: Arc::new(Mutex::new(Disk::default())) }
    }

    /// Room for so many bytes from now on; more is refused with `ENOSPC`.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().capacity = Some((bytes / SECTOR as u64) as usize);
    }

    /// Whether room can be reserved and given back; otherwise `EOPNOTSUPP`.
    pub fn set_abilities(&self, allocate: bool, punch: bool) {
        let mut disk = self.disk.lock();
        (disk.no_allocate, disk.no_punch) = (!allocate, !punch);
    }

    /// Stops in the course of the `operations`th changing operation from now: a write gets through
    /// in part, and everything after it fails.
    pub fn stop_after(&self, operations: u64, seed: u64) {
        let mut disk = self.disk.lock();
        (disk.left, disk.seed) = (Some(operations.max(1)), seed);
    }

    /// Changing operations so far.
    pub fn operations(&self) -> u64 {
        self.disk.lock().operations
    }

    /// Bytes of the sectors in use.
    pub fn used(&self) -> u64 {
        (self.disk.lock().used() * SECTOR) as u64
    }

    /// The volume that is found after a crash now. This one is left as it is.
    #[must_use]
    pub fn after(&self, crash: Crash) -> Self {
        let mut disk = self.disk.lock().clone();
        (disk.left, disk.operations) = (None, 0);
        match crash {
            Crash::Kill => disk.nodes.iter_mut().for_each(Node::sync),
            Crash::Power { seed } => {
                let mut random = seed;
                let mut choose = |options: usize| {
                    random = mix(random);
                    (random % options as u64) as usize
                };
                for (name, node) in std::mem::take(&mut disk.names) {
                    if disk.durable_names.contains_key(&name) || choose(2) == 1 {
                        disk.names.insert(name, node);
                    }
                }
                for (name, &node) in &disk.durable_names {
                    if !disk.names.contains_key(name) && choose(2) == 1 {
                        disk.names.insert(name.clone(), node);
                    }
                }
                disk.nodes.iter_mut().for_each(|node| node.settle(&mut choose));
            }
        }
        disk.durable_names = disk.names.clone();
        Self { disk: Arc::new(Mutex::new(disk)) }
    }
}

impl Default for MemoryVolume {
    fn default() -> Self {
        Self::new()
    }
}

impl Volume for MemoryVolume {
    fn path(&self) -> &'static str {
        "memory"
    }

    fn names(&self) -> Result<Vec<String>, IoError> {
        Ok(self.disk.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError> {
        let path: Arc<str> = format!("memory/{name}").into();
        let place = Place::whole(&path, FileOp::Open);
        let mut disk = self.disk.lock();
        let node = match disk.names.get(name) {
            Some(&node) => node,
            None if how.create => {
                disk.step().map_err(|error| IoError::from_os(place, &error))?;
                let node = disk.nodes.len();
                disk.nodes.push(Node::default());
                disk.names.insert(name.to_owned(), node);
                node
            }
            None => return Err(IoError::Gone { place }),
        };
        let mode = if how.direct {
            IoMode::Direct { alignment: SECTOR as u32 }
        } else {
            IoMode::Buffered { reason: "the file is opened so".into() }
        };
        Ok(Arc::new(MemoryFile { disk: self.disk.clone(), node, path, mode }))
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = self.disk.lock();
        let free = disk.capacity?.saturating_sub(disk.used());
        Some((free * SECTOR) as u64)
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        let mut disk = self.disk.lock();
        let path: Arc<str> = format!("memory/{name}").into();
        disk.step().map_err(|e| IoError::from_os(Place::whole(&path, FileOp::Remove), &e))?;
        disk.names.remove(name);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        let mut disk = self.disk.lock();
        let place = Place::whole(&"memory".into(), FileOp::Sync);
        // The last operation: it may have come too late.
        if !disk.step().map_err(|error| IoError::from_os(place, &error))? {
            disk.durable_names = disk.names.clone();
        }
        Ok(())
    }
}

struct MemoryFile {
    disk: Arc<Mutex<Disk>>,
    node: usize,
    path: Arc<str>,
    mode: IoMode,
}

impl MemoryFile {
    /// The disk after one more changing operation; whether it is the last.
    fn step(&self) -> io::Result<(MutexGuard<'_, Disk>, bool)> {
        let mut disk = self.disk.lock();
        let last = disk.step()?;
        Ok((disk, last))
    }
}

impl IoFile for MemoryFile {
    fn path(&self) -> &Arc<str> {
        &self.path
    }

    fn mode(&self) -> &IoMode {
        &self.mode
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let disk = self.disk.lock();
        disk.alive()?;
        let node = &disk.nodes[self.node];
        let mut at = offset;
        for buffer in buffers {
            let mut rest = &mut buffer[..];
            while !rest.is_empty() && at < node.len {
                let start = (at % SECTOR as u64) as usize;
                let len = rest.len().min(SECTOR - start).min((node.len - at) as usize);
                let (now, later) = rest.split_at_mut(len);
                now.copy_from_slice(&node.sector(at / SECTOR as u64)[start..start + len]);
                at += len as u64;
                rest = later;
            }
        }
        Ok(at.saturating_sub(offset) as usize)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let (mut disk, last) = self.step()?;
        let fresh = disk.nodes[self.node].missing(offset..offset + bytes.len() as u64).len();
        disk.room(fresh)?;
        if last {
            let sectors = bytes.len().div_ceil(SECTOR) + 1;
            bytes.truncate((mix(disk.seed) % sectors as u64) as usize * SECTOR);
            disk.nodes[self.node].write(&bytes, offset);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        disk.nodes[self.node].write(&bytes, offset);
        Ok(bytes.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut disk, last) = self.step()?;
        if last {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        disk.nodes[self.node].sync();
        Ok(())
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let (mut disk, _) = self.step()?;
        if disk.no_allocate {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let fresh = disk.nodes[self.node].missing(range.clone());
        disk.room(fresh.len())?;
        let node = &mut disk.nodes[self.node];
        node.later.extend(fresh.into_iter().map(|number| (number, vec![[0; SECTOR]])));
        node.len = node.len.max(range.end);
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let (mut disk, _) = self.step()?;
        if disk.no_punch {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // Durable at once, which is the worse for who punches too early.
        let node = &mut disk.nodes[self.node];
        for number in range.start.div_ceil(SECTOR as u64)..range.end / SECTOR as u64 {
            node.later.remove(&number);
            node.durable.remove(&number);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut disk, _) = self.step()?;
        let node = &mut disk.nodes[self.node];
        if len < node.len {
            // Durable at once, as for `punch`.
            node.later.retain(|&number, _| number < len.div_ceil(SECTOR as u64));
            node.durable_len = node.durable_len.min(len);
            node.len = len;
            node.cut();
        }
        node.len = len;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.disk.lock();
        disk.alive()?;
        Ok(disk.nodes[self.node].len)
    }
}

impl fmt::Debug for MemoryVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryVolume")
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFile({})", self.path)
    }
}
