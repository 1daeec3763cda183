//! Who waits, who is under way: the bookkeeping of the engine, under its one lock.
//!
//! Plain data; the time is told. Nothing here answers a request: what is to be answered is handed
//! out, and answered without the lock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::super::health::{Admission, Monitor, Outcome};
use super::super::{IoError, IoRequest, Lane};
use super::PsyncOptions;

/// A request that was accepted.
pub(super) struct Entry {
    pub(super) id: u64,
    /// The lane is sick, and this one tells whether it still is.
    pub(super) trial: bool,
    pub(super) request: Box<IoRequest>,
}

/// A request under way.
pub(super) struct Running {
    started: Instant,
    trial: bool,
    /// It has been counted as a failure; its end says nothing more.
    stuck: bool,
}

pub(super) struct LaneState {
    lane: Lane,
    limit: usize,
    threads: usize,
    pub(super) queue: VecDeque<Entry>,
    pub(super) running: BTreeMap<u64, Running>,
    pub(super) monitor: Monitor,
}

pub(super) struct State {
    lanes: [LaneState; 2],
    next_id: u64,
    cancelled: Vec<Entry>,
    stuck_after: Duration,
    /// Until when stores hold back.
    quiet_at: Option<Instant>,
    stores_beside_loads: usize,
    hold_back: Duration,
    pub(super) started: bool,
    pub(super) stopped: bool,
    /// When the watching thread looks next; `None`: when it is told to.
    pub(super) wakes_at: Option<Instant>,
}

impl State {
    pub(super) fn new(options: &PsyncOptions) -> Self {
        let lane = |lane, limit, threads| LaneState {
            lane,
            limit,
            threads,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            monitor: Monitor::new(lane, options.health),
        };
        Self {
            lanes: [
                lane(Lane::Load, options.load_queue, options.load_threads),
                lane(Lane::Store, options.store_queue, options.store_threads),
            ],
            next_id: 0,
            cancelled: Vec::new(),
            stuck_after: options.health.stuck_after,
            quiet_at: None,
            stores_beside_loads: options.stores_beside_loads,
            hold_back: options.hold_back,
            started: false,
            stopped: false,
            wakes_at: None,
        }
    }

    pub(super) fn lane(&self, lane: Lane) -> &LaneState {
        &self.lanes[lane as usize]
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }

    /// Queues a request under a new id.
    pub(super) fn admit(
        &mut self,
        request: IoRequest,
        now: Instant,
    ) -> Result<u64, (IoError, Box<IoRequest>)> {
        let id = self.next_id;
        let stopped = self.stopped;
        let lane = self.lane_mut(request.lane);
        let refused = if stopped {
            Some(IoError::Stopped)
        } else if request.deadline.is_some_and(|at| now >= at) {
            Some(IoError::Expired { lane: lane.lane })
        } else if lane.queue.len() >= lane.limit {
            let (queued, limit) = (lane.queue.len(), lane.limit);
            Some(IoError::QueueFull { lane: lane.lane, queued, limit })
        } else {
            None
        };
        let request = Box::new(request);
        if let Some(error) = refused {
            return Err((error, request));
        }
        let trial = match lane.monitor.admit(now) {
            Admission::Yes => false,
            Admission::OnTrial => true,
            Admission::No(error) => return Err((error, request)),
        };
        lane.queue.push_back(Entry { id, trial, request });
        self.next_id += 1;
        Ok(id)
    }

    /// Whether loads are about, or have just been.
    fn loads_about(&self, now: Instant) -> bool {
        let loads = self.lane(Lane::Load);
        !loads.queue.is_empty()
            || !loads.running.is_empty()
            || self.quiet_at.is_some_and(|quiet| now < quiet)
    }

    /// Whether a store waits for no other reason than loads.
    pub(super) fn holds_back(&self, lane: Lane, now: Instant) -> bool {
        let stores = self.lane(Lane::Store);
        lane == Lane::Store
            && stores.running.len() >= self.stores_beside_loads
            && !stores.queue.is_empty()
            && self.loads_about(now)
    }

