//! A tenant's turn among the tenants that wait for a build.

use super::error::ApiError;
use super::{ControlState, MAX_PUSHES, now_ms};
use sandstorm_builder::{BuildPermit, QueueRefusal};
use sandstorm_catalog::{DirectoryError, TenantView};

/// Waits for the tenant's turn. Counts as a push.
pub(super) async fn wait_for_build_permit(
    control: &ControlState,
    reached: &TenantView,
    name: &str,
) -> Result<BuildPermit, ApiError> {
    let most = reached.tenant.quotas.waiting_pushes;
    let refused = |refusal| match refusal {
        QueueRefusal::TenantFull => {
            let tenant = reached.tenant.name.clone();
            DirectoryError::OverQuota { tenant, quota: "waiting_pushes", limit: most.into() }.into()
        }
        QueueRefusal::Full => ApiError::busy(format!("{} pushes wait already", MAX_PUSHES)),
        QueueRefusal::Displaced => ApiError::busy("the push made room for a tenant that has fewer waiting"),
    };
    let place = control.queue.enter(reached.tenant.id, most).map_err(refused)?;
    control.directory.admit_push(reached.tenant.id, name, now_ms())?;
    place.turn().await.map_err(refused)
}
