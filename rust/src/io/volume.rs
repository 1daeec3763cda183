//! A folder of files.

use std::fmt;

use super::{IoError, IoFile};
use crate::sync::Arc;

/// How a file is opened. All off: an existing file, to read, through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFile {
    /// Makes the file where it is not there.
    pub create: bool,
    /// Allows writing.
    pub write: bool,
    /// Goes past the page cache where the file system can; [`IoFile::mode`] says what came of it.
    pub direct: bool,
}

/// A folder. Names are plain file names; folders in it and other files are not looked at.
pub trait Volume: fmt::Debug + Send + Sync {
    /// Path of the folder, for messages.
    fn path(&self) -> &str;

    /// Names of the regular files in it, in no order.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    fn names(&self) -> Result<Vec<String>, IoError>;

    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`IoError::Gone`] where it is not there and not to be made, and whatever the system says.
    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError>;

    /// Removes a file. Who has it open can go on using it. One that is not there is no error.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    fn remove(&self, name: &str) -> Result<(), IoError>;

    /// Makes durable which files there are.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    fn sync(&self) -> Result<(), IoError>;

    /// Bytes that files in it can still grow by, all together; `None` where that is not known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}
