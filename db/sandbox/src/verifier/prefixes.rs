//! The prefixes of instructions. Manuals say what one prefix of each kind does. What two of a kind do, or one that has
//! no meaning, is left to the processor: such forms are refused, whatever this crate's decoder makes of them.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// The segment that is the module's memory.
const GS: u8 = 0x65;
/// The segment of code: it has no meaning, and compilers make padding longer with it.
const CS: u8 = 0x2e;
/// Operands of 16 bits, or a part of the opcode.
const OPERAND_SIZE: u8 = 0x66;
/// Addresses of 32 bits.
const ADDRESS_SIZE: u8 = 0x67;
/// Repetition, or parts of the opcode.
const REPEAT: [u8; 2] = [0xf2, 0xf3];
/// The first byte of the opcodes of two and more bytes.
const ESCAPE: u8 = 0x0f;

/// Returns whether the prefixes of an instruction that is no padding are of an ordinary form: `gs` before an access,
/// addresses of 32 bits in one, one prefix of those that are part of an opcode, each at most once, and REX last.
pub(super) fn are_ordinary(instruction: &Instruction, bytes: &[u8]) -> bool {
    let in_memory = (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
    let accesses = in_memory && instruction.mnemonic() != Mnemonic::Lea;
    let (mut segment, mut operand, mut address, mut repeat) = (false, false, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        let is_new = match *byte {
            GS if accesses => !std::mem::replace(&mut segment, true),
            OPERAND_SIZE => !std::mem::replace(&mut operand, true),
            ADDRESS_SIZE if accesses => !std::mem::replace(&mut address, true),
            byte if REPEAT.contains(&byte) => !std::mem::replace(&mut repeat, true),
            _ => {
                let rest = bytes.get(at..).unwrap_or_default();
                let opcode = if is_rex(rest) { rest.get(1) } else { rest.first() };
                return match opcode {
                    Some(byte) if is_prefix(*byte) => false,
                    Some(byte) if repeat => *byte == ESCAPE && !operand,
                    found => found.is_some(),
                };
            }
        };
        if !is_new {
            return false;
        }
    }
    false
}

/// Returns whether the bytes begin with an instruction that compilers pad code with: it does nothing and accesses
/// nothing, however many prefixes of these two kinds it has.
pub(super) fn are_of_padding(bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|byte| [OPERAND_SIZE, CS].contains(byte)).count();
    match bytes.get(prefixes..) {
        Some([0x90, ..]) => true,
        // The three bits of the second byte that belong to the opcode.
        Some([ESCAPE, 0x1f, form, ..]) => form & 0b0011_1000 == 0,
        _ => false,
    }
}

fn is_rex(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|byte| byte & 0xf0 == 0x40)
}

fn is_prefix(byte: u8) -> bool {
    const OTHERS: [u8; 5] = [0x26, 0x36, 0x3e, 0x64, 0xf0];
    let known = [GS, CS, OPERAND_SIZE, ADDRESS_SIZE].contains(&byte) || REPEAT.contains(&byte);
    known || OTHERS.contains(&byte) || byte & 0xf0 == 0x40
}
