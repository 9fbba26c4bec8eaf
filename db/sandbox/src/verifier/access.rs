//! Accesses to memory.

use iced_x86::{
    Code, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use super::stack::RED_ZONE_BYTES;
use crate::layout::{CONTROL_AT, MAX_OFFSET, VARIABLES_AT};
use crate::limits::FRAME_MAX_BYTES;
use crate::{HostFunction, SandboxImage};

/// What an access that passed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing follows from it.
    Harmless,
    /// It is safe because of the instruction before it.
    Paired,
    /// It uses arguments on the stack, which end so many bytes above the return address.
    Arguments(u32),
}

/// Checks an instruction's operand in memory, if it has one. `depth` is that of the stack before it; `cleared` the
/// register whose upper half the instruction before has cleared.
pub(super) fn check(
    instruction: &Instruction,
    image: &SandboxImage,
    depth: u32,
    cleared: Option<Register>,
) -> Result<Access, &'static str> {
    let in_memory = (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
    match instruction.mnemonic() {
        _ if !in_memory && instruction.code() == Code::Call_rm64 => return Err("it calls what is in a register"),
        _ if !in_memory => return Ok(Access::Harmless),
        Mnemonic::Nop => return Ok(Access::Harmless),
        Mnemonic::Lea => return check_address(instruction),
        Mnemonic::Pop => return Err("it pops into memory"),
        _ => {}
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let size = instruction.memory_size().size() as i64;
    if !(1..=16).contains(&size) {
        return Err("it accesses more than 16 bytes at once, or an unknown number");
    }
    let displacement = instruction.memory_displacement64() as i64;
    match instruction.memory_segment() {
        Register::GS if instruction.code() == Code::Call_rm64 => check_host_call(base, index, displacement),
        _ if instruction.code() == Code::Call_rm64 => Err("it calls what lies in memory"),
        Register::GS => check_guest(base, index, displacement, size, cleared),
        _ if instruction.has_segment_prefix() => Err("it uses a segment that is not its own"),
        _ if index != Register::None => Err("it accesses memory outside of its own, or an unknown part of the stack"),
        _ if base == Register::RSP => check_stack(displacement, size, depth),
        _ if base == Register::RIP => check_constant(instruction, image, size),
        _ => Err("it accesses memory outside of its own"),
    }
}

/// An address that is computed and not used.
fn check_address(instruction: &Instruction) -> Result<Access, &'static str> {
    let uses = |register| instruction.memory_base() == register || instruction.memory_index() == register;
    let moves_stack = instruction.op0_register() == Register::RSP;
    if uses(Register::RIP) || uses(Register::EIP) {
        return Err("it computes the address of code or constants");
    }
    if (uses(Register::RSP) || uses(Register::ESP)) != moves_stack {
        return Err("it computes an address of the stack, or a stack pointer from a register");
    }
    Ok(Access::Harmless)
}

fn check_host_call(base: Register, index: Register, displacement: i64) -> Result<Access, &'static str> {
    let number = displacement.wrapping_sub(i64::from(CONTROL_AT));
    let known = number >= 0 && number % 8 == 0 && HostFunction::by_number((number / 8) as usize).is_some();
    if base == Register::None && index == Register::None && known {
        Ok(Access::Harmless)
    } else {
        Err("it calls no function of the host")
    }
}

fn check_guest(
    base: Register,
    index: Register,
    displacement: i64,
    size: i64,
    cleared: Option<Register>,
) -> Result<Access, &'static str> {
    let is_none_or_32 =
        |register: Register| register == Register::None || (register.is_gpr32() && register != Register::ESP);
    match (base, index) {
        (Register::None, Register::None) => {
            let inside = displacement >= i64::from(VARIABLES_AT) && displacement <= -size;
            if inside { Ok(Access::Harmless) } else { Err("it accesses memory by a fixed address that is no variable") }
        }
        // The processor computes such an address with 32 bits.
        _ if is_none_or_32(base) && is_none_or_32(index) => Ok(Access::Harmless),
        (base, Register::None) if base.is_gpr64() && (0..=i64::from(MAX_OFFSET)).contains(&displacement) => {
            if cleared == Some(base) {
                Ok(Access::Paired)
            } else {
                Err("the upper half of its address register is not known to be zero")
            }
        }
        _ => Err("its address may be outside of its memory"),
    }
}

fn check_stack(displacement: i64, size: i64, depth: u32) -> Result<Access, &'static str> {
    // Relative to the return address.
    let first = displacement - i64::from(depth);
    if first >= -i64::from(depth) - RED_ZONE_BYTES && first + size <= 0 {
        return Ok(Access::Harmless);
    }
    let end = first + size - 8;
    if first >= 8 && end <= FRAME_MAX_BYTES as i64 {
        return Ok(Access::Arguments(end as u32));
    }
    Err("it accesses a part of the stack that is not its own")
}

fn check_constant(instruction: &Instruction, image: &SandboxImage, size: i64) -> Result<Access, &'static str> {
    let first = instruction.ip_rel_memory_address();
    let start = u64::from(image.constants_at);
    let end = start + image.constants.len() as u64;
    if first < start || first.checked_add(size as u64).is_none_or(|last| last > end) {
        return Err("it accesses what is no constant of its own");
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
    if info.used_memory().iter().all(|used| used.access() == OpAccess::Read) {
        Ok(Access::Harmless)
    } else {
        Err("it writes to its constants")
    }
}
