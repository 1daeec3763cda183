//! Two layouts in lock step.

use std::ops::Range;

use super::block::BlockLayout;
use super::error::LayoutError;
use super::spans::Span;

/// Walks `layers` of a block of `src` and of a block of `dst` together, in canonical order, and
/// hands out pieces of equal length that hold the same bytes. A piece ends where a run of either
/// side ends, and nowhere else. Allocates nothing.
///
/// # Errors
///
/// [`LayoutError::Incompatible`] as [`BlockLayout::compatible_with`] says, and the errors of
/// [`BlockLayout::spans`]; `visit` has then not been called.
pub fn pair_runs(
    src: &BlockLayout,
    src_block: usize,
    dst: &BlockLayout,
    dst_block: usize,
    layers: Range<usize>,
    mut visit: impl FnMut(Span, Span),
) -> Result<(), LayoutError> {
    src.compatible_with(dst)?;
    let mut src_spans = src.spans(src_block, layers.clone())?;
    let mut dst_spans = dst.spans(dst_block, layers)?;
    let (mut src_next, mut dst_next) = (src_spans.next(), dst_spans.next());
    while let (Some(from), Some(to)) = (src_next, dst_next) {
        let len = from.len.min(to.len);
        visit(Span { len, ..from }, Span { len, ..to });
        src_next = rest(from, len).or_else(|| src_spans.next());
        dst_next = rest(to, len).or_else(|| dst_spans.next());
    }
    Ok(())
}

/// What is left of `span` after its first `len` bytes.
fn rest(span: Span, len: usize) -> Option<Span> {
    (span.len > len).then(|| Span { offset: span.offset + len, len: span.len - len, ..span })
}
