//! A layout that a tier is given, beside the model that the manager is for.
//!
//! Own layouts are made from the model and fit it. A given one describes memory that is there
//! already: here it is refused where its blocks are not the model's. The token axis of a tensor
//! whose inside is opaque is not stated, so pages are compared only where they are.

use super::KvManagerLayoutConfig;
use crate::{
    config::{Capacity, Finding, ModelConfig, Severity, Tier},
    dtype::DType,
    layout::BlockLayout,
};

impl KvManagerLayoutConfig {
    /// The number of blocks, where it is stated in either way.
    pub(super) fn stated_blocks(&self) -> Option<usize> {
        self.num_blocks.or_else(|| self.layout.as_ref().map(BlockLayout::num_blocks))
    }
}

/// What is wrong with the layout of a tier.
pub(super) fn problem(
    config: &KvManagerLayoutConfig,
    tier: Tier,
    capacity: Capacity,
    model: &ModelConfig,
) -> Option<Finding> {
    let layout = config.layout.as_ref()?;
    let refuse = |field: &str, value: String, message: String, remedy: &str| {
        let field = format!("{tier}_layout.{field}");
        Some(Finding::new(Severity::Error, field, value, message, remedy))
    };
    if config.layout_type.is_some() {
        let message = "excludes layout: both say how the blocks lie".to_owned();
        return refuse("layout_type", String::new(), message, "give one of them");
    }
    let blocks = layout.num_blocks();
    if capacity != Capacity::Blocks(blocks) {
        let message = format!("the layout describes {blocks} blocks");
        let stated = config.num_blocks.unwrap_or_default();
        return refuse("num_blocks", stated.to_string(), message, "state as many, or none");
    }
    let dtype = layout.dtype();
    if dtype != model.dtype && dtype != DType::UINT8 {
        let message =
            format!("elements of {dtype} are described, and the model has {}", model.dtype);
        return refuse("layout", dtype.to_string(), message, "describe the model's own, or bytes");
    }
    let region = model.page_size.checked_mul(model.inner_dim);
    let region = region.and_then(|elements| elements.checked_mul(model.dtype.size_bytes()));
    let page = match layout.page_size() {
        1 => model.page_size,
        stated => stated,
    };
    let fields = [
        ("num_layers", layout.num_layers(), model.num_layers),
        ("outer_dim", layout.outer_dim(), model.outer_dim),
        ("page_size", page, model.page_size),
        ("bytes of a layer's K or V", layout.region_bytes(), region.unwrap_or(usize::MAX)),
    ];
    let (field, described, stated) = fields.into_iter().find(|(_, a, b)| a != b)?;
    let message = format!("{described} are described, and the model has {stated} of {field}");
    refuse("layout", field.to_owned(), message, "describe the model's own blocks")
}
