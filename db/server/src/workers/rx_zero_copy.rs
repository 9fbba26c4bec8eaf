//! Which values stay in the packet buffers in which they came, and whose those are.
//!
//! A buffer in which a value is stored is a place of the queue that it came from, and the tenant that wrote the value
//! holds it: not as long as the record is in its table, but until the last hold on the value is gone. Readers, and
//! answers that are not acknowledged, keep the buffer as well. A tenant may hold so many places as leave some for the
//! next; what comes beyond that is copied. Likewise of the buffers in which datagrams wait.

use std::cell::Cell;
use std::sync::Arc;

use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::shared_bytes::SharedBytes;

use super::connections::slots::dynamic_threshold_admits;
use super::ingress::classifier::FlowKey;
use sandstorm_accounts::TenantUsage;
use sandstorm_metrics::SingleWriterCounter;

/// Whether one more datagram of a flow may wait in the buffer in which it came, of which so many wait already; else a
/// copy does. Strangers' never do, and a tenant's may as long as there are half as many buffers free for those that
/// wait.
pub(super) fn may_wait_in_place(rx_budget: Option<&RxBufferBudget>, flow: FlowKey, waiting: usize) -> bool {
    let Some(rx_budget) = rx_budget else { return false };
    // It is out itself.
    let out = rx_budget.waiting().saturating_sub(1) as usize;
    let may = flow.is_some() && dynamic_threshold_admits(rx_budget.max_waiting() as usize, out, waiting);
    if !may {
        rx_budget.refuse();
    }
    may
}

/// The packet of a message, which stayed where it came.
#[derive(Clone, Copy)]
pub(crate) struct ZeroCopyPacket<'w> {
    /// Its memory.
    pub(crate) packet: &'w SharedBytes,
    /// Whether a value of the message stays in it already. It is one place, whoever counts.
    pub(crate) has_stored_value: &'w Cell<bool>,
    /// The buffers of the queue that it came from. Values are stored there by one thread at a time, which has the port.
    pub(crate) rx_budget: &'w Arc<RxBufferBudget>,
    /// That queue's number.
    pub(crate) port: usize,
    /// What the tenant that sent it uses.
    pub(crate) usage: &'w Arc<TenantUsage>,
    /// Values of the tenant that found no place.
    pub(crate) refused: &'w SingleWriterCounter,
}

impl ZeroCopyPacket<'_> {
    /// Holds a value of the packet where it is, with a place of the tenant's. None if it is to be copied: it is not
    /// worth the buffer, or the tenant has its part.
    pub(crate) fn hold(&self, value: &[u8]) -> Option<SharedBytes> {
        if value.len() < self.rx_budget.value_bytes() || self.has_stored_value.get() {
            return None;
        }
        let value = self.packet.slice_ref(value)?;
        let held = self.usage.kept(self.port);
        if !dynamic_threshold_admits(
            self.rx_budget.most() as usize,
            self.rx_budget.stored() as usize,
            held.get() as usize,
        ) {
            self.refused.add(1);
            return None;
        }
        self.has_stored_value.set(true);
        held.take();
        self.rx_budget.store();
        let (usage, rx_budget) = (Arc::clone(self.usage), Arc::clone(self.rx_budget));
        Some(SharedBytes::of(Arc::new(RxBufferValue { value, port: self.port, usage, rx_budget })))
    }
}

/// A value in its packet's buffer, and the place that this takes.
struct RxBufferValue {
    value: SharedBytes,
    port: usize,
    usage: Arc<TenantUsage>,
    rx_budget: Arc<RxBufferBudget>,
}

impl AsRef<[u8]> for RxBufferValue {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

impl Drop for RxBufferValue {
    fn drop(&mut self) {
        self.usage.kept(self.port).give_back();
        self.rx_budget.let_go();
    }
}

#[cfg(test)]
mod tests;
