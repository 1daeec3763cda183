//! The device tier in tensors that somebody else allocated: an engine's own cache.
//!
//! The tensors come through `DLPack` and are kept until the last block, copy and manager is gone;
//! they are given back on a Python thread (`dlpack::Lent`). What a dimension means is stated, or
//! follows from sizes and strides where these leave one reading; what leaves two is refused, with
//! what to state.
//!
//! Who lends promises what no capsule can say: that the memory stays where it is, and that a block is
//! written by the one who holds it.

mod regions;
mod storage;

use std::sync::Arc;

use dynamo_llm::{
    block_manager::{
        KvManagerLayoutConfig,
        config::{Capacity, Config},
        layout::{Axis, BlockLayout, ExternalLayout},
        storage::Storage,
    },
    common::dtype::DType,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyList, PyString, PyTuple, PyType},
};

use crate::{
    argument::{show, wrong_type},
    dlpack::{Lent, Seen, give_back},
    error::{Failure, Kind, chain},
};

/// The arguments that describe lent tensors, as they were given.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lending<'a, 'py> {
    pub(crate) device_tensors: Option<&'a Bound<'py, PyAny>>,
    pub(crate) axes: Option<&'a Bound<'py, PyAny>>,
    pub(crate) memory_order: Option<&'a Bound<'py, PyAny>>,
}

/// A layer, or all of them: one tensor, or K and V.
type Part<'py> = Vec<(String, Bound<'py, PyAny>)>;

impl Lending<'_, '_> {
    /// The device tier in the tensors, if there are any.
    pub(crate) fn tier(self, settings: &Config) -> PyResult<Option<KvManagerLayoutConfig>> {
        let Some(tensors) = self.device_tensors else {
            let stated = [("axes", self.axes), ("memory_order", self.memory_order)];
            return match stated.into_iter().find_map(|(name, value)| Some((name, value?))) {
                None => Ok(None),
                Some((name, value)) => {
                    let value = show(value);
                    Err(refuse(format!("{name} = {value}: of no tensors; give device_tensors")))
                }
            };
        };
        let parts = parts(tensors)?;
        let mut taken = Vec::with_capacity(parts.len());
        for part in &parts {
            let mut tensors = Vec::with_capacity(part.len());
            for (argument, tensor) in part {
                tensors.push(Lent::take(argument, tensor, settings.model.dtype)?);
            }
            taken.push(tensors);
        }
        let (layout, storage) = self.layout(settings, taken)?;
        let blocks = layout.num_blocks();
        match settings.device.capacity {
            Capacity::Blocks(stated) if stated != blocks => Err(refuse(format!(
                "device_blocks = {stated}: the tensors hold {blocks}; leave it out"
            ))),
            Capacity::Bytes(stated) => Err(refuse(format!(
                "device.bytes = {stated}: the tensors hold {blocks} blocks; leave it out"
            ))),
            _ => Ok(Some(KvManagerLayoutConfig::builder().layout(layout).storage(storage).build())),
        }
    }

    fn layout(
        self,
        settings: &Config,
        parts: Vec<Vec<(Lent, Seen)>>,
    ) -> PyResult<(BlockLayout, Vec<Arc<dyn Storage>>)> {
        let (single, pairs) = (parts.len() == 1, parts.iter().any(|part| part.len() == 2));
        let tensors = || parts.iter().flatten();
        let Some((_, first)) = tensors().next() else {
            return Err(refuse("device_tensors: none; give one for each layer".to_owned()));
        };
        let dtype = first.dtype;
        if tensors().any(|(_, seen)| seen.dtype != dtype) {
            return Err(refuse("device_tensors: of several types; give all of one".to_owned()));
        }
        let axes = names("axes", self.axes)?;
        let order = names("memory_order", self.memory_order)?;
        let sizes = sizes(settings, dtype, single, pairs, order.as_deref());
        let (storage, sizes_of_storages, described) = regions::join(parts, dtype)?;

        let mut layout = ExternalLayout::new(dtype, sizes_of_storages);
        for part in described {
            layout = match <[_; 2]>::try_from(part) {
                Ok([k, v]) => layout.layer_kv(k, v),
                Err(part) => part.into_iter().fold(layout, ExternalLayout::layer),
            };
        }
        if let Some(axes) = axes {
            layout = layout.axes(axes);
        } else {
            layout = layout.sizes(sizes);
        }
        // Blocks are an axis, however many there are.
        layout = layout.memory_order(order.unwrap_or_else(|| vec![Axis::Block]));
        let layout = layout.build().map_err(|error| {
            refuse(format!(
                "device_tensors: {}; axes=(...) names what each dimension counts, of layer, block, \
                 outer (K and V), token, head, element",
                chain(&error)
            ))
        })?;
        Ok((layout, storage))
    }
}

