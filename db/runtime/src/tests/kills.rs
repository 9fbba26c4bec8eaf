//! Each bad kind of code ends with its cause, and the next code on the worker runs right. Here the bad code is this
//! program's own, so that it can do what no safe Rust compiles to.

use std::arch::asm;
use std::hint::black_box;

use sandstorm_api::abi;

use super::*;

unsafe extern "C" fn good(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation, its arguments, and locals.
    unsafe {
        let host = &*(*invocation).host;
        let (mut table, mut record) = (0, abi::RawRecord::EMPTY);
        let name = "numbers";
        if (host.table_by_name)(invocation, name.as_ptr(), name.len(), &mut table) != abi::STATUS_OK {
            return 77;
        }
        let (key, len) = ((*invocation).args, (*invocation).args_len);
        if (host.get)(invocation, table, 0, key, len, &mut record) != abi::STATUS_OK {
            return 78;
        }
        (host.reply)(invocation, record.value, record.value_len);
    }
    abi::POLL_DONE
}

unsafe extern "C" fn endless(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

unsafe extern "C" fn copies(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    static FROM: [u8; 64 << 10] = [7; 64 << 10];
    let mut to = [0_u8; 64 << 10];
    loop {
        to.copy_from_slice(black_box(&FROM));
        black_box(&mut to);
    }
}

unsafe extern "C" fn host_calls(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let mut record = abi::RawRecord::EMPTY;
    loop {
        // SAFETY: a live invocation and locals.
        unsafe { ((*(*invocation).host).get)(invocation, 1, 0, b"one".as_ptr(), 3, &mut record) };
    }
}

unsafe extern "C" fn writes(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let mut version = 0;
    loop {
        // SAFETY: a live invocation and locals.
        unsafe {
            let (key, value) = (b"written".as_ptr(), [3_u8; 100]);
            ((*(*invocation).host).put)(invocation, 1, key, 7, value.as_ptr(), 100, std::ptr::null(), &mut version);
        }
    }
}

#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let here = black_box([depth; 16]);
    black_box(recurse(depth + 1)) + here[0]
}

unsafe extern "C" fn recursion(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    recurse(0) as u32
}

unsafe extern "C" fn recursion_into_host_calls(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let mut record = abi::RawRecord::EMPTY;
    // Never true, but the compiler cannot know.
    if black_box(slot.is_null()) {
        return 0;
    }
    // SAFETY: a live invocation and locals.
    unsafe {
        ((*(*invocation).host).get)(invocation, 1, 0, b"one".as_ptr(), 3, black_box(&mut record));
        black_box(recursion_into_host_calls(slot, invocation)) + record.flags
    }
}

unsafe extern "C" fn huge_frame(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    let frame = black_box([1_u8; 16 << 20]);
    u32::from(frame[black_box(5000)])
}

unsafe extern "C" fn division(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: traps; changes only the named registers.
    unsafe { asm!("xor ecx, ecx", "mov eax, 7", "cdq", "idiv ecx", out("eax") _, out("ecx") _, out("edx") _) };
    abi::POLL_DONE
}

unsafe extern "C" fn illegal(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: traps.
    unsafe { asm!("ud2") };
    abi::POLL_DONE
}

unsafe extern "C" fn breakpoint(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: traps.
    unsafe { asm!("int3") };
    abi::POLL_DONE
}

unsafe extern "C" fn wild_read(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: not mapped: faults.
    unsafe { u32::from(black_box(16 as *const u8).read_volatile()) }
}

unsafe extern "C" fn wild_jump(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: not mapped, not even an address: faults.
    unsafe { asm!("mov rax, 0x1234567812345678", "jmp rax", options(noreturn)) };
}

unsafe extern "C" fn abort_panic(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let text = "as asked";
    // SAFETY: a live invocation.
    unsafe { ((*(*invocation).host).abort)(invocation, abi::ABORT_PANIC, text.as_ptr(), text.len()) }
}

unsafe extern "C" fn abort_memory(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: a live invocation.
    unsafe { ((*(*invocation).host).abort)(invocation, abi::ABORT_OUT_OF_MEMORY, b"".as_ptr(), 0) }
}

