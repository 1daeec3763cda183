//! What can be wrong with a layout, and the checked arithmetic that finds out.

/// Why a layout was refused, or an index into one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A size is zero or past its limit.
    #[error("{field}: {value} is outside {min}..={max}")]
    OutOfRange {
        /// The field or argument.
        field: &'static str,
        /// What was given.
        value: usize,
        /// Least value allowed.
        min: usize,
        /// Greatest value allowed.
        max: usize,
    },
    /// An alignment that is no power of two.
    #[error("alignment: {value} is no power of two; use 1, 2, 4, ..., 4096, ...")]
    Alignment {
        /// What was given.
        value: usize,
    },
    /// A byte count passes `isize::MAX`, the size of the largest object.
    #[error(
        "{what}: {left} and {right} together pass {} bytes; use fewer or smaller blocks",
        isize::MAX
    )]
    Overflow {
        /// The quantity that was being computed.
        what: &'static str,
        /// One operand.
        left: usize,
        /// The other operand.
        right: usize,
    },
    /// No such block.
    #[error("block: {block} does not exist; the layout has {num_blocks} blocks")]
    InvalidBlockIndex {
        /// What was asked for.
        block: usize,
        /// Blocks of the layout.
        num_blocks: usize,
    },
    /// No such layer, or a range of layers that ends before it starts.
    #[error(
        "layer: {layer} does not exist or ends a reversed range; there are {num_layers} layers"
    )]
    InvalidLayerIndex {
        /// The first offending layer.
        layer: usize,
        /// Layers of a block.
        num_layers: usize,
    },
    /// No such outer index (0 is K, 1 is V).
    #[error("outer: {outer} does not exist; a layer has {outer_dim}")]
    InvalidOuterIndex {
        /// What was asked for.
        outer: usize,
        /// Outer indices of a layer.
        outer_dim: usize,
    },
    /// Two layouts that cannot be copied into each other.
    #[error("{field}: {left} here, {right} there; blocks of these layouts are not the same")]
    Incompatible {
        /// What differs.
        field: &'static str,
        /// Its value in the first layout.
        left: String,
        /// Its value in the second.
        right: String,
    },
    /// Bytes outside the memory that was stated.
    #[error("{what}: ends at byte {end} of storage {storage}, which has {size}")]
    OutOfBounds {
        /// Whose bytes.
        what: String,
        /// Index of the storage.
        storage: usize,
        /// First byte past the end of what was described.
        end: usize,
        /// Bytes of the storage; 0 if there is no such storage.
        size: usize,
    },
    /// Two parts of the layout share bytes, or their strides interleave in a way that no view of
    /// a dense array has.
    #[error("{first} and {second} overlap; every byte may belong to one region of one block only")]
    Overlap {
        /// One part.
        first: String,
        /// The other.
        second: String,
    },
    /// A custom strategy refused the configuration.
    #[error("layout strategy {name}: {reason}")]
    Strategy {
        /// [`LayoutStrategy::name`](super::LayoutStrategy::name).
        name: String,
        /// Why, and what would help.
        reason: String,
    },
    /// An external tensor is described in a way that contradicts itself.
    #[error("{field}: {reason}")]
    Description {
        /// The argument at fault.
        field: &'static str,
        /// What is wrong with its value, and the remedy.
        reason: String,
    },
    /// A stride that is negative, or zero, along more than one element.
    #[error("strides: {stride} in dimension {dimension} must be at least 1; pass a forward view")]
    Stride {
        /// The dimension of the tensor.
        dimension: usize,
        /// What was given, in elements.
        stride: i64,
    },
    /// An external tensor reads in two ways that put bytes in different places.
    #[error(
        "tensor: shape {shape:?} with strides {strides:?} reads as {first} and as {second}; state \
         `axes`, the meaning of each dimension"
    )]
    Ambiguous {
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Its strides in elements.
        strides: Vec<i64>,
        /// One reading.
        first: String,
        /// Another.
        second: String,
    },
}

/// `left * right`, at most `isize::MAX`.
pub(super) fn mul(what: &'static str, left: usize, right: usize) -> Result<usize, LayoutError> {
    bounded(left.checked_mul(right), what, left, right)
}

/// `left + right`, at most `isize::MAX`.
pub(super) fn add(what: &'static str, left: usize, right: usize) -> Result<usize, LayoutError> {
    bounded(left.checked_add(right), what, left, right)
}

/// `bytes` rounded up to a multiple of `alignment`, at most `isize::MAX`.
pub(super) fn align(
    what: &'static str,
    bytes: usize,
    alignment: usize,
) -> Result<usize, LayoutError> {
    bounded(bytes.checked_next_multiple_of(alignment), what, bytes, alignment)
}

fn bounded(
    value: Option<usize>,
    what: &'static str,
    left: usize,
    right: usize,
) -> Result<usize, LayoutError> {
    value.filter(|&v| isize::try_from(v).is_ok()).ok_or(LayoutError::Overflow { what, left, right })
}

/// `value` if it lies in `min..=max`.
pub(super) fn within(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<usize, LayoutError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(LayoutError::OutOfRange { field, value, min, max })
    }
}
