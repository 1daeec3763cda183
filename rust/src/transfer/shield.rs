//! Where code that is not ours is called from a thread of ours.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Calls foreign code (a waker, a receiver of reports). A panic in it ends here: it costs that one
/// call, never the thread that copies for everybody.
pub(super) fn shielded(what: &'static str, call: impl FnOnce()) {
    // What a panic may leave half done belongs to the callee; we hold no lock across the call.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        tracing::error!("{what} panicked; its call is lost, transfers go on");
        // A payload is foreign too: one that panics when dropped is left alone.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
    }
}
