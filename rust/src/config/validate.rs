//! Whether the settings make sense together.
//!
//! Everything is looked at before anything is said, so one run names every problem.

use std::fmt::Display;

use super::{
    Capacity, Config, ConfigError, Finding, Nixl, OffloadPolicy, Severity, Source, Tier,
    size::format_size,
};
use crate::layout::{MAX_INNER_DIM, MAX_NUM_LAYERS, MAX_OUTER_DIM, MAX_PAGE_SIZE};

/// Most blocks of a tier: what a pool can number, with headroom in its index.
const MAX_BLOCKS: usize = 1 << 30;
/// Most copy threads; more than any machine profits from.
const MAX_THREADS: usize = 1024;
/// Longest deadline: a day.
const MAX_DEADLINE_MS: usize = 86_400_000;

impl Config {
    /// Checks everything and returns what there is to say short of an error.
    ///
    /// Fails with every problem at once; under `strict` warnings are problems.
    pub fn validate(&self) -> Result<Vec<Finding>, ConfigError> {
        let mut findings = self.noticed().unwrap_or_default().to_vec();
        findings.extend(self.check());
        if self.strict {
            for finding in findings.iter_mut().filter(|f| f.severity == Severity::Warning) {
                finding.severity = Severity::Error;
            }
        }
        let (errors, rest): (Vec<_>, Vec<_>) =
            findings.into_iter().partition(|finding| finding.severity == Severity::Error);
        if errors.is_empty() { Ok(rest) } else { Err(ConfigError::Invalid { findings: errors }) }
    }

    pub(super) fn check(&self) -> Vec<Finding> {
        let mut report = Report::default();
        self.check_model(&mut report);
        self.check_tier(Tier::Device, &mut report);
        self.check_tier(Tier::Host, &mut report);
        self.check_disk(&mut report);
        self.check_tiers(&mut report);
        self.check_traffic(&mut report);
        if self.runtime.nixl == Nixl::Enabled {
            report.error(
                "runtime.nixl",
                "enabled",
                "nixl is not part of this version",
                "remove it, or call disable_nixl()",
            );
        }
        report.0
    }

