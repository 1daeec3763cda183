//! Resets that a drive is told of.
//!
//! One thread at most is at it, however many resets there are and however long the drive takes: what
//! comes meanwhile is told when that is through. None is lost, since a drive that has missed one
//! takes no stores.

use std::{thread, time::Instant};

use super::drive::Drive;
use crate::{
    io::{IoError, Lane},
    storage::disk::DiskError,
    sync::Arc,
};

/// The resets of a drive, counted.
#[derive(Debug)]
pub(super) struct Resets {
    begun: u64,
    told: u64,
    /// The generation that the last one begun asks for at least.
    at_least: u64,
    /// Somebody is telling the drive.
    telling: bool,
    /// What it said last.
    said: Result<(), DiskError>,
}

impl Default for Resets {
    fn default() -> Self {
        Self { begun: 0, told: 0, at_least: 0, telling: false, said: Ok(()) }
    }
}

impl Drive {
    /// Begins a reset, to a generation `at_least` that one; its number, for
    /// [`reset_is_told`](Self::reset_is_told). The pool was reset once for it.
    ///
    /// # Errors
    /// [`IoError::Thread`]; the next one makes up for it.
    pub(super) fn begin_reset(self: &Arc<Self>, at_least: u64) -> Result<u64, DiskError> {
        let mut resets = self.resets.lock();
        resets.begun += 1;
        resets.at_least = resets.at_least.max(at_least);
        if !resets.telling {
            let drive = self.clone();
            let teller = thread::Builder::new().name("dynamo-reset".to_owned());
            teller
                .spawn(move || drive.tell_resets())
                .map_err(|error| IoError::Thread { reason: error.to_string() })?;
            resets.telling = true;
        }
        Ok(resets.begun)
    }

    /// Whether the drive has noted every reset that was begun.
    pub(super) fn knows_of_resets(&self) -> bool {
        let resets = self.resets.lock();
        resets.told == resets.begun
    }

    /// What the drive says of the reset of that number, by then.
    pub(super) fn reset_is_told(&self, number: u64, until: Instant) -> Result<(), DiskError> {
        let mut resets = self.resets.lock();
        while resets.told < number {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(IoError::Expired { lane: Lane::Store }.into());
            }
            resets = self.reset_told.wait_timeout(resets, left);
        }
        resets.said.clone()
    }

    fn tell_resets(self: Arc<Self>) {
        loop {
            let (begun, more, at_least) = {
                let mut resets = self.resets.lock();
                resets.telling = resets.begun > resets.told;
                if !resets.telling {
                    return;
                }
                (resets.begun, resets.begun - resets.told, resets.at_least)
            };
            let said = self.advance(more, at_least);
            let mut resets = self.resets.lock();
            (resets.told, resets.said) = (begun, said);
            drop(resets);
            self.reset_told.notify_all();
        }
    }

    /// Starts so many reset generations at once, however long the drive takes.
    fn advance(self: &Arc<Self>, resets: u64, at_least: u64) -> Result<(), DiskError> {
        let Some(open) = self.open() else { return Ok(()) };
        let (directory, _) = open.parts()?;
        let skipped = |skipped| self.skip_generations(skipped);
        directory.next_generation(resets, at_least, skipped).map(drop)
    }
}
