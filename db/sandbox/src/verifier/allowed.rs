//! The instructions that code may have.

use iced_x86::{Code, EncodingKind, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::prefixes;

/// Returns why an instruction is not allowed whatever it accesses; `None` if it may be.
pub(super) fn refusal(instruction: &Instruction) -> Option<&'static str> {
    if instruction.encoding() != EncodingKind::Legacy {
        return Some("it is of an extension of the processor that is not allowed");
    }
    if !is_allowed(instruction.mnemonic()) {
        return Some("it is not on the list of allowed instructions");
    }
    if instruction.has_lock_prefix() || instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        return Some("it has a prefix that is not allowed");
    }
    let in_memory = (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
    match instruction.mnemonic() {
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc if in_memory => {
            return Some("it tests a bit in memory, which may lie far from its address");
        }
        // It locks the bus as if it had the prefix: across two cache lines that delays every processor of the machine,
        // and some kernels put the thread to sleep for it.
        Mnemonic::Xchg if in_memory => return Some("it exchanges with memory, which locks other processors out"),
        _ => {}
    }
    (0..instruction.op_count()).find_map(|index| operand_refusal(instruction, index))
}

/// Returns whether all processors read the instruction alike. Where a prefix changes the size of a jump's or a push's
/// operand they do not: Intel's ignore it before a jump, AMD's cut the instruction pointer to 16 bits. Elsewhere only
/// the ordinary forms of prefixes are taken. `bytes` begin with the instruction.
pub(super) fn is_exact(instruction: &Instruction, bytes: &[u8]) -> bool {
    let opcode = |at: usize| bytes.get(at).copied().unwrap_or(0);
    match instruction.flow_control() {
        FlowControl::Next if instruction.mnemonic() == Mnemonic::Nop => prefixes::are_of_padding(bytes),
        FlowControl::Next if !prefixes::are_ordinary(instruction, bytes) => false,
        FlowControl::Next => match instruction.code() {
            Code::Push_r64 | Code::Push_rm64 | Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Pop_r64 => true,
            // Vendors document other lengths of the operand.
            Code::Movsxd_r16_rm16 => false,
            // Names that no manual has for an opcode beside its own.
            Code::Test_rm8_imm8_F6r1 | Code::Test_rm16_imm16_F7r1 => false,
            Code::Test_rm32_imm32_F7r1 | Code::Test_rm64_imm32_F7r1 => false,
            _ => !matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Pop),
        },
        FlowControl::ConditionalBranch => match instruction.len() {
            2 => opcode(0) & 0xf0 == 0x70,
            6 => opcode(0) == 0x0f && opcode(1) & 0xf0 == 0x80,
            _ => false,
        },
        FlowControl::UnconditionalBranch => {
            matches!((instruction.len(), opcode(0)), (2, 0xeb) | (5, 0xe9))
        }
        FlowControl::Call => (instruction.len(), opcode(0)) == (5, 0xe8),
        FlowControl::IndirectCall => instruction.len() == 8 && bytes.starts_with(&[0x65, 0xff, 0x14, 0x25]),
        FlowControl::Return => (instruction.len(), opcode(0)) == (1, 0xc3),
        FlowControl::Exception => instruction.len() == 2 && bytes.starts_with(&[0x0f, 0x0b]),
        FlowControl::Interrupt => (instruction.len(), opcode(0)) == (1, 0xcc),
        _ => false,
    }
}

fn operand_refusal(instruction: &Instruction, index: u32) -> Option<&'static str> {
    match instruction.op_kind(index) {
        OpKind::Register => {
            let register = instruction.op_register(index);
            if register.full_register() == Register::RSP {
                return (!changes_stack(instruction, index)).then_some("it uses the stack pointer as a number");
            }
            let number = register.is_gpr() || (register.is_xmm() && (register as u32) < Register::XMM16 as u32);
            (!number).then_some("it uses a register that is not allowed")
        }
        OpKind::Memory
        | OpKind::NearBranch64
        | OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => None,
        _ => Some("it has an operand that is not allowed"),
    }
}

/// The only instructions that may name the stack pointer move it by a constant; the depth's computation looks closer.
fn changes_stack(instruction: &Instruction, index: u32) -> bool {
    let moves = match instruction.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub => {
            matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
        }
        Mnemonic::Lea => instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None,
        _ => false,
    };
    moves && index == 0 && instruction.op0_register() == Register::RSP
}

