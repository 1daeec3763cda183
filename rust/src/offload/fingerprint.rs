//! How bytes are read now, by all tiers of a manager alike.
//!
//! Switched before the pools are reset and within a [`ResetEpoch`](super::ResetEpoch): what is
//! registered after its pool's reset was sealed under the new value.

use crate::{
    seal::Fingerprint,
    sync::{Arc, Mutex},
};

/// The fingerprint in force. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct CurrentFingerprint(Arc<Mutex<Fingerprint>>);

impl CurrentFingerprint {
    pub(crate) fn new(first: Fingerprint) -> Self {
        Self(Arc::new(Mutex::new(first)))
    }

    pub(crate) fn get(&self) -> Fingerprint {
        *self.0.lock()
    }

    pub(crate) fn set(&self, next: Fingerprint) {
        *self.0.lock() = next;
    }
}
