//! A tenant's code policy, and the answer to callers of a tenant that may have no code.

use std::sync::Arc;

use super::suspension::Suspension;
use sandstorm_extension::CodePolicy;

/// A tenant's policy, and the text for its callers if it may have no code.
#[derive(Clone, Debug)]
pub struct TenantCode {
    policy: CodePolicy,
    refusal: Option<Arc<Suspension>>,
}

impl TenantCode {
    /// The policy of the tenant of that name.
    pub(super) fn of(policy: CodePolicy, tenant: &str) -> TenantCode {
        let refusal = match policy.tier() {
            Some(_) => None,
            None => Some(Arc::new(Suspension::by_code_policy(tenant))),
        };
        TenantCode { policy, refusal }
    }

    /// The policy.
    #[inline]
    pub fn policy(&self) -> CodePolicy {
        self.policy
    }

    /// The reason that no extension of the tenant is called; `None` if the policy allows code.
    #[inline]
    pub fn refusal(&self) -> Option<&Suspension> {
        self.refusal.as_deref()
    }
}
