//! Looking into a directory of the disk tier: the work of `dynamo-llm disk`.
#![allow(clippy::needless_pass_by_value, reason = "arguments from Python come by value")]

use std::{fmt::Write, path::PathBuf};

use dynamo_llm::block_manager::{
    replay::Progress,
    storage::disk::{self, DiskError, Inspection, Verification},
};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::{
    error::{Failure, Kind},
    replay::Reporter,
};

/// Adds the functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(disk_inspect, module)?)?;
    module.add_function(wrap_pyfunction!(disk_verify, module)?)
}

#[pyfunction]
fn disk_inspect(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let found = py.detach(|| disk::inspect(&path)).map_err(config)?;
    Ok(tree(&found, None).to_string())
}

#[pyfunction]
#[pyo3(signature = (path, *, progress))]
fn disk_verify(py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let mut reporter = Reporter::new(progress);
    let verified = py.detach(|| -> Result<_, DiskError> {
        let found = disk::inspect(&path)?;
        let tell = |done, total| reporter.tell(Progress { done, total });
        Ok((found, disk::verify(&path, tell)?))
    });
    if let Some(raised) = reporter.raised() {
        return Err(raised);
    }
    let (found, verification) = verified.map_err(config)?;
    Ok(tree(&found, Some(verification)).to_string())
}

/// What is printed of a directory.
fn tree(found: &Inspection, verified: Option<Verification>) -> Value {
    let fingerprints: Vec<Value> = found
        .fingerprints
        .iter()
        .map(|one| json!({"digest": hex(&one.digest), "label": one.label, "blocks": one.blocks}))
        .collect();
    let sets: Vec<Value> = found
        .sets
        .iter()
        .map(|set| {
            json!({
                "set": set.id.to_string(),
                "bytes_per_block": set.geometry.payload_bytes(),
                "slots": set.slots,
                "holes": set.holes,
                "blocks": set.blocks,
            })
        })
        .collect();
    let dropped: serde_json::Map<String, Value> =
        found.dropped.iter().map(|(why, count)| (why.to_string(), json!(count))).collect();
    let most = found.fingerprints.iter().max_by_key(|one| one.blocks);
    let mut tree = json!({
        "format_version": found.format_version,
        "fingerprint": most.map(|one| hex(&one.digest)),
        "fingerprints": fingerprints,
        "generation": found.generation,
        "slots": found.sets.iter().map(|set| set.slots).sum::<u64>(),
        "blocks": found.blocks,
        "bytes": found.bytes,
        "dropped": dropped,
        "sets": sets,
    });
    if let Some(Verification { verified, corrupt, .. }) = verified {
        tree["verified"] = json!(verified);
        tree["corrupt"] = json!(corrupt);
    }
    tree
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn config(error: DiskError) -> PyErr {
    Failure::new(Kind::Config, error).into()
}
