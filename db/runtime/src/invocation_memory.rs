//! The memory that an invocation's tenant is charged for: growth of its arena and its reply, and the quota check.

use std::sync::Arc;

use sandstorm_accounts::limits::{ARENA_CHUNK_BYTES, MEMORY_UNIT_BYTES};
use sandstorm_accounts::{MEMORY_TEXT, memory_units};

use super::guest_memory_pool::MemoryCharge;
use super::invocation::InvocationState;
use crate::limits::ERROR_TEXT_BYTES;

/// The text where memory is refused because of the invocation's own quota.
const ARENA_QUOTA_TEXT: &str = "quota arena_bytes: the invocation has used all the memory that it may have";

impl InvocationState {
    /// Charges the tenant for `bytes` more of the invocation's memory, rounded up to units; `false`, and nothing is
    /// charged, if the tenant's quota does not allow them. The charge is given back when the invocation ends at the
    /// latest.
    #[cold]
    pub(super) fn charge(&mut self, bytes: usize) -> bool {
        let units = memory_units(bytes);
        let charged = self.refs.as_ref().is_some_and(|refs| refs.view.tenant.charge_memory(units));
        self.over_tenant_quota = !charged;
        if charged {
            self.charged += units;
            self.note_memory(units);
        }
        charged
    }

    /// Has its extension count what it begins with beyond other invocations.
    #[inline]
    pub(super) fn note_first_memory(&mut self) {
        if self.charged > 0 {
            self.note_memory(self.charged);
        }
    }

    fn note_memory(&mut self, units: u32) {
        if let Some(refs) = &self.refs {
            refs.extension.memory.add(units);
            self.noted_units += units;
        }
    }

    /// Has its extension no longer count as many of them. A callee has some that it does not: they are those that each
    /// invocation begins with.
    fn forget_memory(&mut self, units: u32) {
        let units = units.min(self.noted_units);
        self.noted_units -= units;
        if let Some(refs) = &self.refs {
            refs.extension.memory.remove(units);
        }
    }

    /// Gives back the charge for `bytes` that the invocation has freed: as many as in one call of
    /// [`InvocationState::charge`].
    #[cold]
    pub(super) fn uncharge(&mut self, bytes: usize) {
        let units = memory_units(bytes).min(self.charged);
        self.charged -= units;
        self.forget_memory(units);
        if let Some(refs) = &self.refs {
            refs.view.tenant.uncharge_memory(units);
        }
    }

    /// Charges for the stack that the invocation takes along when it is switched out. The reason of the last memory
    /// refusal stays.
    #[cold]
    pub(super) fn charge_stack(&mut self, bytes: usize) -> bool {
        let said = self.over_tenant_quota;
        let charged = self.charge(bytes);
        self.over_tenant_quota |= said;
        charged
    }

    /// Charges for the stack in the module's memory, as far as it has grown: that stays until the invocation ends.
    #[inline]
    pub(super) fn charge_deep_stack(&mut self) -> bool {
        let deep = self.guest_memory.as_ref().map_or(0, |memory| memory.deep_stack_bytes());
        let more = deep.saturating_sub(self.deep_charged);
        if more == 0 {
            return true;
        }
        self.deep_charged = deep;
        self.charge_stack(more)
    }

    /// Hands on the charge for so many bytes of its memory, which outlive the invocation.
    pub(super) fn move_charge(&mut self, bytes: usize) -> Option<MemoryCharge> {
        let view = Arc::clone(&self.refs.as_ref()?.view);
        let units = memory_units(bytes).min(self.charged);
        self.charged -= units;
        self.forget_memory(units);
        Some(MemoryCharge::new(view, units))
    }

    /// Gives back every charge beyond that of every invocation.
    #[inline]
    pub(super) fn uncharge_all(&mut self) {
        if self.charged > 0 {
            self.uncharge(self.charged as usize * MEMORY_UNIT_BYTES);
        }
    }

    /// Moves the arena's end up until `bytes` lie between its first free byte and it; `false`, and nothing has changed,
    /// if a quota does not allow that.
    pub(super) fn grow_arena(&mut self, bytes: usize) -> bool {
        let arena = &self.abi.arena;
        let (next, end, limit) = (arena.next.addr(), arena.end.addr(), arena.limit.addr());
        self.over_tenant_quota = false;
        let Some(wanted) = next.checked_add(bytes).filter(|wanted| *wanted <= limit) else { return false };
        if wanted <= end {
            return true;
        }
        let more = (wanted - end).next_multiple_of(ARENA_CHUNK_BYTES).min(limit - end);
        if !self.charge(more) {
            return false;
        }
        self.abi.arena.end = self.abi.arena.end.wrapping_add(more);
        true
    }

    /// Makes room for a reply that is `more` bytes longer, and charges for it. `false` if the tenant's quota or the
    /// system does not allow that.
    #[inline]
    pub(super) fn grow_reply(&mut self, more: usize) -> bool {
        let len = self.reply.len() + more;
        len <= self.reply_charged || self.charge_reply(len)
    }

    /// Grows in steps that double, so that a reply put together of small pieces is moved a few times only.
    #[cold]
    fn charge_reply(&mut self, len: usize) -> bool {
        let wanted =
            len.max(self.reply_charged.saturating_mul(2).min(self.reply_limit)).next_multiple_of(MEMORY_UNIT_BYTES);
        if !self.charge(wanted - self.reply_charged) {
            return false;
        }
        self.reply_charged = wanted;
        self.reply.try_reserve_exact(wanted - self.reply.len()).is_ok()
    }

    /// Notes the memory units that the tenant is charged for.
    pub(super) fn set_charged(&mut self, units: u32) {
        self.charged = units;
    }

    /// Notes that the tenant is charged for so many memory units more.
    pub(super) fn add_charged(&mut self, units: u32) {
        self.charged += units;
    }

    /// Keeps a text for the caller, cut to its limit.
    pub(super) fn set_text(&mut self, text: &[u8]) {
        let mut len = text.len().min(ERROR_TEXT_BYTES);
        // The cut is not in the middle of a character.
        while len < text.len() && len > 0 && text[len] & 0xc0 == 0x80 {
            len -= 1;
        }
        self.text.clear();
        self.text.extend_from_slice(&text[..len]);
    }

    /// Appends to the text of a failed allocation which quota did not allow it.
    pub(super) fn append_quota_name(&mut self) {
        let quota = match (self.over_tenant_quota, self.text.is_empty()) {
            (true, _) => MEMORY_TEXT,
            (false, false) => ARENA_QUOTA_TEXT,
            (false, true) => return,
        };
        if !self.text.is_empty() {
            self.text.extend_from_slice(b"; ");
        }
        self.text.extend_from_slice(quota.as_bytes());
    }
}
