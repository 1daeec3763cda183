//! Registrations of a storage with other parts of the machine.
//!
//! A driver or a network library that is to move bytes by itself must be told about the memory
//! first, and must be told before the memory goes. A storage therefore keeps what it was registered
//! with: once per key, released newest first, because a later registration may build on an earlier
//! one.

use std::any::Any;
use std::fmt;

use super::{Storage, StorageError};
use crate::sync::{Arc, Mutex};

/// One registration of a storage.
pub trait RegistrationHandle: Any + fmt::Debug + Send + Sync {
    /// Ends the registration.
    ///
    /// Called exactly once by the storage, at the latest just before its memory goes. It may not
    /// wait for anything that uses the storage, and it reports failures itself: nobody is left to
    /// hear of them.
    fn release(&self);
}

/// The registrations of one storage, in the order in which they were made.
///
/// Dropping it releases all of them, newest first. A storage keeps it in a field that is dropped
/// before its memory.
#[derive(Debug)]
pub struct RegistrationHandles {
    entries: Mutex<Vec<(String, Arc<dyn RegistrationHandle>)>>,
}

impl RegistrationHandles {
    /// No registrations yet.
    pub fn new() -> Self {
        Self { entries: Mutex::new(Vec::new()) }
    }

    /// Keeps `handle` under `key`.
    ///
    /// # Errors
    ///
    /// [`StorageError::RegistrationKeyExists`]; the new handle is then not kept and not released,
    /// its maker still has it.
    pub fn register(
        &self,
        key: &str,
        handle: Arc<dyn RegistrationHandle>,
    ) -> Result<(), StorageError> {
        let mut entries = self.entries.lock();
        if entries.iter().any(|(known, _)| known == key) {
            return Err(StorageError::RegistrationKeyExists { key: key.to_owned() });
        }
        entries.push((key.to_owned(), handle));
        Ok(())
    }

    /// The registration under `key`.
    ///
    /// # Errors
    ///
    /// [`StorageError::HandleNotFound`].
    pub fn get(&self, key: &str) -> Result<Arc<dyn RegistrationHandle>, StorageError> {
        let entries = self.entries.lock();
        let found = entries.iter().find(|(known, _)| known == key);
        found
            .map(|(_, handle)| Arc::clone(handle))
            .ok_or_else(|| StorageError::HandleNotFound { key: key.to_owned() })
    }

    /// Releases the registration under `key` and forgets it.
    ///
    /// # Errors
    ///
    /// [`StorageError::HandleNotFound`].
    pub fn release(&self, key: &str) -> Result<(), StorageError> {
        let handle = {
            let mut entries = self.entries.lock();
            let at = entries
                .iter()
                .position(|(known, _)| known == key)
                .ok_or_else(|| StorageError::HandleNotFound { key: key.to_owned() })?;
            entries.remove(at).1
        };
        // Outside the lock: what a handle does is not ours.
        handle.release();
        Ok(())
    }

    /// The keys, oldest first.
    pub fn keys(&self) -> Vec<String> {
        self.entries.lock().iter().map(|(key, _)| key.clone()).collect()
    }
}

impl Default for RegistrationHandles {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RegistrationHandles {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut *self.entries.lock());
        for (_, handle) in entries.into_iter().rev() {
            handle.release();
        }
    }
}

/// A storage that can be registered with drivers and network libraries.
pub trait RegisterableStorage: Storage {
    /// What it is registered with.
    fn registrations(&self) -> &RegistrationHandles;

    /// Keeps `handle` under `key`, see [`RegistrationHandles::register`].
    ///
    /// # Errors
    ///
    /// [`StorageError::RegistrationKeyExists`].
    fn register(&self, key: &str, handle: Arc<dyn RegistrationHandle>) -> Result<(), StorageError> {
        self.registrations().register(key, handle)
    }

    /// Whether there is a registration under `key`.
    fn is_registered(&self, key: &str) -> bool {
        self.registrations().get(key).is_ok()
    }

    /// The registration under `key`.
    ///
    /// # Errors
    ///
    /// [`StorageError::HandleNotFound`].
    fn registration_handle(&self, key: &str) -> Result<Arc<dyn RegistrationHandle>, StorageError> {
        self.registrations().get(key)
    }
}
