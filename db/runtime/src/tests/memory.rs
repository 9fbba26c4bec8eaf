//! An invocation's memory is its own: bounded, aligned, and without a trace of another tenant's.

use std::sync::atomic::{AtomicUsize, Ordering};

use sandstorm_api::abi;

use super::*;
use crate::limits::ARENA_HOT_BYTES;
use sandstorm_accounts::limits::{ARENA_CHUNK_BYTES, MEMORY_UNIT_BYTES};
use sandstorm_extension::limits::ARENA_BYTES;

/// Fills as much of the arena as the arguments say and takes it from the allocator.
unsafe extern "C" fn scribbles(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation with eight bytes of arguments; the arena is its own.
    unsafe {
        let len = (*invocation).args.cast::<usize>().read_unaligned();
        if ((*(*invocation).host).grow)(invocation, len) != abi::STATUS_OK {
            return abi::POLL_FAILED;
        }
        let arena = &mut (*invocation).arena;
        arena.next.write_bytes(0xaa, len);
        arena.next = arena.next.add(len);
    }
    abi::POLL_DONE
}

/// Counts the bytes of the whole arena that are not zero, without the arguments.
unsafe extern "C" fn searches(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation; its arena begins at its arguments.
    unsafe {
        let (first, args) = ((*invocation).args, (*invocation).args_len);
        let len = (*invocation).arena.limit.addr() - first.addr();
        let found = std::slice::from_raw_parts(first, len)[args..].iter().filter(|byte| **byte != 0).count();
        ((*(*invocation).host).reply)(invocation, (&raw const found).cast(), 8);
    }
    abi::POLL_DONE
}

fn found(world: &mut World) -> usize {
    let (end, reply, _) = world.run(&native(searches), b"", long());
    assert_eq!(end, PollOutcome::Done);
    usize::from_le_bytes(reply.try_into().unwrap())
}

#[test]
fn nothing_of_another_tenants_invocation_is_left() {
    let mut world = World::new();
    world.engine.stop_making_invocations();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    for len in [1, 100, 4096, ARENA_HOT_BYTES - 200, ARENA_HOT_BYTES, ARENA_HOT_BYTES + 5000, (4 << 20) - 4096] {
        world.view = Arc::clone(&ada);
        assert_eq!(world.run(&native(scribbles), &len.to_le_bytes(), long()).0, PollOutcome::Done);
        while world.engine.tidy() {}
        world.view = Arc::clone(&bob);
        assert_eq!(found(&mut world), 0, "after {len} bytes");
    }
}

#[test]
fn a_new_tenant_finds_nothing_of_a_deleted_one_whose_id_it_has() {
    let mut world = World::new();
    world.engine.stop_making_invocations();
    assert_eq!(world.run(&native(scribbles), &4096_usize.to_le_bytes(), long()).0, PollOutcome::Done);
    let (directory, id) = (Arc::clone(&world.shared.directory), world.view.tenant.id);
    directory.delete_tenant(id).unwrap();
    directory.create_tenant(NewTenant { id: Some(id), ..NewTenant::named("eve") }).unwrap();
    world.view = world.shared.view("eve");
    assert_eq!(found(&mut world), 0);
}

#[test]
fn a_tenant_gets_its_own_memory_again_where_it_can() {
    let mut world = World::new();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    let both = [&ada, &bob].map(|view| {
        world.view = Arc::clone(view);
        let mut invocation = world.begin(&native(scribbles), &64_usize.to_le_bytes(), long());
        assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
        invocation
    });
    both.into_iter().for_each(|invocation| world.engine.finish(&world.participant, invocation));
    for view in [ada, bob] {
        world.view = view;
        assert!(found(&mut world) >= 64, "its own bytes, which cost nothing to keep");
    }
}

#[test]
fn megabytes_that_did_not_go_back_yet_wait_for_their_tenants_next_call_and_for_nobody_elses() {
    let mut world = World::new();
    world.engine.stop_making_invocations();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    let len = (4_usize << 20) - 4096;
    world.view = Arc::clone(&ada);
    assert_eq!(world.run(&native(scribbles), &len.to_le_bytes(), long()).0, PollOutcome::Done);
    assert!(found(&mut world) >= len - 4096, "its own, without the wait for the kernel to take megabytes back");
    assert_eq!(world.run(&native(scribbles), &64_usize.to_le_bytes(), long()).0, PollOutcome::Done);
    world.view = Arc::clone(&bob);
    assert_eq!(found(&mut world), 0, "not while some of it is left");
    while world.engine.tidy() {}
    assert_eq!(found(&mut world), 0, "nor afterwards: what the longest call used went back, not what the last one did");
}

static SLOT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn tells_slot(slot: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    SLOT.store(slot.addr(), Ordering::Relaxed);
    abi::POLL_DONE
}

