//! Values that stay in the device buffers in which they were received, and the charges for these buffers.
//!
//! A buffer with a stored value is taken from its queue, and charged to the tenant that wrote the value. The charge
//! lasts until the last reference to the value is gone, which may be later than its record. Readers and unacknowledged
//! answers keep the buffer as well. A tenant may have as many as leave some for the next one; further values are
//! copied. The buffers of waiting datagrams follow the same rule.

use std::cell::Cell;
use std::sync::Arc;

use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::rx_budget::RxBufferBudget;
use sandstorm_net::shared_bytes::SharedBytes;

use super::ingress::classifier::FlowKey;
use sandstorm_accounts::TenantUsage;
use sandstorm_metrics::SingleWriterCounter;

/// Whether one more datagram of a flow with `waiting` ones may wait in its device buffer; else it is copied. Those of
/// unauthenticated senders never may; a tenant may use twice as many buffers as are free.
pub(super) fn may_wait_in_place(rx_budget: Option<&RxBufferBudget>, flow: FlowKey, waiting: usize) -> bool {
    let Some(rx_budget) = rx_budget else { return false };
    // The datagram's own buffer is counted.
    let out = rx_budget.waiting().saturating_sub(1) as usize;
    let may = flow.is_some() && DynamicThreshold::of(rx_budget.max_waiting() as usize).admits(out, waiting);
    if !may {
        rx_budget.refuse();
    }
    may
}

/// The packet of a message, still in its device buffer.
#[derive(Clone, Copy)]
pub(crate) struct ZeroCopyPacket<'w> {
    /// Its memory.
    pub(crate) packet: &'w SharedBytes,
    /// Whether a value of the message stays in it already: the buffer is charged once.
    pub(crate) has_stored_value: &'w Cell<bool>,
    /// The buffers of its queue. One thread at a time stores values there: the one that has locked the port.
    pub(crate) rx_budget: &'w Arc<RxBufferBudget>,
    /// That queue's number.
    pub(crate) port: usize,
    /// The usage of the tenant that sent it.
    pub(crate) usage: &'w Arc<TenantUsage>,
    /// Counts values that were copied because the tenant had its limit of buffers.
    pub(crate) refused: &'w SingleWriterCounter,
}

impl ZeroCopyPacket<'_> {
    /// Stores a value of the packet in its buffer, and charges the tenant for it. None if it is to be copied: it is too
    /// small for a buffer, or the tenant has its limit of them.
    pub(crate) fn share(&self, value: &[u8]) -> Option<SharedBytes> {
        if value.len() < self.rx_budget.value_bytes() || self.has_stored_value.get() {
            return None;
        }
        let value = self.packet.slice_ref(value)?;
        let charged = self.usage.rx_buffers(self.port);
        let buffers = DynamicThreshold::of(self.rx_budget.most() as usize);
        if !buffers.admits(self.rx_budget.stored() as usize, charged.get() as usize) {
            self.refused.add(1);
            return None;
        }
        self.has_stored_value.set(true);
        charged.take();
        self.rx_budget.store();
        let (usage, rx_budget) = (Arc::clone(self.usage), Arc::clone(self.rx_budget));
        Some(SharedBytes::of(Arc::new(RxBufferValue { value, port: self.port, usage, rx_budget })))
    }
}

/// A value in its packet's buffer, and the charge for it.
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
        self.usage.rx_buffers(self.port).give_back();
        self.rx_budget.let_go();
    }
}

#[cfg(test)]
mod tests;
