//! Figures for people: one row per tier, edge and verb.

use std::fmt;

use super::BlockManagerMetrics;
use crate::config::format_size;

impl fmt::Display for BlockManagerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pools = Table::new(&[
            "tier",
            "capacity",
            "free",
            "mutable",
            "active",
            "inactive",
            "quarantined",
            "hits",
            "misses",
            "hit rate",
            "evictions",
        ]);
        for (tier, pool) in &self.pools {
            let rate =
                pool.hit_rate().map_or("-".to_owned(), |rate| format!("{:.2}%", 100.0 * rate));
            pools.row([
                tier.to_string(),
                pool.capacity.to_string(),
                pool.free.to_string(),
                pool.mutable.to_string(),
                pool.active.to_string(),
                pool.inactive.to_string(),
                pool.quarantined.to_string(),
                pool.hits.to_string(),
                pool.misses.to_string(),
                rate,
                pool.evictions.to_string(),
            ]);
        }
        let mut drives =
            Table::new(&["drive", "used", "written", "hits", "written per hit", "state"]);
        for drive in &self.drives {
            let state = match (drive.loads, drive.stores) {
                (true, true) => "good",
                (true, false) => "read only",
                (false, _) => "sick",
            };
            drives.row([
                drive.dir.clone(),
                format_size(drive.used_bytes),
                format_size(drive.written_bytes),
                drive.hits.to_string(),
                drive.written_bytes_per_hit.map_or("-".to_owned(), |b| format_size(b as u64)),
                state.to_owned(),
            ]);
        }
        let mut edges = Table::new(&["edge", "blocks", "bytes", "failures", "drops", "waiting"]);
        for (edge, figures) in &self.edges {
            edges.row([
                edge.to_string(),
                figures.blocks.to_string(),
                format_size(figures.bytes),
                figures.failures.values().sum::<u64>().to_string(),
                figures.drops.to_string(),
                figures.queue_depth.to_string(),
            ]);
        }
        let mut verbs = Table::new(&["verb", "calls", "p50 us", "p99 us", "max us"]);
        for (verb, latency) in &self.latency {
            verbs.row([
                (*verb).to_owned(),
                latency.count.to_string(),
                format!("{:.2}", latency.p50_us),
                format!("{:.2}", latency.p99_us),
                format!("{:.2}", latency.max_us),
            ]);
        }
        let filled: Vec<String> = [pools, drives, edges, verbs]
            .into_iter()
            .filter(|table| table.rows.len() > 1)
            .map(|table| table.to_string())
            .collect();
        f.write_str(&filled.join("\n"))
    }
}

/// Columns as wide as their widest cell: the first to the left, figures to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            write!(f, "{:<1$}", row[0], widths[0])?;
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Tier,
        metrics::{Edge, EdgeMetrics, LatencySummary, PoolMetrics},
    };

    #[test]
    fn columns_line_up_and_empty_tables_are_left_out() {
        let mut metrics = BlockManagerMetrics::default();
        assert_eq!(metrics.to_string(), "");
        let pool = PoolMetrics { capacity: 100_000, hits: 1, misses: 2, ..Default::default() };
        metrics.pools.insert(Tier::Device, pool);
        metrics.pools.insert(Tier::Host, PoolMetrics::default());
        metrics.latency.insert("lookup", LatencySummary::default());
        let text = metrics.to_string();
        let tables: Vec<&str> = text.split("\n\n").collect();
        assert_eq!(tables.len(), 2, "{text}");
        assert!(tables[0].contains("33.33%"), "{text}");
        for table in tables {
            let lengths: Vec<usize> = table.lines().map(str::len).collect();
            assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        }
    }

    #[test]
    fn an_edge_is_a_key_in_json() {
        let mut metrics = BlockManagerMetrics::default();
        let edge = Edge { from: Tier::Device, to: Tier::Host };
        metrics.edges.insert(edge, EdgeMetrics { bytes: 7, ..Default::default() });
        let json = serde_json::to_value(&metrics).unwrap_or_default();
        assert_eq!(json["edges"]["device->host"]["bytes"], 7);
    }
}
