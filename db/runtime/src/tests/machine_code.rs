//! Machine code that passes the verifier and that no compiler would make: what it finds in registers and on its stack.

use std::arch::{asm, global_asm};
use std::cell::{Cell, RefCell};

use sandstorm_api::abi;
use sandstorm_sandbox::layout::{PAGE_BYTES, WASM_PAGE_BYTES};
use sandstorm_sandbox::{HostFunction, ModuleLayout, SandboxImage};

use super::*;
use crate::limits::NEWCOMERS_STACKS;

/// The bytes between two labels of the assembly in a test.
macro_rules! code_between {
    ($first:ident, $end:ident) => {{
        unsafe extern "C" {
            static $first: u8;
            static $end: u8;
        }
        let (first, end) = (&raw const $first, &raw const $end);
        // SAFETY: the code of this program between two of its labels.
        unsafe { std::slice::from_raw_parts(first, end.addr() - first.addr()) }
    }};
}

/// A module from elsewhere with a page of memory.
pub(super) fn one_page() -> ModuleLayout {
    let page = WASM_PAGE_BYTES as u32;
    ModuleLayout { memory_bytes: page, memory_max_bytes: page, ..ModuleLayout::default() }
}

/// An image of code that begins with `sandstorm_start`; `sandstorm_poll` begins at an offset of it.
pub(super) fn image(layout: ModuleLayout, code: &[u8], poll: u32) -> SandboxImage {
    let (code_at, code) = (PAGE_BYTES as u32, code.to_vec());
    SandboxImage { layout, constants_at: 0, constants: Vec::new(), code_at, code, start: 0, poll }
}

/// Loads an image, as the server does.
pub(super) fn load(image: &SandboxImage) -> Result<Arc<LoadedExtension>, LoadError> {
    let library = ExtensionLibrary::load_sandboxed(&image.encode(), builder::api_fingerprint())?;
    Ok(Arc::new(LoadedExtension::new("machine-code", 1, library, BudgetOverride::default())))
}

// Replies with its registers: at its start, and behind a call of the host.
global_asm!(
    ".p2align 4",
    "sandstorm_test_registers_begin:",
    ".irp at,8,392",
    "mov gs:[-3584], rax",
    "mov gs:[-3576], rcx",
    "mov eax, \\at",
    "mov gs:[eax + 16], rdx",
    "mov gs:[eax + 24], rbx",
    "mov gs:[eax + 40], rbp",
    "mov gs:[eax + 48], rsi",
    "mov gs:[eax + 56], rdi",
    "mov gs:[eax + 64], r8",
    "mov gs:[eax + 72], r9",
    "mov gs:[eax + 80], r10",
    "mov gs:[eax + 88], r11",
    "mov gs:[eax + 96], r12",
    "mov gs:[eax + 104], r13",
    "mov gs:[eax + 112], r14",
    "mov gs:[eax + 120], r15",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movups gs:[eax + 128 + 16 * \\i], xmm\\i",
    ".endr",
    "mov rcx, gs:[-3584]",
    "mov gs:[eax], rcx",
    "mov rcx, gs:[-3576]",
    "mov gs:[eax + 8], rcx",
    "call gs:[{now_ms}]",
    ".endr",
    "mov edi, 8",
    "mov esi, 768",
    "call gs:[{reply}]",
    "mov eax, {done}",
    "ret",
    "sandstorm_test_registers_end:",
    now_ms = const HostFunction::NowMs.address_at(),
    reply = const HostFunction::Reply.address_at(),
    done = const abi::POLL_DONE,
);

#[test]
fn no_register_tells_sandboxed_code_of_the_host() {
    let code = code_between!(sandstorm_test_registers_begin, sandstorm_test_registers_end);
    let extension = load(&image(one_page(), code, 0)).unwrap();
    let mut world = World::new();
    for _ in 0..3 {
        leave_canaries_in_registers();
        let (end, reply, text) = world.run(&extension, b"", long());
        free_registers();
        assert_eq!(end, PollOutcome::Done, "{text}");
        let words: Vec<u64> = reply.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let (first, second) = words.split_at(48);
        let others = |words: &[u64], known: &[usize]| {
            words.iter().enumerate().filter(|(at, word)| **word != 0 && !known.contains(at)).count()
        };
        // Its parameters, in rsi and rdi, are addresses of its memory; everything else is zero.
        assert_eq!((first[6] >> 32, first[7] >> 32), (0, 0), "{first:x?}");
        assert_eq!(others(first, &[6, 7]), 0, "at the start: {first:x?}");
        // Behind a call of the host there is its answer, in rax.
        assert_eq!((second[0], others(second, &[0])), (NOW_MS, 0), "after a call: {second:x?}");
    }
}