    /// Takes the next request of a lane to be carried out.
    pub(super) fn begin(&mut self, lane: Lane, now: Instant) -> Option<Entry> {
        if self.holds_back(lane, now) {
            return None;
        }
        let lane = self.lane_mut(lane);
        let entry = lane.queue.pop_front()?;
        let running = Running { started: now, trial: entry.trial, stuck: false };
        lane.running.insert(entry.id, running);
        Some(entry)
    }

    /// Takes note of the end of a request under way; true when its lane has just become sick.
    pub(super) fn end(
        &mut self,
        lane: Lane,
        id: u64,
        result: &Result<(), IoError>,
        trial: bool,
        now: Instant,
    ) -> bool {
        if lane == Lane::Load {
            self.quiet_at = Some(now + self.hold_back);
        }
        let lane = self.lane_mut(lane);
        let counted = lane.running.remove(&id).is_some_and(|running| running.stuck);
        !counted && lane.monitor.note(&Outcome::of(result, trial), trial, now)
    }

    /// Takes a request out of its queue, to be answered by the watching thread.
    pub(super) fn cancel(&mut self, lane: Lane, id: u64) -> bool {
        let queue = &mut self.lane_mut(lane).queue;
        // Ids in a queue ascend.
        let Ok(at) = queue.binary_search_by_key(&id, |entry| entry.id) else { return false };
        let entry = queue.remove(at);
        self.cancelled.extend(entry);
        true
    }

    /// Everything that will not begin any more, with the reason: cancelled, past its deadline, on a
    /// lane that is sick, or of an engine that has stopped. Counts what is stuck on the way.
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<(Entry, IoError)> {
        let mut given_up: Vec<_> = std::mem::take(&mut self.cancelled)
            .into_iter()
            .map(|entry| {
                let lane = entry.request.lane;
                (entry, IoError::Cancelled { lane })
            })
            .collect();
        for lane in &mut self.lanes {
            lane.count_stuck(self.stuck_after, now);
            let refusal = lane.monitor.refusal();
            let stopped = self.stopped;
            let verdict = |entry: &Entry| {
                if stopped {
                    Some(IoError::Stopped)
                } else if entry.request.deadline.is_some_and(|at| now >= at) {
                    Some(IoError::Expired { lane: entry.request.lane })
                } else {
                    refusal.clone().filter(|_| !entry.trial)
                }
            };
            if !lane.queue.iter().any(|entry| verdict(entry).is_some()) {
                continue;
            }
            for entry in std::mem::take(&mut lane.queue) {
                match verdict(&entry) {
                    Some(error) => given_up.push((entry, error)),
                    None => lane.queue.push_back(entry),
                }
            }
        }
        for (entry, error) in &mut given_up {
            if entry.trial {
                let result = Err(error.clone());
                let monitor = &mut self.lanes[entry.request.lane as usize].monitor;
                monitor.note(&Outcome::of(&result, true), true, now);
            }
        }
        given_up
    }

    /// The next moment at which time alone changes something.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let deadlines =
            |lane: &LaneState| lane.queue.iter().filter_map(|entry| entry.request.deadline).min();
        let stuck = |lane: &LaneState| {
            let watched = lane.running.values().filter(|running| !running.stuck);
            watched.map(|running| running.started + self.stuck_after).min()
        };
        self.lanes.iter().flat_map(|lane| [deadlines(lane), stuck(lane)]).flatten().min()
    }
}

impl LaneState {
    fn count_stuck(&mut self, stuck_after: Duration, now: Instant) {
        let mut last = None;
        for running in self.running.values_mut().filter(|running| !running.stuck) {
            let elapsed = now.saturating_duration_since(running.started);
            if elapsed >= stuck_after {
                running.stuck = true;
                let millis = elapsed.as_millis() as u64;
                let error = IoError::Stuck { lane: self.lane, millis };
                self.monitor.note(&Outcome::Failed(&error), running.trial, now);
                last = Some(error);
            }
        }
        if let Some(error) = last {
            let stuck = self.running.values().filter(|running| running.stuck).count();
            self.monitor.note_stuck(stuck, self.threads, &error, now);
        }
    }
}
