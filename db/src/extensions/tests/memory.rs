//! An invocation's memory is its own: bounded, aligned, and without a trace of another tenant's.

use std::sync::atomic::{AtomicUsize, Ordering};

use sandstorm_api::abi;

use super::*;
use crate::limits::ARENA_HOT_BYTES;

/// Fills as much of the arena as the arguments say and takes it from the allocator.
unsafe extern "C" fn scribbles(_: *mut u8, invocation: *mut abi::Invocation) -> u32 {
    // SAFETY: a live invocation with eight bytes of arguments; the arena is its own.
    unsafe {
        let len = (*invocation).args.cast::<usize>().read_unaligned();
        let arena = &mut (*invocation).arena;
        arena.next.write_bytes(0xaa, len);
        arena.next = arena.next.add(len);
    }
    abi::POLL_DONE
}

/// Counts the bytes of the whole arena that are not zero, without the arguments.
unsafe extern "C" fn searches(_: *mut u8, invocation: *mut abi::Invocation) -> u32 {
    // SAFETY: a live invocation; its arena begins at its arguments.
    unsafe {
        let (first, args) = ((*invocation).args, (*invocation).args_len);
        let len = (*invocation).arena.end.addr() - first.addr();
        let found = std::slice::from_raw_parts(first, len)[args..].iter().filter(|byte| **byte != 0).count();
        ((*(*invocation).host).reply)(invocation, (&raw const found).cast(), 8);
    }
    abi::POLL_DONE
}

fn found(world: &mut World) -> usize {
    let (end, reply, _) = world.run(&native(searches), b"", long());
    assert_eq!(end, Polled::Done);
    usize::from_le_bytes(reply.try_into().unwrap())
}

#[test]
fn nothing_of_another_tenants_invocation_is_left() {
    let mut world = World::new();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    for len in [1, 100, 4096, ARENA_HOT_BYTES - 200, ARENA_HOT_BYTES, ARENA_HOT_BYTES + 5000, (4 << 20) - 4096] {
        world.view = Arc::clone(&ada);
        world.run(&native(scribbles), &len.to_le_bytes(), long());
        world.view = Arc::clone(&bob);
        assert_eq!(found(&mut world), 0, "after {len} bytes");
    }
}

#[test]
fn a_tenant_gets_its_own_memory_again_where_it_can() {
    let mut world = World::new();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    let both = [&ada, &bob].map(|view| {
        world.view = Arc::clone(view);
        let mut invocation = world.begin(&native(scribbles), &64_usize.to_le_bytes(), long());
        assert_eq!(world.poll(&mut invocation), Polled::Done);
        invocation
    });
    both.into_iter().for_each(|invocation| world.engine.finish(&world.participant, invocation));
    for view in [ada, bob] {
        world.view = view;
        assert!(found(&mut world) >= 64, "its own bytes, which cost nothing to keep");
    }
}

static SLOT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn tells_slot(slot: *mut u8, _: *mut abi::Invocation) -> u32 {
    SLOT.store(slot.addr(), Ordering::Relaxed);
    abi::POLL_DONE
}

#[test]
fn futures_lie_where_their_alignment_says() {
    let mut world = World::new();
    for align in [1, 2, 8, 16, 64, 512, 4096] {
        for args in [0, 1, 15, 16, 17, 4095, 5000] {
            let extension = native_with(tells_slot, tells_slot, 100, align);
            assert_eq!(world.run(&extension, &vec![1; args], long()).0, Polled::Done);
            assert_eq!(SLOT.load(Ordering::Relaxed) % align, 0);
        }
    }
}

#[test]
fn what_does_not_fit_does_not_begin() {
    let mut world = World::new();
    let pins = format!("{:?}", world.shared.epochs.stats());
    let small = Budget { memory_bytes: 4096, ..long() };
    let big_future = native_with(tells_slot, tells_slot, 4097, 16);
    let fitting = native_with(tells_slot, tells_slot, 64, 16);
    for (extension, args) in [(&big_future, 0), (&fitting, 4097), (&fitting, 4096), (&fitting, 1 << 20)] {
        let (view, extension) = (Arc::clone(&world.view), Arc::clone(extension));
        let begun = world.engine.begin(&world.participant, view, extension, &vec![0; args], small);
        assert!(matches!(begun, Err(BeginError::TooLarge { quota: 4096, .. })), "{begun:?}");
    }
    assert_eq!(format!("{:?}", world.shared.epochs.stats()), pins, "nothing stays pinned");
    assert_eq!(world.run(&fitting, &[0; 4000], small).0, Polled::Done);
    // A quota above the usual one gets an arena of its own.
    let large = Budget { memory_bytes: 16 << 20, ..long() };
    assert_eq!(world.run(&native(scribbles), &(15_usize << 20).to_le_bytes(), large).0, Polled::Done);
    assert_eq!(fitting.stats.read().live(), 0);
}

