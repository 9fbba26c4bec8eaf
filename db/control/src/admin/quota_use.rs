//! Quotas and what is used of them.

use std::collections::BTreeMap;

use super::now_ms;
use super::types::OverviewQuotaResponse;
use sandstorm_catalog::TenantView;

/// Quotas that have a use: memory by what its records take.
pub(super) fn quota_uses(view: &TenantView) -> Vec<OverviewQuotaResponse> {
    let limits: BTreeMap<&str, u64> = view.tenant.quotas.list().into_iter().collect();
    let uses = view.used(now_ms()).into_iter();
    let uses = uses.filter_map(|(name, used)| Some(OverviewQuotaResponse { name, used, limit: *limits.get(name)? }));
    uses.filter(|quota| quota.limit > 0).collect()
}
