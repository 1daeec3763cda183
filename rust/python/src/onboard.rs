//! An onboarding under way, and where its blocks go.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    OnboardOptions, SlotId, Tier,
    offload::{Onboard, Onboarded},
};
use pyo3::prelude::*;

use crate::{
    argument::{count, seconds},
    asyncio,
    batch::Batch,
    block_list::{BlockList, Selection},
    error::Failure,
    gather::Gathered,
    hashes::{Hashes, HashesArgument},
    matching::{Found, Match},
    shared::Shared,
    wait,
};

/// What `BlockManager.onboard` was asked for.
pub(crate) struct Wanted {
    shared: Arc<Shared>,
    source: Source,
    skip: usize,
    into: Option<Selection>,
    deadline: Option<Duration>,
}

enum Source {
    Match(Arc<Found>),
    Hashes(Hashes),
}

/// Blocks on their way up. Dropping this gives them up; blocks that were given to copy into and
/// were not needed are then what they were.
struct Onboarding {
    shared: Arc<Shared>,
    under_way: Option<Onboard>,
    /// Where the slots to copy into came from, and which they are.
    into: Option<(Gathered, Vec<SlotId>)>,
}

impl Wanted {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        source: &Bound<'_, PyAny>,
        skip: Option<&Bound<'_, PyAny>>,
        into: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        shared.pool(Tier::Device)?;
        let skip = skip.map_or(Ok(0), |skip| count("skip", skip))?;
        let deadline = seconds("deadline", deadline)?;
        let into = match into {
            None => None,
            Some(into) => Some(Selection::new("into", into)?).filter(|into| into.len() > 0),
        };
        let source = if let Ok(found) = source.cast::<Match>() {
            Source::Match(found.get().found()?.clone())
        } else {
            Source::Hashes(source.extract::<HashesArgument>()?.0)
        };
        Ok(Self { shared: shared.clone(), source, skip, into, deadline })
    }

    /// Blocks at most.
    fn len(&self) -> usize {
        match &self.source {
            Source::Match(found) => found.len(),
            Source::Hashes(hashes) => hashes.as_slice().len(),
        }
    }

    fn begin(self) -> Result<Onboarding, Failure> {
        let Self { shared, source, skip, into, deadline } = self;
        let deadline = deadline.and_then(|left| Instant::now().checked_add(left));
        let manager = shared.open()?;
        let found = match source {
            Source::Match(found) => found.take().ok_or_else(|| {
                Failure::manager("the match was released or used up; look the hashes up again")
            })?,
            Source::Hashes(hashes) => manager.lookup(hashes.as_slice())?,
        };
        let device = shared.pool(Tier::Device)?.blocks();
        let into = into.map(|into| Gathered::take(into, device, false)).transpose()?;
        let (into, from) = into.map(|into| (into.slots, into.from)).unzip();
        let given = into.as_ref().map_or_else(Vec::new, |slots| slots.ids().to_vec());
        let under_way = manager.start_onboard(found, OnboardOptions { skip, into, deadline })?;
        let into = from.map(|from| (from, given));
        Ok(Onboarding { under_way: Some(under_way), into, shared })
    }

    /// Brings it, and lets other threads and signals through meanwhile.
    pub(crate) fn bring(self, py: Python<'_>) -> PyResult<BlockList> {
        let mut under_way = wait::work(py, self.len(), || self.begin())?;
        let arrived = wait::until(py, None, |slice| under_way.wait_for(slice))?;
        let none = || Err(Failure::manager("the onboarding ended without a result"));
        Ok(arrived.unwrap_or_else(none)?)
    }

    /// [`bring`](Self::bring), to await.
    pub(crate) async fn bring_async(self) -> Result<BlockList, Failure> {
        asyncio::work(self.len(), || self.begin()).await?.await
    }
}

impl Onboarding {
    fn wait_for(&mut self, time: Duration) -> Option<Result<BlockList, Failure>> {
        match self.under_way.take()?.wait(Some(time)) {
            Ok(onboarded) => Some(self.finish(onboarded)),
            Err(still) => {
                self.under_way = Some(still);
                None
            }
        }
    }

    fn finish(&mut self, onboarded: Onboarded) -> Result<BlockList, Failure> {
        let Onboarded { blocks, unused, .. } = onboarded;
        if let (Some((from, given)), Some(unused)) = (self.into.take(), unused) {
            from.put_back_unused(&given, unused);
        }
        let device = self.shared.pool(Tier::Device)?;
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => device.match_slots(&[])?,
        };
        let hashes = blocks.registrations().into_iter().map(|name| name.key.hash).collect();
        let (tier, device_id) = (device.blocks().clone(), self.shared.device_id(Tier::Device));
        Ok(BlockList::new(Batch::registered(tier, device_id, blocks, Hashes::new(hashes))))
    }
}

impl Future for Onboarding {
    type Output = Result<BlockList, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(under_way) = self.under_way.as_mut() else {
            return Poll::Ready(Err(Failure::manager("the onboarding is over")));
        };
        match Pin::new(under_way).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(onboarded) => {
                self.under_way = None;
                Poll::Ready(self.finish(onboarded))
            }
        }
    }
}

impl Drop for Onboarding {
    fn drop(&mut self) {
        let Some(under_way) = self.under_way.take() else { return };
        let Some((from, given)) = self.into.take() else { return };
        // Over at once, with what is not needed any more.
        under_way.cancel();
        if let Ok(Onboarded { unused: Some(unused), .. }) = under_way.wait(Some(Duration::ZERO)) {
            from.put_back_unused(&given, unused);
        }
    }
}
