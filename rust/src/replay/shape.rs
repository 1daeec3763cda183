//! From a number of bytes to the shape of a block.
//!
//! A manager knows blocks as layers of tokens, a replay only their size. The size is cut into the
//! fewest equal regions that the limits on shapes allow, so that a block of usual size is one run;
//! the product is exact, no byte is added.

use super::ReplayError;
use crate::{
    config::ModelConfig,
    dtype::DType,
    layout::{MAX_INNER_DIM, MAX_NUM_LAYERS, MAX_OUTER_DIM, MAX_PAGE_SIZE},
};

/// Most bytes of a block.
const MAX_BYTES: u64 = (MAX_NUM_LAYERS * MAX_OUTER_DIM * MAX_PAGE_SIZE * MAX_INNER_DIM) as u64;

/// How far to look for a size to propose. Sizes without a large prime factor are never far.
const NEAR: u64 = 100_000;

/// A model whose blocks have exactly `bytes` bytes.
pub(super) fn of_bytes(bytes: u64) -> Result<ModelConfig, ReplayError> {
    if bytes == 0 || bytes > MAX_BYTES {
        return Err(ReplayError::BlockSize { bytes, most: MAX_BYTES });
    }
    factors(bytes).ok_or_else(|| {
        let near = (bytes..=MAX_BYTES.min(bytes + NEAR)).find(|&near| factors(near).is_some());
        ReplayError::BlockShape { bytes, near: near.unwrap_or(MAX_BYTES) }
    })
}

fn factors(bytes: u64) -> Option<ModelConfig> {
    let bytes = bytes as usize;
    let regions = |outer| (1..=MAX_NUM_LAYERS).map(move |layers| (layers, outer));
    regions(1).chain(regions(2)).find_map(|(layers, outer)| {
        let region = exact(bytes, layers * outer)?;
        let page = region.div_ceil(MAX_INNER_DIM);
        (page..=MAX_PAGE_SIZE).find_map(|page| {
            let model = ModelConfig::builder()
                .num_layers(layers)
                .outer_dim(outer)
                .page_size(page)
                .inner_dim(exact(region, page)?)
                .dtype(DType::UINT8);
            Some(model.build())
        })
    })
}

fn exact(dividend: usize, divisor: usize) -> Option<usize> {
    dividend.is_multiple_of(divisor).then(|| dividend / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shapes_are_exact_and_within_limits(bytes in prop_oneof![
            1_u64..=100_000, 1_u64..=MAX_BYTES, (1_u64..=1 << 21).prop_map(|pages| pages << 12),
        ]) {
            match of_bytes(bytes) {
                Ok(model) => {
                    prop_assert_eq!(model.block_bytes(), Some(bytes as usize));
                    prop_assert!(model.layout(1).validate().is_ok());
                }
                Err(ReplayError::BlockShape { near, .. }) => {
                    prop_assert!(near > bytes && of_bytes(near).is_ok());
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn usual_sizes_are_one_run() {
        for bytes in [1, 5000, 65_536, 1 << 20, 2 << 20, 32 << 20] {
            let regions = of_bytes(bytes).map(|model| model.num_layers * model.outer_dim);
            assert_eq!(regions.ok(), Some(1), "{bytes}");
        }
        assert!(of_bytes(MAX_BYTES).is_ok());
    }

    #[test]
    fn impossible_sizes_are_named() {
        for bytes in [0, MAX_BYTES + 1, u64::MAX, 65_537] {
            let message = of_bytes(bytes).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains(&format!("{bytes}")), "{message}");
        }
    }
}