fn is_allowed(mnemonic: Mnemonic) -> bool {
    is_control(mnemonic)
        || is_integer(mnemonic)
        || is_condition(mnemonic)
        || is_float(mnemonic)
        || is_vector_of_floats(mnemonic)
        || is_vector_of_integers(mnemonic)
}

fn is_control(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Call | Ret
            | Jmp
            | Ja
            | Jae
            | Jb
            | Jbe
            | Je
            | Jne
            | Jg
            | Jge
            | Jl
            | Jle
            | Jo
            | Jno
            | Js
            | Jns
            | Jp
            | Jnp
            | Ud2
            | Int3
            | Nop
            | Push
            | Pop
    )
}

fn is_integer(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Mov | Movzx
            | Movsx
            | Movsxd
            | Lea
            | Add
            | Adc
            | Sub
            | Sbb
            | Inc
            | Dec
            | Neg
            | Not
            | And
            | Or
            | Xor
            | Cmp
            | Test
            | Imul
            | Mul
            | Idiv
            | Div
            | Shl
            | Shr
            | Sar
            | Rol
            | Ror
            | Shld
            | Shrd
            | Bt
            | Bts
            | Btr
            | Btc
            | Bsf
            | Bsr
            | Lzcnt
            | Tzcnt
            | Popcnt
            | Bswap
            | Xchg
            | Cbw
            | Cwd
            | Cwde
            | Cdq
            | Cdqe
            | Cqo
    )
}

fn is_condition(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovne
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovo
            | Cmovno
            | Cmovs
            | Cmovns
            | Cmovp
            | Cmovnp
            | Seta
            | Setae
            | Setb
            | Setbe
            | Sete
            | Setne
            | Setg
            | Setge
            | Setl
            | Setle
            | Seto
            | Setno
            | Sets
            | Setns
            | Setp
            | Setnp
    )
}

fn is_float(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Movss
            | Movsd
            | Addss
            | Addsd
            | Subss
            | Subsd
            | Mulss
            | Mulsd
            | Divss
            | Divsd
            | Sqrtss
            | Sqrtsd
            | Minss
            | Minsd
            | Maxss
            | Maxsd
            | Ucomiss
            | Ucomisd
            | Comiss
            | Comisd
            | Cmpss
            | Cmpsd
            | Cvtsi2ss
            | Cvtsi2sd
            | Cvttss2si
            | Cvttsd2si
            | Cvtss2sd
            | Cvtsd2ss
            | Roundss
            | Roundsd
            | Cvtdq2pd
            | Cvtdq2ps
    )
}

fn is_vector_of_floats(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Movaps
            | Movapd
            | Movups
            | Movupd
            | Movdqa
            | Movdqu
            | Movd
            | Movq
            | Movhlps
            | Movlhps
            | Andps
            | Andpd
            | Andnps
            | Andnpd
            | Orps
            | Orpd
            | Xorps
            | Xorpd
            | Addps
            | Addpd
            | Subps
            | Subpd
            | Mulps
            | Mulpd
            | Divps
            | Divpd
            | Minps
            | Minpd
            | Maxps
            | Maxpd
            | Sqrtps
            | Sqrtpd
            | Cmpps
            | Cmppd
            | Unpcklps
            | Unpcklpd
            | Unpckhps
            | Unpckhpd
            | Shufps
            | Shufpd
            | Movmskps
            | Movmskpd
    )
}

fn is_vector_of_integers(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Pand | Pandn
            | Por
            | Pxor
            | Pshufd
            | Pshuflw
            | Pshufhw
            | Punpcklbw
            | Punpcklwd
            | Punpckldq
            | Punpcklqdq
            | Punpckhbw
            | Punpckhwd
            | Punpckhdq
            | Punpckhqdq
            | Paddb
            | Paddw
            | Paddd
            | Paddq
            | Psubb
            | Psubw
            | Psubd
            | Psubq
            | Pmullw
            | Pmuludq
            | Pmulhw
            | Pmulhuw
            | Pmaddwd
            | Pcmpeqb
            | Pcmpeqw
            | Pcmpeqd
            | Pcmpgtb
            | Pcmpgtw
            | Pcmpgtd
            | Psllw
            | Pslld
            | Psllq
            | Pslldq
            | Psrlw
            | Psrld
            | Psrlq
            | Psrldq
            | Psraw
            | Psrad
            | Packssdw
            | Packsswb
            | Packuswb
            | Pinsrw
            | Pextrw
            | Pmovmskb
            | Pmaxsw
            | Pminsw
            | Pmaxub
            | Pminub
            | Pavgb
            | Pavgw
            | Psadbw
    )
}
