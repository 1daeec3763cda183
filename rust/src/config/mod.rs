//! Configuration as plain data.

mod tier;

pub use tier::Tier;
