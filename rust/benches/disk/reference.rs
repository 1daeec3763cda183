//! What ours is compared with: fio, or plain loops where there is none.

use std::path::Path;

use crate::Way;
use crate::fio::Fio;
use crate::plain::Plain;

pub(crate) enum Reference {
    Fio(Fio),
    Plain(Plain),
}

impl Reference {
    /// Writes its files in `folder`.
    pub(crate) fn new(folder: &Path, piece: usize) -> Self {
        let [written, read] = ["written", "read"].map(|name| folder.join(name));
        let files = [&*written, &*read];
        Fio::new(files, piece).map_or_else(
            || {
                eprintln!(
                    "no fio here (apt install fio): plain loops of direct I/O are the reference"
                );
                Self::Plain(Plain::new(files, piece))
            },
            Self::Fio,
        )
    }

    /// What it is, for a figure.
    pub(crate) fn name(&self, way: Way) -> String {
        match self {
            Self::Fio(fio) => fio.name(way),
            Self::Plain(_) => "a loop of direct I/O on as many threads".to_owned(),
        }
    }

    /// Bytes per second of one call.
    pub(crate) fn rate(&mut self, way: Way) -> f64 {
        match self {
            Self::Fio(fio) => fio.rate(way),
            Self::Plain(plain) => plain.rate(way),
        }
    }
}