/// Asks for what no honest library asks for; replies with the statuses.
unsafe extern "C" fn asks_wildly(_: *mut u8, invocation: *mut abi::Invocation) -> u32 {
    let (one, none, many) = ([1_u8].as_ptr(), std::ptr::null(), usize::MAX);
    let mut record = [abi::RawRecord::EMPTY; 300];
    let (mut number, mut sum, mut filled) = (0, 0, 0);
    let mut cursor = abi::RawCursor::default();
    let how = abi::RawWrite { condition: 9, flags: 0, version: 0, ttl_ms: 0 };
    // SAFETY: a live invocation and locals; the host must not look at more than the lengths that it allows.
    let statuses = unsafe {
        let host = &*(*invocation).host;
        [
            (host.get)(invocation, 1, 0, one, many, &mut record[0]),
            (host.get)(invocation, 1, 0, none, 1, &mut record[0]),
            (host.get)(invocation, 99, 0, one, 1, &mut record[0]),
            (host.put)(invocation, 1, one, 1, one, many, std::ptr::null(), &mut number),
            (host.put)(invocation, 1, one, 1, one, 1, &how, &mut number),
            (host.delete)(invocation, 1, one, 70_000, std::ptr::null()),
            (host.increment)(invocation, 2, one, 1, 1, &mut sum),
            (host.prefetch)(invocation, 1, one, many, &mut number),
            (host.prefetch_record)(invocation, 7, 5),
            (host.table_by_name)(invocation, one, 1, &mut number),
            (host.scan)(invocation, 1, &mut cursor, record.as_mut_ptr(), many, &mut filled),
            (host.reply)(invocation, one, many),
            filled as u32,
        ]
    };
    // SAFETY: as above.
    unsafe { ((*(*invocation).host).reply)(invocation, statuses.as_ptr().cast(), size_of_val(&statuses)) };
    abi::POLL_DONE
}

#[test]
fn wild_requests_get_a_status_each() {
    let mut world = World::new();
    for number in 0..1000_u32 {
        world.put(&number.to_le_bytes(), b"value");
    }
    let (end, reply, _) = world.run(&native(asks_wildly), b"", long());
    assert_eq!(end, Polled::Done);
    let statuses: Vec<u32> = reply.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let filled = statuses[12];
    assert!((1..=256).contains(&filled), "a scan call is bounded: {filled}");
    let expected = [
        abi::STATUS_TOO_LARGE,
        abi::STATUS_INVALID,
        abi::STATUS_UNKNOWN_TABLE,
        abi::STATUS_TOO_LARGE,
        abi::STATUS_INVALID,
        abi::STATUS_TOO_LARGE,
        abi::STATUS_UNKNOWN_TABLE,
        abi::STATUS_TOO_LARGE,
        abi::STATUS_UNKNOWN_TABLE,
        abi::STATUS_NOT_FOUND,
        abi::STATUS_OK,
        abi::STATUS_TOO_LARGE,
    ];
    assert_eq!(statuses[..12], expected);
}

unsafe extern "C" fn replies_for_ever(_: *mut u8, invocation: *mut abi::Invocation) -> u32 {
    // SAFETY: a live invocation.
    unsafe {
        let host = &*(*invocation).host;
        while (host.reply)(invocation, [5_u8; 1000].as_ptr(), 1000) == abi::STATUS_OK {}
        let text = "\u{e4}".repeat(2000);
        (host.fail)(invocation, 42, text.as_ptr(), text.len());
    }
    abi::POLL_FAILED
}

#[test]
fn replies_and_texts_are_bounded() {
    let mut world = World::new();
    let (end, reply, text) = world.run(&native(replies_for_ever), b"", Budget { reply_bytes: 10_500, ..long() });
    assert_eq!(end, Polled::Failed { code: 42 });
    assert_eq!(reply, b"", "an error drops the reply");
    assert_eq!(text, "\u{e4}".repeat(512));
}