#[test]
fn futures_lie_where_their_alignment_says() {
    let mut world = World::new();
    for align in [1, 2, 8, 16, 64, 512, 4096] {
        for args in [0, 1, 15, 16, 17, 4095, 5000] {
            let extension = native_with(tells_slot, tells_slot, 100, align);
            assert_eq!(world.run(&extension, &vec![1; args], long()).0, PollOutcome::Done);
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
        let begun = world.engine.begin(&world.view, extension, &vec![0; args], small);
        assert!(matches!(begun, Err(BeginError::TooLarge { quota: 4096, .. })), "{begun:?}");
    }
    assert_eq!(format!("{:?}", world.shared.epochs.stats()), pins, "nothing stays pinned");
    assert_eq!(world.run(&fitting, &[0; 4000], small).0, PollOutcome::Done);
    // A quota above the usual one gets an arena of its own.
    let large = Budget { memory_bytes: 16 << 20, ..long() };
    assert_eq!(world.run(&native(scribbles), &(15_usize << 20).to_le_bytes(), large).0, PollOutcome::Done);
    assert_eq!(fitting.stats.read().live(), 0);
}

/// Makes requests that no honest library makes; replies with the statuses.
unsafe extern "C" fn asks_wildly(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
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
    assert_eq!(end, PollOutcome::Done);
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

unsafe extern "C" fn replies_for_ever(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation.
    unsafe {
        let host = &*(*invocation).host;
        while (host.reply)(invocation, [5_u8; 1000].as_ptr(), 1000) == abi::STATUS_OK {}
        let text = "\u{e4}".repeat(2000);
        // However long it is said to be, the host only looks at the part that it keeps.
        (host.fail)(invocation, 42, text.as_ptr(), usize::MAX);
    }
    abi::POLL_FAILED
}

unsafe extern "C" fn aborts_at_length(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let text = [b'x'; 2000];
    // SAFETY: a live invocation.
    unsafe { ((*(*invocation).host).abort)(invocation, abi::ABORT_PANIC, text.as_ptr(), usize::MAX) }
}

#[test]
fn replies_and_texts_are_bounded() {
    let mut world = World::new();
    let (end, reply, text) = world.run(&native(replies_for_ever), b"", Budget { reply_bytes: 10_500, ..long() });
    assert_eq!(end, PollOutcome::Failed { code: 42 });
    assert_eq!(reply, b"", "an error drops the reply");
    assert_eq!(text, "\u{e4}".repeat(512));
    let (end, _, text) = world.run(&native(aborts_at_length), b"", long());
    assert_eq!((end, text), (PollOutcome::Killed(KillCause::Panic), "x".repeat(1024)));
}

/// Returns whether the allocator's free lists are empty; leaves a block on one.
unsafe extern "C" fn frees(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let layout = std::alloc::Layout::new::<[u64; 4]>();
    // SAFETY: a live invocation, whose arena is this call's alone; the block is its own.
    unsafe {
        if (*invocation).arena.free.iter().any(|head| !head.is_null()) {
            return abi::POLL_FAILED;
        }
        let arena = &raw mut (*invocation).arena;
        let block = sandstorm_api::rt::allocate(arena, layout);
        sandstorm_api::rt::release(arena, block, layout);
    }
    abi::POLL_DONE
}

#[test]
fn each_invocation_begins_with_empty_free_lists() {
    let mut world = World::new();
    for extension in [native(frees), native(tells_slot), native(frees), native(frees)] {
        assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done);
    }
}

#[test]
fn idle_memory_holds_what_it_had_until_the_directory_changes() {
    let mut world = World::new();
    let extension = native(tells_slot);
    world.run(&extension, b"", long());
    assert_eq!(Arc::strong_count(&extension), 1, "an engine that was not told of a directory keeps nothing");
    world.engine.sees(1);
    for _ in 0..10 {
        world.run(&extension, b"", long());
        assert_eq!(Arc::strong_count(&extension), 2, "kept once");
    }
    let views = Arc::strong_count(&world.view);
    let other = native(tells_slot);
    world.run(&other, b"", long());
    assert_eq!((Arc::strong_count(&extension), Arc::strong_count(&other)), (1, 2), "another takes its place");
    assert_eq!(Arc::strong_count(&world.view), views);
    let pending = world.begin(&extension, b"", long());
    world.engine.sees(2);
    assert_eq!(Arc::strong_count(&other), 1);
    assert_eq!(Arc::strong_count(&extension), 2, "what is under way is held");
    world.engine.finish(&world.participant, pending);
    assert_eq!(Arc::strong_count(&extension), 1, "what began before the change is not kept after it");
    assert_eq!(Arc::strong_count(&world.view), views - 1);
}

#[test]
fn nothing_is_lost_in_the_counters_of_many_workers() {
    let shared = SharedWorld::new();
    let extension = native(tells_slot);
    std::thread::scope(|scope| {
        for worker in 0..20 {
            let (shared, extension) = (Arc::clone(&shared), Arc::clone(&extension));
            scope.spawn(move || {
                let mut world = World::on(shared, worker);
                (0..200).for_each(|_| assert_eq!(world.run(&extension, b"", long()).0, PollOutcome::Done));
            });
        }
    });
    let counts = extension.stats.read();
    assert_eq!((counts.invocations, counts.ok, counts.live()), (4000, 4000, 0));
}

/// Grows its arena by steps as long as it may, and by amounts that no invocation may have in between; replies with the
/// sizes that it got.
unsafe extern "C" fn grows(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation, whose arena is this call's alone.
    unsafe {
        let host = &*(*invocation).host;
        let start = (*invocation).arena.next;
        let wild = [usize::MAX, usize::MAX / 2, 1 << 40].map(|bytes| (host.grow)(invocation, bytes));
        if wild != [abi::STATUS_OUT_OF_MEMORY; 3] || (host.grow)(invocation, 0) != abi::STATUS_OK {
            return abi::POLL_FAILED;
        }
        while (host.grow)(invocation, 10_000) == abi::STATUS_OK {
            (*invocation).arena.next.write_bytes(0xaa, 10_000);
            (*invocation).arena.next = (*invocation).arena.next.add(10_000);
        }
        let arena = &(*invocation).arena;
        let answer = [arena.next.addr() - start.addr(), arena.limit.addr() - arena.end.addr()];
        (host.reply)(invocation, answer.as_ptr().cast(), 16);
    }
    abi::POLL_PENDING
}

#[test]
fn arenas_grow_up_to_their_own_quota_and_the_tenants_and_all_is_given_back() {
    let mut world = World::new();
    let usage = Arc::clone(&world.view.tenant.usage);
    let full = ARENA_BYTES as u64;
    let extension = native(grows);
    // What its extension counts is what its tenant is charged for.
    let of_extension = || extension.memory.units() * MEMORY_UNIT_BYTES as u64;
    let mut one = world.begin(&extension, b"", long());
    assert_eq!(usage.invocation_memory_bytes(), 0, "what every invocation has is charged where it is counted");
    assert_eq!(world.poll(&mut one), PollOutcome::Pending);
    let answer: Vec<usize> = one.reply().chunks(8).map(|b| usize::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(answer[0] > ARENA_BYTES - 10_000 && answer[1] == 0, "{answer:?} of {full}");
    assert_eq!([usage.invocation_memory_bytes(), of_extension()], [full - ARENA_CHUNK_BYTES as u64; 2]);
    world.engine.finish(&world.participant, one);
    assert_eq!([usage.invocation_memory_bytes(), of_extension()], [0; 2]);
    // With a mebibyte for all, the first one takes it, and another with large arguments cannot even begin.
    let quotas = sandstorm_catalog::QuotaChanges { invocation_memory_bytes: Some(1 << 20), ..Default::default() };
    world.shared.directory.set_quotas("ada", &quotas).unwrap();
    world.view = world.shared.view("ada");
    let mut one = world.begin(&extension, b"", long());
    assert_eq!(world.poll(&mut one), PollOutcome::Pending);
    assert_eq!(usage.invocation_memory_bytes(), 1 << 20);
    let begun = world.engine.begin(&world.view, &extension, &[0; 100_000], long());
    assert!(matches!(begun, Err(BeginError::OverQuota)), "{begun:?}");
    assert_eq!([usage.invocation_memory_bytes(), of_extension()], [1 << 20; 2], "a refusal takes nothing");
    world.engine.finish(&world.participant, one);
    assert_eq!([usage.invocation_memory_bytes(), of_extension()], [0; 2]);
    let large = world.begin(&extension, &[0; 100_000], long());
    let arguments = [usage.invocation_memory_bytes(), of_extension()];
    assert_eq!(arguments, [ARENA_CHUNK_BYTES as u64; 2], "arguments count, by chunks");
    drop(large);
    assert_eq!([usage.invocation_memory_bytes(), of_extension()], [0; 2], "dropping gives back, too");
}

#[test]
fn a_long_reply_is_charged_and_ends_the_invocation_at_the_tenants_quota() {
    let mut world = World::new();
    let quotas = sandstorm_catalog::QuotaChanges { invocation_memory_bytes: Some(1 << 20), ..Default::default() };
    world.shared.directory.set_quotas("ada", &quotas).unwrap();
    world.view = world.shared.view("ada");
    let (end, reply, text) = world.run(&native(replies_for_ever), b"", long());
    assert_eq!((end, reply.len()), (PollOutcome::Killed(KillCause::OutOfMemory), 0));
    assert!(text.contains("reply") && text.contains("quota invocation_memory_bytes"), "{text}");
    assert_eq!(world.view.tenant.usage.invocation_memory_bytes(), 0);
}
