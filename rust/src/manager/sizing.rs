//! How large a tier is when nobody said.
//!
//! The device tier (ordinary memory here) takes an eighth of the memory that is available to this
//! process, the host tier a quarter, each at most 65,536 blocks: enough to try things, never the
//! whole machine. Memory is committed at first touch, so an idle tier costs address space and its
//! books only. Whatever was decided is a finding, with the setting that changes it.

use crate::{
    config::{Config, Finding, LayoutKind, Severity, Tier, format_size},
    storage::AvailableMemory,
};

/// Most blocks that a tier gets without being asked: their books take some 10 MiB.
const MOST_BLOCKS: usize = 1 << 16;

/// The share of the available memory that a tier takes by default.
const fn share(tier: Tier) -> u64 {
    match tier {
        Tier::Device => 8,
        _ => 4,
    }
}

/// Blocks of `tier`: as stated, or the default and a finding that says so. 0 is off.
pub(super) fn blocks(
    settings: &Config,
    tier: Tier,
    available: &AvailableMemory,
    findings: &mut Vec<Finding>,
) -> usize {
    if let Some(stated) = settings.blocks(tier) {
        return stated;
    }
    let kind = settings.tier(tier).map_or(LayoutKind::FullyContiguous, |tier| tier.layout);
    let block_bytes = settings.model.block_bytes().unwrap_or(usize::MAX);
    let slot_bytes = kind.slot_bytes(block_bytes).unwrap_or(usize::MAX).max(1);
    let room = available.bytes / share(tier);
    // A block that is larger than the share still gets its one slot; whether that fits the
    // machine is checked like every stated size.
    let blocks = usize::try_from(room).unwrap_or(usize::MAX) / slot_bytes;
    let blocks = blocks.clamp(1, MOST_BLOCKS);
    findings.push(Finding::new(
        Severity::Info,
        format!("{tier}.blocks"),
        blocks,
        format!(
            "not stated; {} of {} available",
            format_size(blocks as u64 * slot_bytes as u64),
            format_size(available.bytes),
        ),
        format!("set {tier}.blocks or {tier}.bytes to decide it yourself"),
    ));
    blocks
}
