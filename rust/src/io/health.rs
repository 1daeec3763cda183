//! Whether a lane can be used.
//!
//! A run of failures that speak against the drive makes a lane sick; any success ends the run. So
//! do operations that are stuck at the same time, as many as that, or as there are threads:
//! whatever succeeded in between, nobody is left to succeed again. A sick lane refuses at once, so
//! that callers go on without it. After a while one request is let through on trial: if it comes
//! back well the lane is good again, if not the wait doubles, up to a limit. Loads and stores are
//! judged apart: a drive that went read-only still serves.

use std::time::{Duration, Instant};

use super::{IoError, Lane};
use crate::sync::Arc;

/// When a lane is sick, and when it is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HealthOptions {
    /// Failures in a row, or operations stuck at once, that make a lane sick; at least 1.
    pub failures: u32,
    /// How long an operation may be under way before it counts as a failure.
    pub stuck_after: Duration,
    /// How long a lane stays sick before the first trial.
    pub probe_after: Duration,
    /// The longest wait between two trials.
    pub probe_at_most: Duration,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self {
            failures: 5,
            // Far above what a throttled network drive takes for a few MiB.
            stuck_after: Duration::from_secs(5),
            probe_after: Duration::from_secs(1),
            probe_at_most: Duration::from_secs(60),
        }
    }
}

/// The state of a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Health {
    /// In use.
    Good,
    /// Out of use.
    Sick {
        /// Since when.
        since: Instant,
        /// The failure that decided.
        cause: Arc<IoError>,
        /// When a request is let through on trial.
        probe_at: Instant,
    },
}

/// Whether a request may be queued.
#[derive(Debug)]
pub(super) enum Admission {
    Yes,
    OnTrial,
    No(IoError),
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Good,
    Failed(&'a IoError),
    /// Says nothing about the drive.
    Neutral,
}

impl<'a> Outcome<'a> {
    /// As a result tells; a trial that did not even begin failed.
    pub(super) fn of(result: &'a Result<(), IoError>, trial: bool) -> Self {
        match result {
            // Also where the drive took the request and answered it.
            Ok(()) | Err(IoError::Short { .. } | IoError::NoSpace { .. }) => Self::Good,
            Err(error @ IoError::Expired { .. }) if trial => Self::Failed(error),
            Err(error) if error.blames_drive() => Self::Failed(error),
            Err(_) => Self::Neutral,
        }
    }
}

/// Judges one lane; knows the time only as it is told.
#[derive(Debug)]
pub(super) struct Monitor {
    lane: Lane,
    options: HealthOptions,
    failures: u32,
    sick: Option<Sick>,
}

#[derive(Debug)]
struct Sick {
    since: Instant,
    cause: Arc<IoError>,
    probe_at: Instant,
    wait: Duration,
    on_trial: bool,
}

impl Monitor {
    pub(super) fn new(lane: Lane, options: HealthOptions) -> Self {
        Self { lane, options, failures: 0, sick: None }
    }

    pub(super) fn health(&self) -> Health {
        match &self.sick {
            None => Health::Good,
            Some(sick) => Health::Sick {
                since: sick.since,
                cause: sick.cause.clone(),
                probe_at: sick.probe_at,
            },
        }
    }

    /// The error that a sick lane answers with.
    pub(super) fn refusal(&self) -> Option<IoError> {
        let cause = self.sick.as_ref()?.cause.clone();
        Some(IoError::Sick { lane: self.lane, cause })
    }

    pub(super) fn admit(&mut self, now: Instant) -> Admission {
        if let Some(sick) = &mut self.sick
            && !sick.on_trial
            && now >= sick.probe_at
        {
            sick.on_trial = true;
            return Admission::OnTrial;
        }
        self.refusal().map_or(Admission::Yes, Admission::No)
    }

    /// Takes note of a request's end; true when the lane has just become sick.
    pub(super) fn note(&mut self, outcome: &Outcome<'_>, trial: bool, now: Instant) -> bool {
        match (&mut self.sick, outcome) {
            (None, Outcome::Good) => self.failures = 0,
            (None, Outcome::Failed(cause)) => {
                self.failures += 1;
                if self.failures >= self.options.failures.max(1) {
                    self.fall_sick(cause, now);
                    return true;
                }
            }
            (Some(_), Outcome::Good) if trial => {
                tracing::info!(lane = %self.lane, "lane in use again");
                self.sick = None;
                self.failures = 0;
            }
            (Some(sick), Outcome::Failed(_)) if trial => {
                sick.wait = (sick.wait * 2).min(self.options.probe_at_most);
                sick.probe_at = now + sick.wait;
                sick.on_trial = false;
            }
            // A trial that was called off: the next request is one.
            (Some(sick), Outcome::Neutral) if trial => sick.on_trial = false,
            // Stragglers from before.
            (_, Outcome::Neutral) | (Some(_), _) => {}
        }
        false
    }

    /// Takes note of how many operations are stuck, of at most `threads` at once.
    pub(super) fn note_stuck(
        &mut self,
        stuck: usize,
        threads: usize,
        cause: &IoError,
        now: Instant,
    ) {
        let failures = usize::try_from(self.options.failures.max(1)).unwrap_or(usize::MAX);
        if self.sick.is_none() && stuck >= failures.min(threads) {
            self.fall_sick(cause, now);
        }
    }

    fn fall_sick(&mut self, cause: &IoError, now: Instant) {
        let wait = self.options.probe_after;
        let cause = Arc::new(cause.clone());
        tracing::warn!(lane = %self.lane, %cause, "lane switched off");
        self.sick = Some(Sick { since: now, cause, probe_at: now + wait, wait, on_trial: false });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_failures_makes_sick_and_a_good_trial_heals() {
        let options = HealthOptions { failures: 3, ..HealthOptions::default() };
        let mut monitor = Monitor::new(Lane::Load, options);
        let stuck = IoError::Stuck { lane: Lane::Load, millis: 9 };
        let start = Instant::now();
        for outcome in [Outcome::Failed(&stuck), Outcome::Failed(&stuck), Outcome::Good] {
            assert!(!monitor.note(&outcome, false, start));
        }
        for expected in [false, false, true] {
            assert_eq!(monitor.note(&Outcome::Failed(&stuck), false, start), expected);
        }
        assert!(matches!(monitor.admit(start), Admission::No(IoError::Sick { .. })));
        // A straggler's success does not count: it may have begun before.
        monitor.note(&Outcome::Good, false, start);
        assert!(matches!(monitor.health(), Health::Sick { .. }));

        let mut now = start;
        let mut wait = options.probe_after;
        for _ in 0..10 {
            now += wait;
            assert!(matches!(monitor.admit(now), Admission::OnTrial));
            assert!(matches!(monitor.admit(now), Admission::No(_)), "one at a time");
            monitor.note(&Outcome::Failed(&stuck), true, now);
            wait = (wait * 2).min(options.probe_at_most);
            assert!(matches!(monitor.admit(now + wait / 2), Admission::No(_)));
        }
        now += wait;
        assert!(matches!(monitor.admit(now), Admission::OnTrial));
        monitor.note(&Outcome::Neutral, true, now);
        assert!(matches!(monitor.admit(now), Admission::OnTrial), "called off: next one");
        monitor.note(&Outcome::Good, true, now);
        assert_eq!(monitor.health(), Health::Good);
        assert!(matches!(monitor.admit(now), Admission::Yes));
    }
}