/// What the model says about the axes of a tensor whose owner did not name them: with `order`, of
/// those that stand in it.
fn sizes(
    settings: &Config,
    dtype: DType,
    single: bool,
    pairs: bool,
    order: Option<&[Axis]>,
) -> Vec<(Axis, usize)> {
    let model = &settings.model;
    let mut inner_dim = model.inner_dim;
    if dtype != model.dtype {
        inner_dim = inner_dim.saturating_mul(model.dtype.size_bytes());
    }
    let heads_apart = order.is_some_and(|order| order.contains(&Axis::Head));
    let mut sizes = vec![(Axis::Token, model.page_size)];
    if single {
        sizes.push((Axis::Layer, model.num_layers));
    }
    if !pairs {
        sizes.push((Axis::Outer, model.outer_dim));
    }
    if !heads_apart {
        sizes.push((Axis::Element, inner_dim));
    }
    if let Capacity::Blocks(blocks) = settings.device.capacity {
        sizes.push((Axis::Block, blocks));
    }
    sizes.retain(|(axis, _)| order.is_none_or(|order| order.contains(axis)));
    sizes
}

/// The tensors by layer: one for all, one for each, or K and V for each; each with its name.
fn parts<'py>(tensors: &Bound<'py, PyAny>) -> PyResult<Vec<Part<'py>>> {
    const NAME: &str = "device_tensors";
    const EXPECTED: &str = "one tensor, or a list with a tensor or a pair (K, V) for each layer";
    let class = tensors.is_instance_of::<PyType>();
    if !class && tensors.hasattr("__dlpack__")? {
        return Ok(vec![vec![(NAME.to_owned(), tensors.clone())]]);
    }
    if class || tensors.is_instance_of::<PyDict>() || tensors.is_instance_of::<PyString>() {
        return Err(wrong_type(NAME, tensors, EXPECTED));
    }
    let Ok(layers) = tensors.try_iter() else { return Err(wrong_type(NAME, tensors, EXPECTED)) };
    let mut parts = Vec::new();
    for (index, layer) in layers.enumerate() {
        let (name, layer) = (format!("{NAME}[{index}]"), layer?);
        let pair: Vec<Bound<'py, PyAny>> = if let Ok(pair) = layer.cast::<PyTuple>() {
            pair.iter().collect()
        } else if let Ok(pair) = layer.cast::<PyList>() {
            pair.iter().collect()
        } else {
            parts.push(vec![(name, layer)]);
            continue;
        };
        if pair.len() != 2 {
            return Err(refuse(format!("{name}: {} tensors; give K and V", pair.len())));
        }
        let named = pair.into_iter().enumerate();
        parts.push(named.map(|(part, tensor)| (format!("{name}[{part}]"), tensor)).collect());
    }
    Ok(parts)
}

/// Axes by name.
fn names(argument: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<Axis>>> {
    const EXPECTED: &str = "names, such as (\"block\", \"token\", \"head\", \"element\")";
    let Some(value) = value else { return Ok(None) };
    let items = value.try_iter().ok().filter(|_| !value.is_instance_of::<PyString>());
    let Some(items) = items else { return Err(wrong_type(argument, value, EXPECTED)) };
    let mut axes = Vec::new();
    for item in items {
        let item = item?;
        let Ok(name) = item.cast::<PyString>() else {
            return Err(wrong_type(argument, value, EXPECTED));
        };
        let name = name.to_cow()?;
        let Some(axis) = Axis::ALL.into_iter().find(|axis| axis.name() == name) else {
            let (name, all) = (show(&item), Axis::ALL.map(Axis::name).join(", "));
            return Err(refuse(format!("{argument}: {name} is no axis; there are {all}")));
        };
        axes.push(axis);
        if axes.len() > Axis::ALL.len() {
            return Err(refuse(format!("{argument}: more names than there are axes")));
        }
    }
    Ok(Some(axes))
}

fn refuse(message: String) -> PyErr {
    Failure::new(Kind::Config, message).into()
}

/// Gives lent tensors back once what stands before it in a structure was dropped, by Python.
pub(crate) struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        // Where the interpreter is ending, they are let go with it.
        Python::try_attach(give_back);
    }
}

#[pyfunction]
fn _give_back(py: Python<'_>) {
    give_back(py);
}

/// At the exit, what was not given back by then is.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let at_exit = wrap_pyfunction!(_give_back, module)?;
    module.py().import("atexit")?.call_method1("register", (at_exit,))?;
    Ok(())
}
