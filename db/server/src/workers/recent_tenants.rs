//! The tenants that have sent requests to a worker lately. While several tenants send, invocations have shorter slices.

use crate::limits::CONTENTION_WINDOW_US;

/// The two tenants that sent requests last, and when: enough to tell for each tenant when any other one last did.
#[derive(Debug, Default)]
pub(super) struct RecentTenants([Option<(u32, u64)>; 2]);

impl RecentTenants {
    /// Notes a request of a tenant.
    #[inline]
    pub(super) fn note(&mut self, tenant: u32, now_us: u64) {
        if self.0[0].is_none_or(|(last, _)| last != tenant) {
            self.0[1] = self.0[0];
        }
        self.0[0] = Some((tenant, now_us));
    }

    /// Whether two tenants have sent requests lately.
    #[inline]
    pub(super) fn is_shared(&self, now_us: u64) -> bool {
        self.0.iter().flatten().all(|(_, at_us)| now_us.saturating_sub(*at_us) < CONTENTION_WINDOW_US)
            && self.0[1].is_some()
    }

    /// Whether any other tenant has sent a request lately.
    #[inline]
    pub(super) fn beside(&self, tenant: u32, now_us: u64) -> bool {
        let other = self.0.iter().flatten().find(|(other, _)| *other != tenant);
        other.is_some_and(|(_, at_us)| now_us.saturating_sub(*at_us) < CONTENTION_WINDOW_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_beside_the_last_other_one_for_a_while() {
        let mut recent = RecentTenants::default();
        assert!(!recent.beside(1, 0));
        recent.note(1, 0);
        assert!(!recent.beside(1, 10), "alone");
        assert!(recent.beside(2, 10));
        assert!(!recent.is_shared(10));
        recent.note(2, 50);
        for at_us in 51..60 {
            recent.note(1, at_us);
        }
        assert!(recent.beside(1, 50 + CONTENTION_WINDOW_US - 1), "however often it asks itself");
        assert!(!recent.beside(1, 50 + CONTENTION_WINDOW_US));
        assert!(recent.is_shared(59) && !recent.is_shared(50 + CONTENTION_WINDOW_US));
        assert!(recent.beside(2, 50 + CONTENTION_WINDOW_US), "the other way round it was later");
        recent.note(3, 70);
        assert!(recent.beside(1, 71) && recent.beside(3, 71));
    }
}
