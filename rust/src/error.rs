//! What every error of the crate has in common.
//!
//! Each part owns one `#[non_exhaustive]` enum. A message names the field or argument, the value
//! that was given, and the remedy. This module holds only the boxed cause type they share.

/// A cause that crosses a part boundary.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;
