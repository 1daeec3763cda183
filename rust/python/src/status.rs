//! What is in force and what was counted, as one tree.

use std::collections::BTreeMap;

use dynamo_llm::block_manager::{BlockPool, config::Effective, metrics::BlockManagerMetrics};
use serde_json::{Map, Value, json};

use crate::shared::Shared;

/// The tree of `BlockManager.status()`.
pub(crate) fn tree(shared: &Shared, figures: &BlockManagerMetrics) -> Value {
    let manager = &shared.manager;
    let tiers: Map<String, Value> = figures
        .pools
        .keys()
        .filter_map(|&tier| Some((tier.name().to_owned(), tier_tree(manager.pool(tier)?))))
        .collect();
    let in_force = manager.settings();
    let model = &in_force.model;
    let settings: BTreeMap<&str, Value> = in_force
        .effective()
        .into_iter()
        .map(|Effective { field, value, source, .. }| {
            (field, json!({"value": value, "source": source.to_string()}))
        })
        .collect();
    json!({
        "worker_id": manager.worker_id(),
        "closed": shared.is_closed(),
        "block_size": manager.block_size(),
        "block_shape": [model.num_layers, model.outer_dim, model.page_size, model.inner_dim],
        "block_bytes": model.block_bytes(),
        "dtype": model.dtype.name(),
        "zero_on_allocate": shared.extras.zero_on_allocate,
        "tiers": tiers,
        "drives": figures.drives,
        "edges": figures.edges.iter().map(|(edge, figures)| (edge.to_string(), json!(figures)))
            .collect::<Map<String, Value>>(),
        "latency_us": figures.latency,
        "events": figures.events,
        "settings": settings,
        "findings": manager.findings(),
    })
}

fn tier_tree(pool: &BlockPool) -> Value {
    let place = pool.blocks().place();
    let (bytes, storage) = match (place.memory(), place.disk()) {
        (Some(memory), _) => {
            let storages = memory.storages();
            let storage = storages.first().map(|storage| storage.storage_type().to_string());
            (storages.iter().map(|storage| storage.size() as u64).sum(), storage)
        }
        (None, Some(disk)) => (disk.used(), Some("disk".to_owned())),
        (None, None) => (0, None),
    };
    let mut tree = json!({
        "storage": storage,
        "layout": place.layout().to_string(),
        "blocks": pool.total_blocks(),
        "bytes": bytes,
        "eviction": pool.policy(),
        "available": pool.available_blocks(),
        "usage": pool.usage_rate(),
    });
    if let (Value::Object(tree), Value::Object(counts)) = (&mut tree, json!(pool.status())) {
        tree.extend(counts);
    }
    tree
}
