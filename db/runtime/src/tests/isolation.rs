//! Registers and stacks: all of them survive a switch, and no trace of them reaches another tenant.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandstorm_api::abi;

use super::*;
use crate::limits::NEWCOMERS_STACKS;

/// Bytes of a picture of the registers: words first, then vector registers of 64 bytes.
pub(super) const REGISTERS_BYTES: usize = VECTORS + 32 * 64;
const VECTORS: usize = 256;
/// The offset of the mask registers in the picture.
const MASKS: usize = 160;
/// Turns of the loop during which the registers have to survive: milliseconds.
const TURNS: u64 = 4_000_000;

/// Gives every register a value of its own, loops, and stores them all.
macro_rules! fill_loop_store {
    ($name:ident, $numbers:literal, $register:literal, $store:literal, $masks:literal, $read_masks:literal) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name(picture: *mut u8, turns: u64) {
            naked_asm!(
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                concat!(".irp i,", $numbers),
                "mov eax, (\\i + 1) * 0x01020304",
                "mov [rsp - 16], rax",
                concat!("vpbroadcastq ", $register, "\\i, [rsp - 16]"),
                ".endr",
                $masks,
                "mov ebx, 0x51",
                "mov ecx, 0x52",
                "mov edx, 0x53",
                "mov ebp, 0x54",
                ".irp i,8,9,10,11,12,13,14,15",
                "mov r\\i, 0x60 + \\i",
                ".endr",
                "mov qword ptr [rsp - 8], 0x71",
                "mov qword ptr [rsp - 128], 0x72",
                "fld1",
                "fldpi",
                "mov rax, rsi",
                "std",
                "stc",
                "2:",
                "dec rax",
                "jnz 2b",
                "mov [rdi + 8], rbx",
                "mov [rdi + 16], rcx",
                "mov [rdi + 24], rdx",
                "mov [rdi + 32], rbp",
                ".irp i,8,9,10,11,12,13,14,15",
                "mov [rdi + 40 + (\\i - 8) * 8], r\\i",
                ".endr",
                "mov rax, [rsp - 8]",
                "mov [rdi + 104], rax",
                "mov rax, [rsp - 128]",
                "mov [rdi + 112], rax",
                "fstp qword ptr [rdi + 120]",
                "fstp qword ptr [rdi + 128]",
                "pushfq",
                "pop rax",
                "cld",
                "mov [rdi + 136], rax",
                "mov [rdi + 144], rsi",
                concat!(".irp i,", $numbers),
                concat!($store, " [rdi + 256 + \\i * 64], ", $register, "\\i"),
                ".endr",
                $read_masks,
                "vzeroupper",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "ret",
            )
        }
    };
}

fill_loop_store!(
    spins_avx512,
    "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "zmm",
    "vmovdqu64",
    ".irp i,0,1,2,3,4,5,6,7
    mov eax, (\\i + 1) * 0x0101
    kmovw k\\i, eax
    .endr",
    ".irp i,0,1,2,3,4,5,6,7
    kmovw eax, k\\i
    mov [rdi + 160 + \\i * 8], rax
    .endr"
);
fill_loop_store!(spins_avx2, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15", "ymm", "vmovdqu", "", "");

/// Vector registers of this processor, and words in each; none without AVX2.
fn vectors() -> (usize, usize) {
    if is_x86_feature_detected!("avx512f") {
        (32, 8)
    } else if is_x86_feature_detected!("avx2") {
        (16, 4)
    } else {
        (0, 0)
    }
}

/// The expected picture: offset and value. Its caller may be switched out at any moment, for another one like it on the
/// same thread: so it must not use the allocator, which would be entered twice.
fn expected() -> impl Iterator<Item = (usize, u64)> {
    let (registers, words) = vectors();
    let vectors = (0..registers)
        .flat_map(move |i| (0..words).map(move |word| (VECTORS + i * 64 + word * 8, (i as u64 + 1) * 0x0102_0304)));
    let masks = if registers == 32 { 8 } else { 0 };
    vectors
        .chain([(8, 0x51), (16, 0x52), (24, 0x53), (32, 0x54), (104, 0x71), (112, 0x72), (144, TURNS)])
        .chain((8..16).map(|i| (40 + (i - 8) * 8, 0x60 + i as u64)))
        .chain([(120, std::f64::consts::PI.to_bits()), (128, 1.0_f64.to_bits())])
        .chain((0..masks).map(|i| (MASKS + i * 8, (i as u64 + 1) * 0x0101)))
}

/// Holds every register for a while; replies with the offsets of those that changed.
pub(super) unsafe extern "C" fn spins(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: the slot is a picture; the processor has what the function uses.
    unsafe {
        match vectors().0 {
            32 => spins_avx512(slot, TURNS),
            16 => spins_avx2(slot, TURNS),
            _ => return abi::POLL_DONE,
        }
        for (offset, value) in expected() {
            if slot.add(offset).cast::<u64>().read() != value {
                ((*(*invocation).host).reply)(invocation, (&raw const offset).cast(), 8);
            }
        }
        // Direction and carry.
        let flags = slot.add(136).cast::<u64>().read() & 0x401;
        if flags != 0x401 {
            ((*(*invocation).host).reply)(invocation, (&raw const flags).cast(), 8);
        }
    }
    abi::POLL_DONE
}

/// Computes for ever at the end of its stack: the state that a switch keeps does not fit there any more.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn deep(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!("lea rsp, [rsp - ({all} - 1024)]", "2:", "jmp 2b", all = const crate::limits::SIDE_STACK_BYTES)
}

