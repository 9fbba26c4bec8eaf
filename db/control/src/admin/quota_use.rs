//! Quotas and what is used of them.

use std::collections::BTreeMap;

use super::now_ms;
use super::types::OverviewQuotaResponse;
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_store::StorageMode;

/// Quotas that have a use: memory by what its records take.
pub(super) fn quota_uses(view: &TenantView) -> Vec<OverviewQuotaResponse> {
    let limits: BTreeMap<&str, u64> = view.tenant.quotas.list().into_iter().collect();
    let uses = view.used(now_ms()).into_iter();
    let uses = uses.filter_map(|(name, used)| Some(OverviewQuotaResponse { name, used, limit: *limits.get(name)? }));
    uses.filter(|quota| quota.limit > 0).collect()
}

/// Of a thousand parts of a table's quota, those that are used; 0 unless it is in mode `store`, as the others make room
/// by themselves and so are nearly full all the time.
pub(super) fn table_used_per_mille(entry: &TableEntry) -> u64 {
    let (used, quota) = (u128::from(entry.table.stats().bytes), u128::from(entry.quota_bytes()));
    match entry.mode() {
        StorageMode::Store => u64::try_from((used * 1_000).checked_div(quota).unwrap_or(0)).unwrap_or(u64::MAX),
        _ => 0,
    }
}
