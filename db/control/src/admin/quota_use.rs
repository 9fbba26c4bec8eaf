//! Quotas and what is used of them.

use std::collections::BTreeMap;

use super::types::OverviewQuotaResponse;
use super::{ControlState, now_ms};
use sandstorm_catalog::{TableEntry, TenantView};
use sandstorm_store::StorageMode;

/// Quotas that are used up, with what is used of them.
pub(super) fn quota_uses(view: &TenantView) -> Vec<OverviewQuotaResponse> {
    beside_limits(view, view.used(now_ms()))
}

/// The same, and those that are rates, with what was used of them in the last second.
pub(super) fn quota_uses_and_rates(control: &ControlState, view: &TenantView) -> Vec<OverviewQuotaResponse> {
    let mut uses = view.used(now_ms());
    uses.extend(control.tenant_use.of(view).rates());
    beside_limits(view, uses)
}

/// Uses with their quotas, without those that are 0.
fn beside_limits(view: &TenantView, uses: Vec<(&'static str, u64)>) -> Vec<OverviewQuotaResponse> {
    let limits: BTreeMap<&str, u64> = view.tenant.quotas.list().into_iter().collect();
    let uses = uses.into_iter();
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