/// Leaves flags and control words as no code may, then loops until it is ended.
unsafe extern "C" fn upset_registers(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    let control = (0x0040_u16, 0x7f80_u32);
    // SAFETY: exactly the state that the landing must undo.
    unsafe {
        asm!(
            "fld1", "fld1", "fldcw [{0}]", "ldmxcsr [{1}]", "std",
            "2:", "jmp 2b",
            in(reg) &raw const control.0, in(reg) &raw const control.1, options(noreturn)
        )
    }
}

const BAD: [(&str, GuestFunction, KillCause); 16] = [
    ("endless", endless, KillCause::TotalBudget),
    ("copies", copies, KillCause::TotalBudget),
    ("host_calls", host_calls, KillCause::TotalBudget),
    ("writes", writes, KillCause::TotalBudget),
    ("recursion", recursion, KillCause::StackOverflow),
    ("recursion_into_host_calls", recursion_into_host_calls, KillCause::StackOverflow),
    ("huge_frame", huge_frame, KillCause::StackOverflow),
    ("division", division, KillCause::DivisionByZero),
    ("illegal", illegal, KillCause::IllegalInstruction),
    ("breakpoint", breakpoint, KillCause::IllegalInstruction),
    ("wild_read", wild_read, KillCause::MemoryFault),
    ("wild_jump", wild_jump, KillCause::MemoryFault),
    ("abort_panic", abort_panic, KillCause::Panic),
    ("abort_memory", abort_memory, KillCause::OutOfMemory),
    ("upset_registers", upset_registers, KillCause::TotalBudget),
    ("endless", endless, KillCause::TotalBudget),
];

#[test]
fn bad_code_ends_with_its_cause_and_good_calls_between_are_right() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let fine = native(good);
    for round in 0..20 {
        for (name, entry, cause) in BAD {
            let bad = native(entry);
            let budget = if cause == KillCause::TotalBudget { short() } else { long() };
            let (end, reply, text) = world.run(&bad, b"", budget);
            assert_eq!(end, PollOutcome::Killed(cause), "{name} in round {round}");
            assert_eq!(reply, b"", "{name}");
            let expected = if name == "abort_panic" { "as asked" } else { kill_text(cause) };
            assert_eq!(text, expected, "{name}");
            let (end, reply, _) = world.run(&fine, b"one", long());
            assert_eq!(
                (end, reply.as_slice()),
                (PollOutcome::Done, b"first".as_slice()),
                "after {name} in round {round}"
            );
            assert_eq!(black_box(1.0_f64) / black_box(3.0), 0.333_333_333_333_333_3, "after {name}");
            assert_eq!(bad.stats.read().killed_total(), 1);
        }
    }
    let counts = fine.stats.read();
    assert_eq!((counts.invocations, counts.ok, counts.live()), (320, 320, 0));
}

#[test]
fn an_ended_invocation_answers_the_same_again_and_does_not_run() {
    let mut world = World::new();
    let bad = native(illegal);
    let mut invocation = world.begin(&bad, b"", short());
    // On a slow machine its slice may be over before its first instruction.
    let first = loop {
        match world.poll(&mut invocation) {
            PollOutcome::Preempted => {}
            end => break end,
        }
    };
    assert_eq!(first, PollOutcome::Killed(KillCause::IllegalInstruction));
    for _ in 0..2 {
        assert_eq!(world.poll(&mut invocation), first);
    }
    world.engine.finish(&world.participant, invocation);
    assert_eq!(bad.stats.read().killed_total(), 1);
}

#[test]
fn a_killed_writer_leaves_whole_records() {
    let mut world = World::new();
    let bad = native(writes);
    for _ in 0..50 {
        assert_eq!(world.run(&bad, b"", short()).0, PollOutcome::Killed(KillCause::TotalBudget));
        let table = &world.table().table;
        let guard = world.participant.guard();
        let record = table.get(&guard, table.hash(b"written"), b"written", NOW_MS).unwrap();
        assert_eq!(record.value(), [3; 100]);
    }
}

