//! Tensors across libraries without a copy: `DLPack` 1.1, and the older form without a version.
//!
//! Exports are written by hand so that each of these holds:
//! - an export owns the slots it shows; they go back when it and all handles are gone;
//! - the deleter may be called on any thread, without the interpreter lock and after the interpreter
//!   has ended: it drops a Rust object and touches no Python;
//! - a capsule that nobody consumed gives its tensor back when it is dropped;
//! - strides are always given and `byte_offset` is 0: consumers get either wrong;
//! - registered blocks say read-only, and where a form cannot say so, there is no export in it.
//!
//! Imports are of two kinds: token ids are copied out at once (`import`), an engine's tensors are kept
//! and given back on a Python thread (`lent`).

mod abi;
mod export;
pub(crate) mod import;
mod lent;
mod terms;

pub(crate) use export::{device, export};
pub(crate) use lent::{Lent, Seen, give_back};
pub(crate) use terms::Terms;