    fn check_model(&self, report: &mut Report) {
        let model = &self.model;
        report.range("model.num_layers", model.num_layers, MAX_NUM_LAYERS);
        report.range("model.outer_dim", model.outer_dim, MAX_OUTER_DIM);
        report.range("model.page_size", model.page_size, MAX_PAGE_SIZE);
        report.range("model.inner_dim", model.inner_dim, MAX_INNER_DIM);
        for (field, text) in [
            ("model.name", &model.name),
            ("model.revision", &model.revision),
            ("model.adapter", &model.adapter),
        ] {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                report.error(field, "\"\"", "it is empty", "give it a value or leave it out");
            }
        }
        let assumed: Vec<String> = ["model.num_layers", "model.page_size", "model.inner_dim"]
            .into_iter()
            .filter(|path| self.noticed().is_some() && self.source(path) == Source::Default)
            .map(str::to_owned)
            .collect();
        if !assumed.is_empty() {
            report.warn(
                &assumed.join(", "),
                "",
                format!(
                    "not stated, so {} layers, {} tokens a block and {} elements are assumed",
                    model.num_layers, model.page_size, model.inner_dim
                ),
                "state the model's own numbers",
            );
        }
    }

    fn check_tier(&self, tier: Tier, report: &mut Report) {
        let Some(config) = self.tier(tier) else { return };
        if config.capacity.is_off() {
            return self.check_off(tier, report);
        }
        let Some(slot) = self.model.block_bytes().and_then(|b| config.layout.slot_bytes(b)) else {
            return;
        };
        if slot == 0 {
            // The field that is 0 has been named.
            return;
        }
        match config.capacity {
            Capacity::Default => {}
            Capacity::Blocks(blocks) => {
                let field = format!("{tier}.blocks");
                report.slots(&field, blocks, blocks, slot);
            }
            Capacity::Bytes(bytes) => {
                let field = format!("{tier}.bytes");
                let blocks = usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes / slot);
                let used = blocks.saturating_mul(slot) as u64;
                report.slots(&field, bytes, blocks, slot);
                if blocks == 0 {
                    report.error(
                        &field,
                        bytes,
                        format!("less than one block, which takes {slot} bytes"),
                        format!("give at least {slot}, or 0 to switch the tier off"),
                    );
                } else if used != bytes {
                    report.0.push(Finding::new(
                        Severity::Info,
                        field,
                        bytes,
                        format!("rounded down to {blocks} blocks of {slot} bytes, {used} in all"),
                        format!("nothing is needed; a multiple of {slot} avoids this note"),
                    ));
                }
            }
        }
    }

    /// Settings of a tier that is off are settings without effect.
    fn check_off(&self, tier: Tier, report: &mut Report) {
        let section = format!("{tier}.");
        for setting in self.effective() {
            let idle = setting.field.strip_prefix(&section).is_some_and(|key| {
                !matches!(key, "blocks" | "bytes") && setting.source != Source::Default
            });
            if idle {
                report.warn(
                    setting.field,
                    setting.value,
                    format!("without effect: the {tier} tier is off"),
                    format!("remove it, or give {tier}.blocks a number"),
                );
            }
        }
    }

    fn check_disk(&self, report: &mut Report) {
        let disk = &self.disk;
        report.range("disk.io_threads", disk.io_threads, MAX_THREADS);
        if disk.drives.is_empty() {
            self.check_drive(report);
        } else {
            self.check_drives(report);
        }
    }

    /// One drive, stated by the settings of the tier.
    fn check_drive(&self, report: &mut Report) {
        let disk = &self.disk;
        match &disk.dir {
            None => {
                if disk.capacity != Capacity::Default && !disk.capacity.is_off() {
                    report.error(
                        "disk.dir",
                        "",
                        "not stated, and the disk tier is to hold something",
                        "name a directory on a local drive",
                    );
                }
            }
            Some(dir) if dir.trim().is_empty() => {
                report.error("disk.dir", "\"\"", "it is empty", "give it a value or leave it out");
            }
            Some(dir) if disk.capacity == Capacity::Default => report.error(
                "disk.bytes",
                dir,
                "nothing says how much the directory may hold",
                "state disk.bytes, or disk.blocks",
            ),
            Some(_) => {}
        }
        self.check_drive_numbers("disk", disk.capacity, disk.write_bytes_per_day, report);
    }

    /// Several drives.
    fn check_drives(&self, report: &mut Report) {
        let disk = &self.disk;
        let single = disk.dir.is_some()
            || disk.capacity != Capacity::Default
            || disk.write_bytes_per_day.is_some();
        if single {
            report.error(
                "disk.drives",
                disk.drives.len(),
                "disk.dir, disk.bytes, disk.blocks and disk.write_bytes_per_day are for one drive",
                "put them into the list, or leave the list out",
            );
        }
        let plain = |dir: &str| dir.trim_end_matches('/').to_owned();
        for (at, drive) in disk.drives.iter().enumerate() {
            let name = format!("disk.drives[{at}]");
            if drive.dir.trim().is_empty() {
                report.error(&format!("{name}.dir"), "\"\"", "it is empty", "name a directory");
            } else if disk.drives[..at].iter().any(|other| plain(&other.dir) == plain(&drive.dir)) {
                let remedy = "name each once: a directory is one drive";
                report.error(&format!("{name}.dir"), &drive.dir, "it is in the list twice", remedy);
            }
            if drive.capacity == Capacity::Default {
                let (field, remedy) = (format!("{name}.bytes"), "state bytes, or blocks");
                report.error(&field, &drive.dir, "nothing says how much it may hold", remedy);
            }
            self.check_drive_numbers(&name, drive.capacity, drive.write_bytes_per_day, report);
        }
    }

    fn check_drive_numbers(
        &self,
        name: &str,
        capacity: Capacity,
        budget: Option<u64>,
        report: &mut Report,
    ) {
        if budget == Some(0) {
            let field = format!("{name}.write_bytes_per_day");
            let remedy = "give it a number of bytes, or leave it out for no limit";
            report.error(&field, 0, "nothing could be stored", remedy);
        }
        if let Capacity::Blocks(blocks) = capacity {
            let slot = self.model.block_bytes().unwrap_or_default().max(1);
            report.slots(&format!("{name}.blocks"), blocks, blocks, slot);
        }
    }

    /// What tiers are to each other.
    fn check_tiers(&self, report: &mut Report) {
        if self.device.capacity.is_off() && self.host.capacity.is_off() {
            report.error(
                "device.blocks, host.blocks",
                0,
                "every tier is off",
                "give at least one tier a capacity",
            );
        }
        let slot = self.model.block_bytes().unwrap_or_default();
        let disk = self.disk.blocks(slot);
        let sizes = [
            (Tier::Device, self.blocks(Tier::Device)),
            (Tier::Host, self.blocks(Tier::Host)),
            (Tier::Disk, disk),
        ];
        let stated: Vec<(Tier, usize)> = sizes
            .into_iter()
            .filter_map(|(tier, blocks)| Some((tier, blocks.filter(|&blocks| blocks > 0)?)))
            .collect();
        for pair in stated.windows(2) {
            let [(upper, more), (lower, less)] = [pair[0], pair[1]];
            if less < more {
                report.warn(
                    &format!("{lower}.blocks"),
                    less,
                    format!(
                        "smaller than the {upper} tier of {more} blocks: the {lower} would drop \
                         blocks that the {upper} still holds and hardly add a hit"
                    ),
                    format!("give the {lower} more than {more} blocks, or 0 to switch it off"),
                );
            }
        }
    }

    fn check_traffic(&self, report: &mut Report) {
        let (offload, transfer) = (&self.offload, &self.transfer);
        report.range("offload.queue_blocks", offload.queue_blocks, MAX_BLOCKS);
        if let Some(threads) = transfer.threads {
            report.range("transfer.threads", threads, MAX_THREADS);
        }
        let deadline = usize::try_from(transfer.deadline_ms).unwrap_or(usize::MAX);
        report.range("transfer.deadline_ms", deadline, MAX_DEADLINE_MS);
        let alone =
            self.disk.is_off() && (self.device.capacity.is_off() || self.host.capacity.is_off());
        let asked = self.source("offload.policy") != Source::Default;
        if alone && asked && offload.policy == OffloadPolicy::WriteThrough {
            report.warn(
                "offload.policy",
                offload.policy,
                "without effect: there is one tier only",
                "remove it, or switch the other tier on",
            );
        }
    }
}

#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn error(
        &mut self,
        field: &str,
        value: impl Display,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding::new(Severity::Error, field, value, message, remedy));
    }

    fn warn(
        &mut self,
        field: &str,
        value: impl Display,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding::new(Severity::Warning, field, value, message, remedy));
    }

    fn range(&mut self, field: &str, value: usize, most: usize) {
        if !(1..=most).contains(&value) {
            let remedy = format!("give a number from 1 to {most}");
            self.error(field, value, "out of range", remedy);
        }
    }

    /// Whether so many blocks can be numbered and addressed.
    fn slots(&mut self, field: &str, value: impl Display, blocks: usize, slot: usize) {
        let addressable = isize::MAX as usize / slot;
        let most = addressable.min(MAX_BLOCKS);
        if blocks > most {
            self.error(
                field,
                value,
                format!("more than a tier can hold, {most} blocks of {slot} bytes"),
                format!("give at most {}", format_size(most as u64 * slot as u64)),
            );
        }
    }
}