#[test]
fn engines_come_and_go_on_one_thread_and_on_many() {
    let shared = SharedWorld::new();
    let before = signal_state();
    for _ in 0..3 {
        let mut world = World::on(Arc::clone(&shared), 0);
        assert_ne!(signal_state(), before);
        assert!(Engine::new(&shared.watchdog, 1).is_err(), "one engine a thread");
        assert_eq!(world.run(&native(endless), b"", short()).0, PollOutcome::Killed(KillCause::TotalBudget));
        drop(world);
        assert_eq!(signal_state(), before, "stack and mask of signals are restored");
    }
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let shared = Arc::clone(&shared);
            scope.spawn(move || {
                let mut world = World::on(shared, worker);
                world.put(b"one", b"first");
                for _ in 0..20 {
                    assert_eq!(
                        world.run(&native(endless), b"", short()).0,
                        PollOutcome::Killed(KillCause::TotalBudget)
                    );
                    assert_eq!(
                        world.run(&native(recursion), b"", long()).0,
                        PollOutcome::Killed(KillCause::StackOverflow)
                    );
                    assert_eq!(world.run(&native(good), b"one", long()).0, PollOutcome::Done);
                }
            });
        }
    });
}

/// Returns the thread's signal stack and the signals that it blocks.
fn signal_state() -> (usize, Vec<i32>) {
    // SAFETY: both calls write to locals, for which all-zero is valid.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &raw mut stack);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        let blocked = (1..64).filter(|signal| libc::sigismember(&raw const mask, *signal) == 1).collect();
        (stack.ss_sp.addr(), blocked)
    }
}

/// A source of one function, whose types are as deep as they may be, and long.
fn deepest_source() -> String {
    const DEPTH: usize = 16;
    let mut text = "#![no_std]\nuse sandstorm_api::prelude::*;\n".to_owned();
    for at in 0..DEPTH {
        let inner = if at + 1 == DEPTH { "u8".to_owned() } else { format!("T{}", at + 1) };
        let others: String = (0..60).map(|field| format!(", pub field{field}: u64")).collect();
        text.push_str(&format!("pub struct T{at} {{ pub x: {inner}{others} }}\n"));
    }
    text + "pub async fn f(db: Db<'_>, args: T0) -> Result<(), Error> { Ok(()) }\n"
}

/// Asks for a call by wrong types with ever less of its stack left; ends early if the host call has decided on it.
unsafe extern "C" fn typed_calls_down_the_stack(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // Never true, but the compiler cannot know.
    if black_box(slot.is_null()) {
        return abi::POLL_DONE;
    }
    let (name, mut code) = (b"deep.f\0struct T { x: u8 }\n", 0);
    // SAFETY: a live invocation, its host's functions, and a name and a code that outlive the calls.
    unsafe {
        let host = &*(*invocation).host;
        let begun = (host.call_begin)(invocation, name.as_ptr(), name.len(), b"".as_ptr(), 0, b"".as_ptr(), 0);
        let ended = (host.call_end)(invocation, black_box(&mut code));
        if (begun, ended) != (abi::STATUS_OK, abi::STATUS_NOT_FOUND) {
            return abi::POLL_FAILED;
        }
        (host.call_end)(invocation, std::ptr::null_mut());
        black_box(typed_calls_down_the_stack(slot, invocation)) + code
    }
}

/// On the invocation's stack, of which little is left perhaps, a typed call is noted and nothing else.
#[test]
fn types_are_compared_on_the_workers_stack() {
    let mut world = World::new();
    let deep = native(typed_calls_down_the_stack);
    let schema = builder::schema_of(&source("deep", &deepest_source())).unwrap().unwrap();
    deep.library.set_schema(Arc::new(schema));
    let mut view = (*world.view).clone();
    view.extensions.insert("deep".into(), Arc::clone(&deep));
    world.view = Arc::new(view);
    assert_eq!(world.run(&deep, b"", long()).0, PollOutcome::Killed(KillCause::StackOverflow));
}
