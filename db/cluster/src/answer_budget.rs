//! The bytes of answers that are kept until other servers have answered the rest of their batches, of all tenants and
//! of each.

use std::collections::HashMap;

use parking_lot::Mutex;
use sandstorm_net::dynamic_threshold::DynamicThreshold;

use crate::limits::FORWARD_KEPT_BYTES;

#[derive(Debug, Default)]
struct KeptBytes {
    all: usize,
    /// By tenant; tenants without any are left out.
    of: HashMap<u32, usize>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct AnswerBudget(Mutex<KeptBytes>);

impl AnswerBudget {
    /// Takes bytes for a tenant. False: it may have no more now.
    pub(crate) fn take(&self, tenant: u32, bytes: usize) -> bool {
        let mut kept = self.0.lock();
        let own = kept.of.get(&tenant).copied().unwrap_or(0);
        let may = DynamicThreshold::of(FORWARD_KEPT_BYTES).admits_size(kept.all, own, bytes);
        if may {
            kept.add(tenant, bytes);
        }
        may
    }

    /// Takes them, whether it may have them or not.
    pub(crate) fn take_all(&self, tenant: u32, bytes: usize) {
        self.0.lock().add(tenant, bytes);
    }

    /// Gives bytes back that were taken.
    pub(crate) fn give_back(&self, tenant: u32, bytes: usize) {
        let mut kept = self.0.lock();
        kept.all -= bytes;
        if let Some(own) = kept.of.get_mut(&tenant) {
            *own -= bytes;
            if *own == 0 {
                kept.of.remove(&tenant);
            }
        }
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.0.lock().all
    }
}

impl KeptBytes {
    fn add(&mut self, tenant: u32, bytes: usize) {
        if bytes > 0 {
            self.all += bytes;
            *self.of.entry(tenant).or_default() += bytes;
        }
    }
}