/// Leaves a mark in every register that a call may leave changed, and returns.
macro_rules! mark_registers {
    ($name:ident, $vectors:literal) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
            naked_asm!(
                "mov rax, 0x5ec2e75ec2e75ec2",
                "mov [rsp - 16], rax",
                $vectors,
                "mov rcx, rax",
                "mov rdx, rax",
                "mov rsi, rax",
                "mov rdi, rax",
                "mov r8, rax",
                "mov r9, rax",
                "mov r10, rax",
                "mov r11, rax",
                "mov eax, 1",
                "ret",
            )
        }
    };
}

mark_registers!(
    marks_avx512,
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vpbroadcastq zmm\\i, [rsp - 16]
    .endr
    .irp i,0,1,2,3,4,5,6,7
    kmovw k\\i, eax
    .endr"
);
mark_registers!(
    marks_avx2,
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vpbroadcastq ymm\\i, [rsp - 16]
    .endr"
);

/// Stores the registers' contents at the code's beginning into its slot, and returns.
macro_rules! picture_registers {
    ($name:ident, $vectors:literal) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name(slot: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
            naked_asm!(
                "mov [rdi], rbx",
                "mov [rdi + 8], rcx",
                "mov [rdi + 16], rdx",
                "mov [rdi + 24], rbp",
                "mov [rdi + 32], r8",
                "mov [rdi + 40], r9",
                "mov [rdi + 48], r10",
                "mov [rdi + 56], r11",
                "mov [rdi + 64], r12",
                "mov [rdi + 72], r13",
                "mov [rdi + 80], r14",
                "mov [rdi + 88], r15",
                $vectors,
                "mov eax, 1",
                "mov gs:[0], rsi",
                "ret",
            )
        }
    };
}

picture_registers!(
    pictures_avx512,
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqu64 [rdi + 256 + \\i * 64], zmm\\i
    .endr
    .irp i,0,1,2,3,4,5,6,7
    kmovw eax, k\\i
    mov [rdi + 160 + \\i * 8], rax
    .endr"
);
picture_registers!(
    pictures_avx2,
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqu [rdi + 256 + \\i * 64], ymm\\i
    .endr"
);

/// Takes the picture, then replies with it.
unsafe extern "C" fn shows_registers(slot: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    // SAFETY: the slot holds the picture that the first poll left; a live invocation.
    unsafe { ((*(*invocation).host).reply)(invocation, slot, REGISTERS_BYTES) };
    abi::POLL_DONE
}

#[test]
fn no_register_tells_one_tenant_what_another_had_in_it() {
    let (mark, picture): (stack_switch::GuestFunction, stack_switch::GuestFunction) = match vectors().0 {
        32 => (marks_avx512, pictures_avx512),
        16 => (marks_avx2, pictures_avx2),
        _ => return,
    };
    let mut world = World::new();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    for _ in 0..50 {
        // The first poll of each is checked: it enters at the function's first instruction.
        world.view = Arc::clone(&ada);
        let (marks, pictures) = (native(mark), native_with(yielding(picture), shows_registers, REGISTERS_BYTES, 64));
        assert_eq!(world.run(&marks, b"", long()).0, PollOutcome::Done);
        world.view = Arc::clone(&bob);
        let (end, reply, _) = world.run(&pictures, b"", long());
        assert_eq!((end, reply.len()), (PollOutcome::Done, REGISTERS_BYTES));
        let left: Vec<usize> = reply.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
        assert!(left.is_empty(), "something is left at {left:?}");
    }
}

/// Leaves marks in x87's registers and in MXCSR, which no other test has in use.
#[unsafe(naked)]
unsafe extern "C" fn marks_x87(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!(
        "fldpi",
        "fldpi",
        "fldpi",
        // Flush to zero, round down, the flag of an inexact result.
        "mov dword ptr [rsp - 16], 0xbfa0",
        "ldmxcsr [rsp - 16]",
        "mov eax, 1",
        "ret"
    )
}

/// Stores MXCSR and x87's state into its slot, and returns.
#[unsafe(naked)]
unsafe extern "C" fn pictures_x87(slot: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!("stmxcsr [rdi]", "fnsave [rdi + 8]", "mov eax, 1", "mov gs:[0], rsi", "ret")
}

