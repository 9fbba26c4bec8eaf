//! The parts of a module's memory that an invocation is granted from the start.

use sandstorm_sandbox::ModuleLayout;
use sandstorm_sandbox::layout::PAGE_BYTES;

use crate::limits::{GUEST_FIRST_BYTES, GUEST_SHADOW_STACK_HOT_BYTES};

/// Where the part of a module's stack begins that an idle memory may keep.
pub(super) fn stack_high(layout: &ModuleLayout) -> usize {
    layout.stack_bytes().saturating_sub(GUEST_SHADOW_STACK_HOT_BYTES) / PAGE_BYTES * PAGE_BYTES
}

/// Where the part of a module's stack begins that is granted at first.
pub(super) fn first_of_stack(layout: &ModuleLayout) -> usize {
    layout.stack_bytes().saturating_sub(GUEST_FIRST_BYTES) / PAGE_BYTES * PAGE_BYTES
}

/// Bytes of a module's memory that are granted at first: its data.
pub(super) fn first_len(layout: &ModuleLayout) -> usize {
    let segments = layout.segments.iter().map(|segment| segment.address as usize + segment.bytes.len()).max();
    let heap = if layout.is_ours() { layout.heap_base as usize } else { 0 };
    segments.unwrap_or(0).max(layout.zeroed.end as usize).max(heap).next_multiple_of(PAGE_BYTES)
}
