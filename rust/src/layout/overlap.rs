//! Whether two regions can share a byte.
//!
//! A set of strides is *nested* when each step is at least as long as everything inside it, as in
//! any view of a dense array. For nested strides, whether two copies of the same pattern collide
//! is decided exactly: at each stride only two step counts can close the distance.

use super::map::{Dim, Origin};

/// Index of the first of `axes` (sorted by stride, largest first) whose step is shorter than what
/// lies inside it; `None` when they are nested. `run` is the bytes of the innermost item.
pub(super) fn first_unnested(axes: &[Dim], run: usize) -> Option<usize> {
    let mut extent = run as u128;
    for (index, axis) in axes.iter().enumerate().rev() {
        if axis.count > 1 {
            if (axis.stride as u128) < extent {
                return Some(index);
            }
            extent += (axis.count as u128 - 1) * axis.stride as u128;
        }
    }
    None
}

/// Two indices of `origins` whose patterns (nested `axes` of `run` bytes) share a byte.
pub(super) fn first_collision(
    origins: &[Origin],
    axes: &[Dim],
    run: usize,
) -> Option<(usize, usize)> {
    for (later, b) in origins.iter().enumerate() {
        for (earlier, a) in origins[..later].iter().enumerate() {
            let distance = b.offset as i128 - a.offset as i128;
            if a.storage == b.storage && closes(distance, axes, run) {
                return Some((earlier, later));
            }
        }
    }
    None
}

/// Whether fewer than `count` steps along each axis, either way, bring `distance` below `run`.
fn closes(distance: i128, axes: &[Dim], run: usize) -> bool {
    let Some((axis, inner)) = axes.split_first() else {
        return distance.unsigned_abs() < run as u128;
    };
    if axis.count <= 1 {
        return closes(distance, inner, run);
    }
    let stride = axis.stride as i128;
    let below = distance.div_euclid(stride);
    [below, below + 1].into_iter().any(|steps| {
        steps.unsigned_abs() < axis.count as u128 && closes(distance - steps * stride, inner, run)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn bytes(start: usize, axes: &[Dim], run: usize) -> Vec<usize> {
        let starts = axes.iter().fold(vec![start], |starts, axis| {
            starts.iter().flat_map(|s| (0..axis.count).map(move |i| s + i * axis.stride)).collect()
        });
        starts.iter().flat_map(|&s| s..s + run).collect()
    }

    proptest! {
        #[test]
        fn exact_on_nested_strides(
            counts in prop::collection::vec(1usize..4, 0..4),
            gaps in prop::collection::vec(0usize..5, 4),
            run in 1usize..4,
            distance in 0usize..200,
        ) {
            // Built from the inside out, each stride at least the extent so far.
            let mut extent = run;
            let mut axes = Vec::new();
            for (&count, gap) in counts.iter().zip(gaps) {
                let stride = extent + gap;
                extent += (count - 1) * stride;
                axes.insert(0, Dim { count, stride });
            }
            prop_assert_eq!(first_unnested(&axes, run), None);
            let first = bytes(0, &axes, run);
            let shared = bytes(distance, &axes, run).iter().any(|b| first.contains(b));
            let origins = [Origin::new(0, 0), Origin::new(0, distance)];
            prop_assert_eq!(first_collision(&origins, &axes, run).is_some(), shared);
            prop_assert_eq!(
                first_collision(&[origins[0], Origin::new(1, distance)], &axes, run), None);
        }
    }
}