#[test]
fn neither_does_the_state_of_old_instructions() {
    let mut world = World::new();
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    for _ in 0..50 {
        world.view = Arc::clone(&ada);
        assert_eq!(world.run(&native(marks_x87), b"", long()).0, PollOutcome::Done);
        world.view = Arc::clone(&bob);
        let pictures = native_with(yielding_x87, shows_registers, REGISTERS_BYTES, 64);
        let (end, reply, _) = world.run(&pictures, b"", long());
        assert_eq!((end, reply.len()), (PollOutcome::Done, REGISTERS_BYTES));
        assert_eq!(reply[..4], 0x1f80_u32.to_le_bytes(), "MXCSR");
        // Control, status and tag words, as a new program has them; then pointers, and the registers' contents.
        assert_eq!((&reply[8..10], &reply[12..14], &reply[16..18]), (&[0x7f, 3][..], &[0, 0][..], &[0xff, 0xff][..]));
        assert!(reply[36..116].iter().all(|byte| *byte == 0), "a register: {:?}", &reply[36..116]);
    }
}

/// Takes the picture of x87's state, and answers `POLL_PENDING`.
#[unsafe(naked)]
unsafe extern "C" fn yielding_x87(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!("call {picture}", "xor eax, eax", "ret", picture = sym pictures_x87)
}

/// A first poll that goes on to a second: the picture's functions answer 1, which is `POLL_DONE`.
fn yielding(entry: stack_switch::GuestFunction) -> stack_switch::GuestFunction {
    PICTURE.store(entry as usize, Ordering::Relaxed);
    picture_then_yield
}

static PICTURE: AtomicUsize = AtomicUsize::new(0);

/// Jumps to the picture with every register as it is, and answers `POLL_PENDING`.
#[unsafe(naked)]
unsafe extern "C" fn picture_then_yield(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    naked_asm!("call [rip + {picture}]", "xor eax, eax", "ret", picture = sym PICTURE)
}

/// Writes over 300 KiB of the stack.
unsafe extern "C" fn scribbles_below(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    let bytes = std::hint::black_box([0xaa_u8; 300 << 10]);
    u32::from(bytes[std::hint::black_box(7)] == 0xaa)
}

/// Replies with how many bytes of the 900 KiB below it are not zero.
unsafe extern "C" fn searches_below(_: *mut u8, invocation: *mut abi::InvocationHeader) -> u32 {
    let found: usize;
    // SAFETY: counts bytes of the unused part of this stack; changes nothing.
    unsafe {
        std::arch::asm!(
            "lea {at}, [rsp - 921600]",
            "lea {end}, [rsp - 4096]",
            "xor {found:e}, {found:e}",
            "2:",
            "cmp byte ptr [{at}], 1",
            "sbb {found}, -1",
            "inc {at}",
            "cmp {at}, {end}",
            "jb 2b",
            at = out(reg) _,
            end = out(reg) _,
            found = out(reg) found,
            options(nostack, readonly),
        );
        ((*(*invocation).host).reply)(invocation, (&raw const found).cast(), 8);
    }
    abi::POLL_DONE
}

fn found(world: &mut World) -> usize {
    let (end, reply, _) = world.run(&native(searches_below), b"", long());
    assert_eq!(end, PollOutcome::Done);
    usize::from_le_bytes(reply.try_into().unwrap())
}

unsafe extern "C" fn endless(_: *mut u8, _: *mut abi::InvocationHeader) -> u32 {
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn no_stack_tells_one_tenant_what_another_had_on_it() {
    for can_make_more in [true, false] {
        let mut world = World::new();
        let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
        if !can_make_more {
            world.engine.stop_making_stacks();
        }
        for round in 0..10 {
            world.view = Arc::clone(&ada);
            assert_eq!(world.run(&native(scribbles_below), b"", long()).0, PollOutcome::Done);
            assert!(found(&mut world) >= 290 << 10, "it sees its own");
            // A switched-out one of each tenant, one of them given up: their stacks go round as well.
            let parked = [&ada, &bob].map(|view| {
                world.view = Arc::clone(view);
                let mut invocation = world.begin(&native(endless), b"", Budget { slice_us: 1, ..short() });
                let _switched_out_or_ended = world.poll(&mut invocation);
                invocation
            });
            parked.into_iter().for_each(|invocation| world.engine.finish(&world.participant, invocation));
            world.view = Arc::clone(&bob);
            assert_eq!(found(&mut world), 0, "round {round}");
        }
    }
}

#[test]
fn no_stack_that_is_handed_on_in_a_crowd_tells_one_tenant_what_another_had_on_it() {
    let mut world = World::new();
    world.engine.keep_no_more_stacks_than(NEWCOMERS_STACKS + 8);
    for (number, view) in world.crowd(4 * NEWCOMERS_STACKS).into_iter().enumerate() {
        world.view = view;
        assert_eq!(found(&mut world), 0, "tenant {number}");
        assert_eq!(world.run(&native(scribbles_below), b"", long()).0, PollOutcome::Done);
        assert!(found(&mut world) >= 290 << 10, "it sees its own");
    }
}
