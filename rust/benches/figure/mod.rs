//! A figure: how fast ours is beside a reference, both taken alternately in one run.
//!
//! Machines drift (clocks, neighbours, caches), so absolute rates say little and two separate runs
//! even less. Each round times both sides, the side that goes first changes every round, and medians
//! are compared. A benchmark ends with one line of JSON per figure on standard output.

#![allow(dead_code, clippy::print_stdout)]

use std::time::{Duration, Instant};

/// Rounds of each side; medians want an odd number.
const ROUNDS: usize = 11;
/// Shortest time that one side is measured for in a round: far above timer and scheduling noise.
const ROUND: Duration = Duration::from_millis(40);

/// What was measured; higher rates are better.
pub(crate) struct Figure {
    /// Median rate of ours.
    pub(crate) ours: f64,
    /// Median rate of the reference.
    pub(crate) reference: f64,
}

impl Figure {
    /// Above 1, ours is better.
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.reference
    }
}

/// Whether this is a benchmark run, not a test run or a listing of a bench target.
pub(crate) fn wanted() -> bool {
    let mut bench = false;
    for argument in std::env::args() {
        match argument.as_str() {
            "--bench" => bench = true,
            "--test" | "--list" => return false,
            _ => {}
        }
    }
    bench
}

/// Measures `ours` and `reference`, each call of which does `work` units of the same work, and prints
/// the line. `unit` names the rate: `work` per second ("tokens/s", "bytes/s").
pub(crate) fn compare(
    name: &str,
    unit: &str,
    work: f64,
    mut ours: impl FnMut(),
    reference_name: &str,
    mut reference: impl FnMut(),
) -> Figure {
    let our_calls = calls_per_round(&mut ours);
    let reference_calls = calls_per_round(&mut reference);
    compare_rates(
        name,
        unit,
        || rate(&mut ours, our_calls, work),
        reference_name,
        || rate(&mut reference, reference_calls, work),
    )
}

/// The same for sides that know their rate: each call measures one round, long enough to mean
/// something, and gives units of work per second. Neither side is warmed up.
pub(crate) fn compare_rates(
    name: &str,
    unit: &str,
    mut ours: impl FnMut() -> f64,
    reference_name: &str,
    mut reference: impl FnMut() -> f64,
) -> Figure {
    let (mut our_rates, mut reference_rates) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            our_rates.push(ours());
            reference_rates.push(reference());
        } else {
            reference_rates.push(reference());
            our_rates.push(ours());
        }
    }
    let figure = Figure { ours: median(our_rates), reference: median(reference_rates) };
    print(name, unit, figure, reference_name)
}

/// Prints the line of a figure.
pub(crate) fn print(name: &str, unit: &str, figure: Figure, reference_name: &str) -> Figure {
    let line = serde_json::json!({
        "bench": name,
        "ours": figure.ours,
        "reference": figure.reference,
        "reference_name": reference_name,
        "unit": unit,
        "ratio": figure.ratio(),
    });
    println!("{line}");
    figure
}

/// How many calls fill a round; finding out also warms the side up.
fn calls_per_round(side: &mut impl FnMut()) -> u32 {
    let mut calls = 1;
    loop {
        let took = time(side, calls);
        if took >= ROUND || calls >= 1 << 30 {
            return calls;
        }
        calls *= 2;
    }
}

fn rate(side: &mut impl FnMut(), calls: u32, work: f64) -> f64 {
    work * f64::from(calls) / time(side, calls).as_secs_f64()
}

fn time(side: &mut impl FnMut(), calls: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        side();
    }
    start.elapsed()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
