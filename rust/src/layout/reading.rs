//! Which dimension of a foreign tensor means what.
//!
//! Its owner states the meaning of each dimension, or the size of each axis, or the order of the
//! axes in memory, or several of these. All readings that agree with everything stated are tried;
//! they must put every element in the same place.

use std::fmt;

use super::error::{LayoutError, within};

/// What a dimension of an external tensor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Axis {
    /// Layers, where one tensor holds several.
    Layer,
    /// Blocks.
    Block,
    /// K and V, where one tensor holds both side by side.
    Outer,
    /// Tokens of a block.
    Token,
    /// KV heads.
    Head,
    /// Elements of a head; or all that a block holds, where its inside is opaque.
    Element,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 6] =
        [Axis::Layer, Axis::Block, Axis::Outer, Axis::Token, Axis::Head, Axis::Element];

    /// The lower-case name used in messages and packing descriptions.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Layer => "layer",
            Axis::Block => "block",
            Axis::Outer => "outer",
            Axis::Token => "token",
            Axis::Head => "head",
            Axis::Element => "element",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Everything its owner said about the dimensions of a tensor.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    /// The axis of each dimension.
    pub(super) axes: Option<Vec<Axis>>,
    /// How long some axes are.
    pub(super) sizes: Vec<(Axis, usize)>,
    /// Axes by stride, largest first.
    pub(super) memory_order: Option<Vec<Axis>>,
}

/// Count and stride, in elements, of each axis; `(1, 0)` where there is only one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading([(usize, i64); Axis::ALL.len()]);

impl Reading {
    pub(super) fn count(&self, axis: Axis) -> usize {
        self.0[axis as usize].0
    }

    pub(super) fn stride(&self, axis: Axis) -> i64 {
        self.0[axis as usize].1
    }

    fn of(shape: &[usize], strides: &[i64], axes: &[Axis]) -> Self {
        let mut reading = Self([(1, 0); Axis::ALL.len()]);
        for ((&axis, &count), &stride) in axes.iter().zip(shape).zip(strides) {
            if count > 1 {
                reading.0[axis as usize] = (count, stride);
            }
        }
        reading
    }
}

impl Statement {
    /// The one reading of a tensor that agrees with everything stated.
    pub(super) fn read(&self, shape: &[usize], strides: &[i64]) -> Result<Reading, LayoutError> {
        check_dimensions(shape, strides)?;
        let known = self.known_axes(shape.len())?;
        let mut found = Vec::new();
        self.search(shape, strides, &known, &mut Vec::with_capacity(shape.len()), &mut found);
        match found.as_slice() {
            [(reading, _)] => Ok(*reading),
            [(_, first), (_, second), ..] => Err(LayoutError::Ambiguous {
                shape: shape.to_vec(),
                strides: strides.to_vec(),
                first: names(first),
                second: names(second),
            }),
            [] => Err(describe(
                "tensor",
                format!(
                    "no reading of shape {shape:?} with strides {strides:?} agrees with what is \
                     stated of {}; correct the axes, sizes or memory order",
                    names(&known),
                ),
            )),
        }
    }

    /// Tries every axis for the next dimension (at most 6! ways in all) and collects the complete
    /// readings that put elements in different places.
    fn search(
        &self,
        shape: &[usize],
        strides: &[i64],
        known: &[Axis],
        axes: &mut Vec<Axis>,
        found: &mut Vec<(Reading, Vec<Axis>)>,
    ) {
        let dimension = axes.len();
        let Some(&count) = shape.get(dimension) else {
            let reading = Reading::of(shape, strides, axes);
            let is_new = found.iter().all(|(other, _)| *other != reading);
            if is_new && self.agrees(&reading, known, axes) {
                found.push((reading, axes.clone()));
            }
            return;
        };
        let stated = self.axes.as_ref().map(|axes| axes[dimension]);
        for &axis in known {
            let free = !axes.contains(&axis) && stated.is_none_or(|stated| stated == axis);
            if free && self.size(axis).is_none_or(|size| size == count) {
                axes.push(axis);
                self.search(shape, strides, known, axes, found);
                axes.pop();
            }
        }
    }

    /// Whether axes that no dimension stands for are single, and memory lies in the stated order.
    fn agrees(&self, reading: &Reading, known: &[Axis], axes: &[Axis]) -> bool {
        let absent_are_single =
            known.iter().all(|&axis| axes.contains(&axis) || self.size(axis) == Some(1));
        let order = self.memory_order.iter().flatten();
        let strides = order.filter(|&&a| reading.count(a) > 1).map(|&a| reading.stride(a));
        absent_are_single && strides.is_sorted_by(|outer, inner| outer > inner)
    }

    fn size(&self, axis: Axis) -> Option<usize> {
        self.sizes.iter().find(|(stated, _)| *stated == axis).map(|&(_, size)| size)
    }

    /// The axes that were mentioned, each once; the block axis is among them.
    fn known_axes(&self, rank: usize) -> Result<Vec<Axis>, LayoutError> {
        let sized: Vec<Axis> = self.sizes.iter().map(|&(axis, _)| axis).collect();
        let lists = [
            ("axes", self.axes.as_deref().unwrap_or_default()),
            ("sizes", &sized),
            ("memory_order", self.memory_order.as_deref().unwrap_or_default()),
        ];
        let mut known = Vec::new();
        for (field, list) in lists {
            for (index, &axis) in list.iter().enumerate() {
                if list[..index].contains(&axis) {
                    return Err(describe(field, format!("{axis} is there twice; name it once")));
                }
                if !known.contains(&axis) {
                    known.push(axis);
                }
            }
        }
        match &self.axes {
            Some(axes) if axes.len() != rank => Err(describe(
                "axes",
                format!("{} for a tensor of {rank} dimensions; name one for each", axes.len()),
            )),
            None if known.is_empty() => Err(describe(
                "axes",
                "nothing says what the dimensions mean; state the axis of each dimension, the \
                 size of each axis, or the order of the axes in memory"
                    .to_owned(),
            )),
            _ if !known.contains(&Axis::Block) => Err(describe(
                "axes",
                format!("no block axis among {}; say which counts blocks", names(&known)),
            )),
            _ => Ok(known),
        }
    }
}

/// Shape and strides that describe distinct elements in at least one block.
fn check_dimensions(shape: &[usize], strides: &[i64]) -> Result<(), LayoutError> {
    within("dimensions", shape.len(), 1, Axis::ALL.len())?;
    if strides.len() != shape.len() {
        let reason = format!("{} for {} dimensions; give one each", strides.len(), shape.len());
        return Err(describe("strides", reason));
    }
    for (dimension, (&count, &stride)) in shape.iter().zip(strides).enumerate() {
        within("shape", count, 1, isize::MAX as usize)?;
        // What a producer writes into the stride of a single element means nothing.
        if count > 1 && stride < 1 {
            return Err(LayoutError::Stride { dimension, stride });
        }
    }
    Ok(())
}

pub(super) fn describe(field: &'static str, reason: String) -> LayoutError {
    LayoutError::Description { field, reason }
}

fn names(axes: &[Axis]) -> String {
    let names: Vec<&str> = axes.iter().map(|axis| axis.name()).collect();
    format!("({})", names.join(", "))
}
