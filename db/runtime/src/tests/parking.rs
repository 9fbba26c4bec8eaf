//! The stack of a switched-out invocation: within its tenant's limit, and charged for as much of it as stays in memory.

use std::arch::naked_asm;

use sandstorm_api::abi;

use super::preempt::{after_switches, endless};
use super::*;
use crate::limits::{SIDE_STACK_BYTES, SUSPENDED_STACK_BYTES};

/// Bytes of the stack that [`far_down`] uses, and that [`back_up`] has used.
const DEPTH_BYTES: usize = 300 << 10;

/// Computes for ever, so far down its stack.
#[unsafe(naked)]
unsafe extern "C" fn far_down(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!("lea rsp, [rsp - {depth}]", "2:", "jmp 2b", depth = const DEPTH_BYTES)
}

/// Writes to every page down to there, comes back, and computes for ever.
#[unsafe(naked)]
unsafe extern "C" fn back_up(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!(
        "mov rax, {depth}",
        "mov rcx, rsp",
        "2:",
        "sub rcx, 4096",
        "mov byte ptr [rcx], 1",
        "sub rax, 4096",
        "ja 2b",
        "3:",
        "jmp 3b",
        depth = const DEPTH_BYTES,
    )
}

/// Returns the bytes of a parked stack that are in memory.
fn resident_bytes(invocation: &InvocationHandle) -> usize {
    // SAFETY: the test holds the invocation; the mapping lives on while the kernel writes a byte for each of its pages.
    unsafe {
        let stack = invocation.0.as_ref().parked.as_ref().unwrap().stack.mapping();
        let mut pages = vec![0_u8; stack.len().div_ceil(4096)];
        assert_eq!(libc::mincore(stack.low().cast(), stack.len(), pages.as_mut_ptr()), 0);
        pages.iter().filter(|page| **page & 1 != 0).count() * 4096
    }
}

#[test]
fn a_tenant_keeps_its_share_of_the_stacks_and_leaves_some_to_others() {
    let mut world = World::new();
    let stacks = Arc::clone(&world.shared.watchdog.shared().permits.stacks);
    stacks.set_limit(30);
    let extension = native(endless);
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    let mut kept: Vec<InvocationHandle> = (0..20).map(|_| after_switches(&mut world, &extension, 2)).collect();
    // Twice as many as are free.
    assert!(!world.engine.has_stack_for(&ada.tenant.usage) && world.engine.has_stack_for(&bob.tenant.usage));
    let (end, _, text) = world.run(&extension, b"", Budget { slice_us: 1, ..long() });
    assert_eq!(end, PollOutcome::Killed(KillCause::OutOfMemory));
    assert!(text.contains("share of the side stacks"), "{text}");
    world.view = Arc::clone(&bob);
    let others: Vec<InvocationHandle> = (0..4).map(|_| after_switches(&mut world, &extension, 2)).collect();
    assert_eq!(stacks.taken(), 24);
    for one in &mut kept {
        assert_eq!(world.poll(one), PollOutcome::Preempted, "who has a place keeps it, though fewer are free by now");
    }
    for ended in kept.into_iter().chain(others) {
        world.engine.finish(&world.participant, ended);
    }
    assert_eq!((stacks.taken(), ada.tenant.usage.invocation_memory_bytes()), (0, 0));
    assert!(world.engine.has_stack_for(&ada.tenant.usage));
    let dropped = after_switches(&mut world, &extension, 1);
    drop(world);
    drop(dropped);
    assert_eq!(stacks.taken(), 0, "as when the server stops");
}

#[test]
fn what_is_kept_is_charged_and_no_more_of_a_stack_stays_in_memory() {
    let mut world = World::new();
    let usage = Arc::clone(&world.view.tenant.usage);
    let shallow = after_switches(&mut world, &native(endless), 3);
    assert_eq!(usage.invocation_memory_bytes(), SUSPENDED_STACK_BYTES as u64, "as little as is ever charged");
    assert!(resident_bytes(&shallow) <= SUSPENDED_STACK_BYTES);
    world.engine.finish(&world.participant, shallow);
    let deep = after_switches(&mut world, &native(far_down), 3);
    let charged = usage.invocation_memory_bytes() as usize;
    assert!((DEPTH_BYTES..DEPTH_BYTES + (32 << 10)).contains(&charged), "{charged} bytes are charged");
    assert!(resident_bytes(&deep) <= charged);
    world.engine.finish(&world.participant, deep);
    // Time enough to have touched all of it.
    let budget = Budget { slice_us: 2_000, ..long() };
    let mut back = world.begin(&native(back_up), b"", budget);
    assert_eq!(world.poll(&mut back), PollOutcome::Preempted);
    assert_eq!(usage.invocation_memory_bytes(), SUSPENDED_STACK_BYTES as u64);
    assert!(resident_bytes(&back) <= SUSPENDED_STACK_BYTES, "{} bytes", resident_bytes(&back));
    world.engine.finish(&world.participant, back);
    assert_eq!(usage.invocation_memory_bytes(), 0);
    const { assert!(DEPTH_BYTES < SIDE_STACK_BYTES) };
}
