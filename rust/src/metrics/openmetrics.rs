//! Figures as `OpenMetrics` text, for a scrape endpoint to append or serve.
//!
//! Every sample carries the worker, since several share an endpoint. Labels are tiers, verbs and
//! reasons: never anything whose number grows with traffic.

use std::fmt::{Display, Write};

use super::{BlockManagerMetrics, PoolMetrics, drives};

/// A figure of every pool: name, help text, where it is.
type PoolCounter = (&'static str, &'static str, fn(&PoolMetrics) -> u64);

const POOL_COUNTERS: &[PoolCounter] = &[
    ("hits", "Blocks asked for and found.", |p| p.hits),
    ("misses", "Blocks asked for and not found.", |p| p.misses),
    ("allocations", "Blocks handed out to be filled.", |p| p.allocations),
    ("allocation_failures", "Requests for blocks not met.", |p| p.allocation_failures),
    ("registrations", "Blocks registered under a new key.", |p| p.registrations),
    ("duplicates", "Blocks registered under a held key.", |p| p.duplicates),
    ("evictions", "Registered blocks dropped to make room.", |p| p.evictions),
    ("resets", "Times the pool forgot everything.", |p| p.resets),
];

impl BlockManagerMetrics {
    /// The figures as `OpenMetrics` text, closed by `# EOF`. Times are in seconds.
    pub fn to_openmetrics(&self) -> String {
        let mut page = Page { text: String::new(), worker: self.worker_id };
        self.pools_to(&mut page);
        self.drives_to(&mut page);
        self.edges_to(&mut page);
        self.latency_to(&mut page);
        for (name, help, value) in [
            ("events_recorded", "Events that got a number.", self.events.recorded),
            ("events_delivered", "Events that the sink was told.", self.events.delivered),
            ("events_dropped", "Events dropped because too many waited.", self.events.dropped),
            ("events_panics", "Events at which the sink panicked.", self.events.panics),
        ] {
            page.family(name, "counter", "", help);
            page.sample(&format!("{name}_total"), &[], value);
        }
        page.text.push_str("# EOF\n");
        page.text
    }

    fn pools_to(&self, page: &mut Page) {
        page.family("pool_blocks", "gauge", "", "Slots by state; their sum is the capacity.");
        for (tier, pool) in &self.pools {
            for (state, blocks) in [
                ("free", pool.free),
                ("mutable", pool.mutable),
                ("active", pool.active),
                ("inactive", pool.inactive),
                ("quarantined", pool.quarantined),
            ] {
                page.sample("pool_blocks", &[("tier", tier.name()), ("state", state)], blocks);
            }
        }
        for &(name, help, figure) in POOL_COUNTERS {
            let name = format!("pool_{name}");
            page.family(&name, "counter", "", help);
            for (tier, pool) in &self.pools {
                page.sample(&format!("{name}_total"), &[("tier", tier.name())], figure(pool));
            }
        }
    }

    fn drives_to(&self, page: &mut Page) {
        for &(name, kind, unit, help, figure) in drives::FIGURES {
            let total = if kind == "counter" { "_total" } else { "" };
            page.family(name, kind, unit, help);
            for drive in &self.drives {
                if let Some(value) = figure(drive) {
                    page.sample(&format!("{name}{total}"), &[("dir", &drive.dir)], value);
                }
            }
        }
    }

    fn edges_to(&self, page: &mut Page) {
        let labels = |edge: &super::Edge| [("from", edge.from.name()), ("to", edge.to.name())];
        page.family("edge_blocks", "counter", "", "Blocks that arrived.");
        for (edge, figures) in &self.edges {
            page.sample("edge_blocks_total", &labels(edge), figures.blocks);
        }
        page.family("edge_bytes", "counter", "bytes", "Bytes that arrived.");
        for (edge, figures) in &self.edges {
            page.sample("edge_bytes_total", &labels(edge), figures.bytes);
        }
        page.family("edge_present", "counter", "", "Blocks that were there already, not copied.");
        for (edge, figures) in &self.edges {
            page.sample("edge_present_total", &labels(edge), figures.present);
        }
        page.family("edge_failures", "counter", "", "Blocks whose copy failed, by reason.");
        for (edge, figures) in &self.edges {
            let [from, to] = labels(edge);
            for (&reason, &blocks) in &figures.failures {
                page.sample("edge_failures_total", &[from, to, ("reason", reason)], blocks);
            }
        }
        page.family("edge_drops", "counter", "", "Blocks that were to go and never started.");
        for (edge, figures) in &self.edges {
            page.sample("edge_drops_total", &labels(edge), figures.drops);
        }
        page.family("edge_queue_blocks", "gauge", "", "Blocks that wait.");
        for (edge, figures) in &self.edges {
            page.sample("edge_queue_blocks", &labels(edge), figures.queue_depth);
        }
    }

    fn latency_to(&self, page: &mut Page) {
        page.family("latency_seconds", "summary", "seconds", "Time that calls took, by verb.");
        for (&verb, latency) in &self.latency {
            for (quantile, us) in [("0.5", latency.p50_us), ("0.99", latency.p99_us)] {
                let labels = [("verb", verb), ("quantile", quantile)];
                page.sample("latency_seconds", &labels, us / 1e6);
            }
            page.sample("latency_seconds_sum", &[("verb", verb)], latency.sum_us / 1e6);
            page.sample("latency_seconds_count", &[("verb", verb)], latency.count);
        }
    }
}

struct Page {
    text: String,
    worker: u64,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# TYPE dynamo_llm_{name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT dynamo_llm_{name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP dynamo_llm_{name} {}", escape(help));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "dynamo_llm_{name}{{worker=\"{}\"", self.worker);
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Tier,
        metrics::{Edge, EdgeMetrics, LatencySummary},
    };

    #[test]
    fn every_sample_belongs_to_the_family_above_it() {
        let mut metrics = BlockManagerMetrics { worker_id: 3, ..Default::default() };
        metrics.pools.insert(Tier::Host, PoolMetrics { hits: 5, ..Default::default() });
        let failures = [("a \"b\"\n\\", 2)].into();
        let edge = EdgeMetrics { bytes: 9, failures, ..Default::default() };
        metrics.edges.insert(Edge { from: Tier::Device, to: Tier::Host }, edge);
        let lookup = LatencySummary { count: 1, p99_us: 2.5, ..Default::default() };
        metrics.latency.insert("lookup", lookup);

        let text = metrics.to_openmetrics();
        let (mut family, mut counter) = (String::new(), false);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_default();
                (family, counter) = (name.to_owned(), kind == "counter");
            } else if !line.starts_with('#') {
                let name = line.split('{').next().unwrap_or_default();
                assert!(name.starts_with(&family), "{line} under {family}");
                assert_eq!(counter, name.ends_with("_total"), "{line}");
                assert!(line.contains("{worker=\"3\""), "{line}");
            }
        }
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1);
        for line in [
            r#"dynamo_llm_pool_hits_total{worker="3",tier="host"} 5"#,
            r#"dynamo_llm_edge_bytes_total{worker="3",from="device",to="host"} 9"#,
            r#"dynamo_llm_latency_seconds{worker="3",verb="lookup",quantile="0.99"} 0.0000025"#,
            r#"reason="a \"b\"\n\\"} 2"#,
        ] {
            assert!(text.contains(line), "{line} missing in\n{text}");
        }
    }
}