/// Puts bytes into registers that sandboxed code cannot name, as the host's copies of records do.
fn leave_canaries_in_registers() {
    let canary = CANARY;
    // SAFETY: registers that no Rust code uses; x87's are made free again by `free_registers`.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7",
            "movq mm\\i, {canary}",
            ".endr",
            canary = in(reg) canary,
            options(nomem, nostack, preserves_flags),
        );
        if std::arch::is_x86_feature_detected!("avx512f") {
            asm!(
                ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpbroadcastq zmm\\i, {canary}",
                ".endr",
                canary = in(reg) canary,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}

/// The bytes that stand for another tenant's.
const CANARY: u64 = 0x5ec2_e7c0_ffee_d00d;

/// Leaves bytes on its stack, as the host's functions do that native code calls.
unsafe extern "C" fn leave_canaries_on_the_stack(_slot: *mut u8, _invocation: *mut abi::InvocationHeader) -> u32 {
    std::hint::black_box([CANARY; 256]);
    abi::POLL_DONE
}

/// Makes the registers of x87 free again.
fn free_registers() {
    // SAFETY: no Rust code uses them.
    unsafe { asm!("emms", options(nomem, nostack, preserves_flags)) };
}

// Looks, again and again, through the part of its stack that is not its own yet, for words in the ranges that its
// arguments name, as (first, length) pairs; replies with those that it has found. Between two looks it computes, and
// calls the host, so that it is switched out at all kinds of instructions.
global_asm!(
    ".p2align 4",
    "sandstorm_test_stack_begin:",
    "push rbx",
    "push rbp",
    "push r12",
    "call gs:[{args_len}]",
    "mov ebp, eax",
    "mov edi, 16",
    "call gs:[{args_copy}]",
    // Words found so far: bytes, from 32 KiB on.
    "xor r12d, r12d",
    "mov ebx, 30000",
    "2:",
    "mov ecx, 2000",
    "3:",
    "dec ecx",
    "jnz 3b",
    ".rept 8",
    "call gs:[{now_ms}]",
    ".endr",
    "call 5f",
    "dec ebx",
    "jnz 2b",
    "mov edi, 32768",
    "mov esi, r12d",
    "call gs:[{reply}]",
    "mov eax, {done}",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    // Looks at all words of a large frame that it has written nothing to.
    "5:",
    "sub rsp, 4096",
    ".rept 512",
    "mov rax, [rsp + 8 * \\+]",
    "test rax, rax",
    "jz 6f",
    "call 7f",
    "6:",
    ".endr",
    "add rsp, 4096",
    "ret",
    // Looks a word up in the ranges.
    "7:",
    "xor ecx, ecx",
    "8:",
    "cmp ecx, ebp",
    "jae 9f",
    "mov rdx, rax",
    "sub rdx, gs:[ecx + 16]",
    "cmp rdx, gs:[ecx + 24]",
    "lea ecx, [rcx + 16]",
    "jae 8b",
    "cmp r12d, 16384",
    "jae 9f",
    "mov gs:[r12d + 32768], rax",
    "add r12d, 8",
    "9:",
    "ret",
    "sandstorm_test_stack_end:",
    args_len = const HostFunction::ArgsLen.address_at(),
    args_copy = const HostFunction::ArgsCopy.address_at(),
    now_ms = const HostFunction::NowMs.address_at(),
    reply = const HostFunction::Reply.address_at(),
    done = const abi::POLL_DONE,
);

/// Where this process has memory, but for a module's code.
fn mapped_ranges(extension: &LoadedExtension) -> Vec<(u64, u64)> {
    let module = extension.library.module().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (first, rest) = line.split_once('-')?;
        let end = rest.split_once(' ')?.0;
        Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (first, end) in maps.lines().filter_map(range) {
        match ranges.last_mut() {
            _ if module.has_code_at(first as usize) => {}
            Some((begin, len)) if *begin + *len == first => *len += end - first,
            _ => ranges.push((first, end - first)),
        }
    }
    ranges
}

#[test]
fn the_host_leaves_nothing_on_the_stack_of_sandboxed_code() {
    let code = code_between!(sandstorm_test_stack_begin, sandstorm_test_stack_end);
    let extension = load(&image(one_page(), code, 0)).unwrap();
    let mut world = World::new();
    let budget = Budget { slice_us: 20, total_us: 30_000_000, ..Budget::default() };
    // Its memory and its stacks are there from now on, and native code of its tenant has run here.
    world.run(&extension, b"", Budget { total_us: 1_000, ..budget });
    assert_eq!(world.run(&native(leave_canaries_on_the_stack), b"", long()).0, PollOutcome::Done);
    let mut ranges = mapped_ranges(&extension);
    assert!((4..1_000).contains(&ranges.len()), "{ranges:x?}");
    ranges.push((CANARY, 1));
    let args: Vec<u8> = ranges.iter().flat_map(|(first, len)| [*first, *len]).flat_map(u64::to_le_bytes).collect();
    let mut invocation = world.begin(&extension, &args, budget);
    let mut switches = 0;
    let end = loop {
        leave_canaries_in_registers();
        let polled = world.poll(&mut invocation);
        free_registers();
        switch_count(&mut switches, polled);
        if !matches!(polled, PollOutcome::Preempted) {
            break polled;
        }
    };
    let found: Vec<u64> =
        invocation.reply().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let text = String::from_utf8_lossy(invocation.text()).into_owned();
    world.engine.finish(&world.participant, invocation);
    assert_eq!(end, PollOutcome::Done, "{text}");
    assert!(switches > 20, "it was hardly ever switched out: {switches}");
    assert!(found.is_empty(), "after {switches} switches: {found:x?}");
}

fn switch_count(switches: &mut usize, polled: PollOutcome) {
    *switches += usize::from(polled == PollOutcome::Preempted);
}

// Fills its stack with words, or counts those that it finds there, a frame of 1,000 bytes after the other; calls the
// host in each. Its arguments: the number of frames, and whether it writes.
global_asm!(
    ".p2align 4",
    "sandstorm_test_deep_begin:",
    "push rbx",
    "push rbp",
    "push r12",
    "mov edi, 16",
    "call gs:[{args_copy}]",
    "mov ecx, 16",
    "mov ebx, gs:[ecx]",
    "mov ebp, gs:[ecx + 4]",
    "xor r12d, r12d",
    "call 2f",
    "mov edi, 32768",
    "mov gs:[edi], r12",
    "mov esi, 8",
    "call gs:[{reply}]",
    "mov eax, {done}",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    "2:",
    "sub rsp, 1000",
    "movabs rdx, {canary}",
    "test ebp, ebp",
    "jnz 4f",
    ".rept 125",
    "cmp rdx, [rsp + 8 * \\+]",
    "jne 3f",
    "inc r12d",
    "3:",
    ".endr",
    "jmp 5f",
    "4:",
    ".rept 125",
    "mov [rsp + 8 * \\+], rdx",
    ".endr",
    // Parameters are pushed on its stack.
    "5:",
    "xor edx, edx",
    "call gs:[{now_ms}]",
    "dec ebx",
    "jz 6f",
    "call 2b",
    "6:",
    "add rsp, 1000",
    "ret",
    "sandstorm_test_deep_end:",
    args_copy = const HostFunction::ArgsCopy.address_at(),
    now_ms = const HostFunction::NowMs.address_at(),
    reply = const HostFunction::Reply.address_at(),
    done = const abi::POLL_DONE,
    canary = const CANARY,
);

#[test]
fn no_stack_of_sandboxed_code_tells_one_tenant_what_another_had_on_it() {
    /// As many as its calls have room for.
    const DEEPEST: u32 = 900;
    let code = code_between!(sandstorm_test_deep_begin, sandstorm_test_deep_end);
    let extension = load(&image(one_page(), code, 0)).unwrap();
    for can_make_more in [true, false] {
        let mut world = World::new();
        let [ada, bob] = ["ada", "bob"].map(|name| world.shared.view(name));
        if !can_make_more {
            world.engine.stop_making_stacks();
        }
        let mut run = |view: &Arc<TenantView>, frames: u32, writes: bool| {
            world.view = Arc::clone(view);
            let args = [frames.to_le_bytes(), u32::from(writes).to_le_bytes()].concat();
            let (end, reply, text) = world.run(&extension, &args, long());
            assert_eq!(end, PollOutcome::Done, "{frames} frames: {text}");
            u64::from_le_bytes(reply.try_into().unwrap())
        };
        // Within what is accessible at first, at each place around its end, and far below it.
        for frames in (1..20).chain([60, 200, DEEPEST, 3, 9]) {
            run(&ada, frames, true);
            assert!(run(&ada, frames, false) >= u64::from(frames) * 100, "it sees its own");
            assert_eq!(run(&bob, DEEPEST, false), 0, "after {frames} frames");
            if !can_make_more {
                // There is one stack, which goes to and fro.
                run(&bob, frames, true);
                assert_eq!(run(&ada, DEEPEST, false), 0, "after {frames} frames");
            }
        }
    }
}

#[test]
fn no_sandboxed_stack_that_is_handed_on_in_a_crowd_tells_one_tenant_what_another_had_on_it() {
    /// Frames that lie within what is accessible at first, and far beyond it.
    const FRAMES: [u32; 2] = [4, 60];
    let code = code_between!(sandstorm_test_deep_begin, sandstorm_test_deep_end);
    let extension = load(&image(one_page(), code, 0)).unwrap();
    let mut world = World::new();
    world.engine.keep_no_more_stacks_than(NEWCOMERS_STACKS + 8);
    for (number, view) in world.crowd(4 * NEWCOMERS_STACKS).into_iter().enumerate() {
        world.view = view;
        let mut run = |frames: u32, writes: bool| {
            let args = [frames.to_le_bytes(), u32::from(writes).to_le_bytes()].concat();
            let (end, reply, text) = world.run(&extension, &args, long());
            assert_eq!(end, PollOutcome::Done, "{frames} frames: {text}");
            u64::from_le_bytes(reply.try_into().unwrap())
        };
        // Some look far below, which opens their stacks; the others' stay closed.
        let frames = FRAMES[number / 3 % 2];
        assert_eq!(run(frames, false), 0, "tenant {number}");
        run(frames, true);
        assert!(run(frames, false) >= u64::from(frames) * 100, "it sees its own");
    }
}

// Answers that its transaction has met a conflict, whatever it has met.
global_asm!(
    "sandstorm_test_again_begin:",
    "mov eax, {again}",
    "ret",
    "sandstorm_test_again_end:",
    again = const abi::POLL_AGAIN,
);

#[test]
fn only_a_conflict_begins_an_invocation_anew() {
    let code = code_between!(sandstorm_test_again_begin, sandstorm_test_again_end);
    let extension = load(&image(one_page(), code, 0)).unwrap();
    let mut world = World::new();
    let mut invocation = world.begin(&extension, b"", long());
    // Making the memory anew is the host's work, which no tenant is charged for.
    assert_eq!(world.poll(&mut invocation), PollOutcome::Killed(KillCause::IllegalInstruction));
    world.engine.finish(&world.participant, invocation);
}

// Returns at once.
global_asm!(
    "sandstorm_test_done_begin:",
    "mov eax, {done}",
    "ret",
    "sandstorm_test_done_end:",
    done = const abi::POLL_DONE,
);

/// Numbers that a layout may have wrong.
const EDGES: [u32; 14] = [
    0,
    1,
    4_096,
    65_536,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (1 << 20) + 65_536,
    1 << 21,
    (1 << 31) - 65_536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 65_536,
    u32::MAX,
];

#[test]
fn whatever_a_module_says_of_its_memory_the_server_stays() {
    let code = code_between!(sandstorm_test_done_begin, sandstorm_test_done_end);
    let (world, loaded) = (RefCell::new(World::new()), Cell::new(0));
    proptest::proptest!(proptest::test_runner::Config { cases: 3_000, ..Default::default() }, |(
        wild in proptest::array::uniform8(proptest::option::weighted(0.2, proptest::sample::select(&EDGES[..]))),
        ours: bool,
        len in 0_usize..120_000,
        args in 0_usize..100_000,
    )| {
        const STACK: u32 = 1 << 20;
        let number = |at: usize, usual: u32| wild[at].unwrap_or(usual);
        let segment = |address, len| sandstorm_sandbox::DataSegment { address, writable: true, bytes: vec![9; len] };
        let zeroed = if ours { (number(3, STACK + 130_000), number(4, STACK + 131_000)) } else { (0, 0) };
        let layout = ModuleLayout {
            memory_bytes: number(0, 4 << 20),
            memory_max_bytes: number(1, 4 << 20).max(number(0, 4 << 20)),
            heap_base: number(2, STACK + (256 << 10)),
            zeroed: zeroed.0..zeroed.1,
            future_size: number(5, 64),
            future_align: number(6, 16),
            api_fingerprint: if ours { builder::api_fingerprint() } else { 0 },
            variables: vec![u64::from(number(7, STACK))],
            segments: vec![segment(number(7, STACK), len), segment(number(3, STACK), 5)],
        };
        if let Ok(extension) = load(&image(layout, code, 0)) {
            loaded.set(loaded.get() + 1);
            let world = &mut *world.borrow_mut();
            let budget = Budget { memory_bytes: 1 << 30, ..long() };
            if let Ok(mut invocation) = world.engine.begin(&world.view, &extension, &vec![5; args], budget) {
                let end = world.complete(&mut invocation);
                assert_eq!(end, PollOutcome::Done);
                world.engine.finish(&world.participant, invocation);
            }
        }
    });
    assert!(loaded.get() > 50, "hardly any module was loaded: {}", loaded.get());
}
