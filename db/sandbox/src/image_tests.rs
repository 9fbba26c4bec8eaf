//! Tests of what an image may say of its memory: the runtime copies data there, and grants what lies before it.

use super::*;
use crate::limits::{DATA_END_MAX_BYTES, DATA_MAX_BYTES, RESTORED_MAX_BYTES, STACK_MAX_BYTES};

const STACK: u32 = STACK_MAX_BYTES as u32;
const MEMORY: u32 = 4 << 20;

/// A module of the server's builder with a constant and a variable.
fn ours() -> ModuleLayout {
    ModuleLayout {
        memory_bytes: MEMORY,
        memory_max_bytes: MEMORY,
        heap_base: STACK + 96,
        zeroed: STACK + 64..STACK + 96,
        api_fingerprint: 1,
        variables: vec![u64::from(STACK)],
        segments: vec![segment(STACK, 32, false), segment(STACK + 32, 32, true)],
        ..ModuleLayout::default()
    }
}

fn foreign() -> ModuleLayout {
    ModuleLayout { api_fingerprint: 0, zeroed: 0..0, heap_base: 0, ..ours() }
}

fn segment(address: u32, len: usize, writable: bool) -> DataSegment {
    DataSegment { address, writable, bytes: vec![7; len] }
}

fn with(mut layout: ModuleLayout, change: impl FnOnce(&mut ModuleLayout)) -> ModuleLayout {
    change(&mut layout);
    layout
}

#[test]
fn data_lies_where_the_runtime_grants_memory() {
    assert_eq!((ours().check(), foreign().check()), (Ok(()), Ok(())));
    let refused = [
        with(ours(), |of| of.heap_base = STACK + 63),
        with(ours(), |of| of.segments.push(segment(STACK + 96, 1, false))),
        with(ours(), |of| of.segments.push(segment(MEMORY - 1, 1, true))),
        with(ours(), |of| of.zeroed.end = STACK + 97),
        with(ours(), |of| of.zeroed.start = STACK + 97),
        with(ours(), |of| of.heap_base = MEMORY),
        with(ours(), |of| of.heap_base = DATA_END_MAX_BYTES as u32 + 1),
        with(ours(), |of| of.memory_bytes = (1 << 31) + 65_536),
        with(ours(), |of| of.memory_bytes = 65_535),
        with(ours(), |of| of.memory_max_bytes = 0),
        with(foreign(), |of| of.segments.push(segment(MEMORY, 1, true))),
        with(foreign(), |of| of.segments.push(segment(u32::MAX, 1, true))),
        with(foreign(), |of| of.heap_base = MEMORY + 1),
        with(foreign(), |of| of.zeroed = 0..1),
    ];
    for layout in refused {
        assert!(layout.check().is_err(), "{layout:?}");
    }
    // What the first memory has room for, of a module from elsewhere.
    assert!(with(foreign(), |of| of.segments.push(segment(MEMORY - 1, 1, true))).check().is_ok());
}

#[test]
fn data_is_no_longer_than_can_be_copied_within_a_slice() {
    let long = |len, writable| {
        with(ours(), |of| {
            of.segments = vec![segment(STACK, len, writable)];
            of.heap_base = STACK + len as u32;
            of.zeroed = of.heap_base..of.heap_base;
        })
    };
    assert!(long(DATA_MAX_BYTES, false).check().is_ok());
    assert!(long(DATA_MAX_BYTES + 1, false).check().is_err());
    assert!(long(RESTORED_MAX_BYTES, true).check().is_ok());
    assert!(long(RESTORED_MAX_BYTES + 1, true).check().is_err());
    let zeroed = |len| with(ours(), |of| (of.zeroed.end, of.heap_base) = (STACK + 64 + len, STACK + 64 + len));
    let room = RESTORED_MAX_BYTES as u32 - 32;
    assert_eq!((zeroed(room).check().is_ok(), zeroed(room + 1).check().is_ok()), (true, false));
    // Each may be as long, and the same bytes may be named many times: their sum counts.
    let many = with(foreign(), |of| of.segments = vec![segment(0, DATA_MAX_BYTES / 2, true); 3]);
    assert!(many.check().is_err());
}

#[test]
fn the_stack_is_what_lies_below_all_data() {
    assert_eq!(ours().stack_bytes(), STACK_MAX_BYTES);
    assert_eq!(foreign().stack_bytes(), 0, "the stack of a module from elsewhere may lie anywhere");
    assert_eq!(with(ours(), |of| of.variables[0] = u64::from(STACK) + 16).stack_bytes(), 0);
    assert_eq!(with(ours(), |of| of.variables[0] = u64::MAX).stack_bytes(), 0);
    assert_eq!(with(ours(), |of| of.variables.clear()).stack_bytes(), 0);
    assert_eq!(with(ours(), |of| of.segments.push(segment(64, 1, true))).stack_bytes(), 0);
    assert_eq!(with(ours(), |of| of.zeroed.start = 64).stack_bytes(), 0);
}
