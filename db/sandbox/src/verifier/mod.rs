//! The verifier: proves of an image's machine code that it stays within its own memory, stack and instructions.
//!
//! It follows every path from the two entries and refuses what it cannot follow. Of each instruction it proves:
//!
//! 1. **Control.** Jumps and calls are direct, or call a function of the host by its fixed address in the control page.
//!    No two instructions that are reached overlap. A function returns with the stack pointer that it began with, and
//!    nothing can write where its return address lies, so it returns to its caller.
//! 2. **Memory.** An access lies behind `gs` at a 32-bit address, at a 32-bit register and a constant of less than 2
//!    GiB, or in the page of the module's variables; or it reads a constant of the image; or it lies in the function's
//!    own part of the stack.
//! 3. **Stack.** The stack pointer moves by constants, so its depth is known at each instruction. A function's part of
//!    the stack is smaller than the guard below every stack.
//! 4. **Instructions** are on a list: arithmetic of integers and SSE. None of them changes a segment, enters the
//!    kernel, reads a clock, or accesses memory that its operands do not name. No address of the process gets into a
//!    register.
//!
//! The form is that of Native Client (S&P 2009) and VeriWasm (NDSS 2021); the translator avoids indirect jumps and
//! spilled bases, so that no register has to be followed further than one instruction.

mod access;
mod allowed;
mod prefixes;

mod stack;
#[cfg(test)]
mod tests;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::SandboxImage;
use crate::limits::INSTRUCTIONS_MAX;
use stack::{FunctionGroups, GroupId};

/// The reason why code is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the machine code is refused: {reason} (`{instruction}` at {at:#x})")]
pub struct VerifyError {
    /// Offset in the code, bytes.
    pub at: usize,
    /// What was found there.
    pub instruction: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// What was proven, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Instructions that can be reached.
    pub instructions: usize,
    /// Functions that are called directly, and the entries.
    pub functions: usize,
}

/// Verifies an image's code. It takes about a millisecond for 10 KiB.
///
/// # Errors
/// The first instruction that does not pass.
pub fn verify(image: &SandboxImage) -> Result<Proof, VerifyError> {
    let mut verifier = Verifier {
        image,
        states: vec![ByteState::Unknown; image.code.len()],
        depths: vec![0; image.code.len()],
        groups: FunctionGroups::default(),
        waiting: Vec::new(),
        instructions: 0,
    };
    for entry in [image.start, image.poll] {
        let group = verifier.function(u64::from(image.code_at) + u64::from(entry), 0)?;
        verifier.groups.forbid_arguments(group);
    }
    while let Some(path) = verifier.waiting.pop() {
        verifier.follow(path)?;
    }
    match verifier.groups.check() {
        Ok(functions) => Ok(Proof { instructions: verifier.instructions, functions }),
        Err((at, reason)) => Err(verifier.error(at, reason)),
    }
}

/// What is known of a byte of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteState {
    Unknown,
    /// An instruction begins here; its function's group.
    Start(GroupId),
    /// As `Start`; it is safe only because of the instruction before, so nothing may jump here.
    Second(GroupId),
    /// Within an instruction.
    Inside,
}

/// A path yet to be followed.
#[derive(Clone, Copy, Debug)]
struct Path {
    at: usize,
    /// Bytes of the stack below the return address.
    depth: u32,
    group: GroupId,
}

/// What follows an instruction.
enum Next {
    /// The instruction behind it, with this depth of the stack.
    Behind(u32),
    /// Nothing.
    End,
}

struct Verifier<'a> {
    image: &'a SandboxImage,
    states: Vec<ByteState>,
    /// The depth of the stack at each instruction's start: bytes below the return address.
    depths: Vec<u32>,
    groups: FunctionGroups,
    waiting: Vec<Path>,
    instructions: usize,
}

impl Verifier<'_> {
    fn error(&self, at: usize, reason: &'static str) -> VerifyError {
        let shown = self.decode(at).map_or_else(|| "no instruction".to_owned(), |found| format!("{:?}", found.code()));
        VerifyError { at, instruction: shown, reason }
    }

    fn decode(&self, at: usize) -> Option<Instruction> {
        let bytes = self.image.code.get(at..)?;
        let address = u64::from(self.image.code_at) + at as u64;
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// The offset of an address of the code; `from` names the place that has it.
    fn offset(&self, address: u64, from: usize) -> Result<usize, VerifyError> {
        let offset = address.checked_sub(u64::from(self.image.code_at)).map(|offset| offset as usize);
        offset.filter(|offset| *offset < self.image.code.len()).ok_or_else(|| self.error(from, "it leaves the code"))
    }

    /// The group of the function that begins at an address, which is followed if it was not yet.
    fn function(&mut self, address: u64, from: usize) -> Result<GroupId, VerifyError> {
        let at = self.offset(address, from)?;
        if let ByteState::Start(group) = self.states[at] {
            if self.depths[at] != 0 {
                return Err(self.error(from, "it calls into the middle of a function"));
            }
            return Ok(group);
        }
        let group = self.groups.add();
        self.waiting.push(Path { at, depth: 0, group });
        Ok(group)
    }

    /// Follows a path until it ends or meets one that was followed before.
    fn follow(&mut self, path: Path) -> Result<(), VerifyError> {
        let Path { mut at, mut depth, group } = path;
        // The register whose upper half the instruction before has cleared, if that is all it did.
        let mut cleared = None;
        loop {
            match self.states.get(at).copied() {
                None => return Err(self.error(at.saturating_sub(1), "it runs off the end of the code")),
                Some(ByteState::Inside) => return Err(self.error(at, "it begins within another instruction")),
                Some(ByteState::Second(_)) if cleared.is_none() => {
                    return Err(self.error(at, "it skips the instruction that clears its address register"));
                }
                Some(ByteState::Start(other) | ByteState::Second(other)) => {
                    if self.depths[at] != depth {
                        return Err(self.error(at, "the depth of the stack depends on the path"));
                    }
                    self.waiting.extend(self.groups.unite(group, other));
                    return Ok(());
                }
                Some(ByteState::Unknown) => {}
            }
            let instruction = self.decode(at).ok_or_else(|| self.error(at, "no instruction that is known"))?;
            self.claim(at, &instruction, depth, group)?;
            let next = self.check(at, &instruction, depth, group, cleared)?;
            let Next::Behind(after) = next else { return Ok(()) };
            cleared = cleared_register(&instruction);
            (at, depth) = (at + instruction.len(), after);
        }
    }

    /// Notes that an instruction begins here, and that none begins within it.
    fn claim(&mut self, at: usize, instruction: &Instruction, depth: u32, group: GroupId) -> Result<(), VerifyError> {
        self.instructions += 1;
        if self.instructions > INSTRUCTIONS_MAX {
            return Err(self.error(at, "there are more instructions than are verified"));
        }
        let inside = at + 1..at + instruction.len();
        if self.states.get(inside.clone()).is_none_or(|states| states.iter().any(|state| *state != ByteState::Unknown))
        {
            return Err(self.error(at, "it overlaps another instruction"));
        }
        self.states[at] = ByteState::Start(group);
        self.states[inside].fill(ByteState::Inside);
        self.depths[at] = depth;
        Ok(())
    }

    fn check(
        &mut self,
        at: usize,
        instruction: &Instruction,
        depth: u32,
        group: GroupId,
        cleared: Option<Register>,
    ) -> Result<Next, VerifyError> {
        let refuse = |verifier: &Self, reason| Err(verifier.error(at, reason));
        if let Some(reason) = allowed::refusal(instruction) {
            return refuse(self, reason);
        }
        if !allowed::is_exact(instruction, &self.image.code[at..]) {
            return refuse(self, "processors may disagree about where it ends or what it does");
        }
        match access::check(instruction, self.image, depth, cleared) {
            Ok(access::Access::Arguments(end)) => self.groups.uses_arguments(group, end, at),
            Ok(access::Access::Paired) => self.states[at] = ByteState::Second(group),
            Ok(access::Access::Harmless) => {}
            Err(reason) => return refuse(self, reason),
        }
        match instruction.flow_control() {
            FlowControl::Next => match stack::depth_after(instruction, depth) {
                Ok(after) => Ok(Next::Behind(after)),
                Err(reason) => refuse(self, reason),
            },
            FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
                self.jump(at, instruction, depth, group)?;
                Ok(Next::Behind(depth))
            }
            FlowControl::UnconditionalBranch if instruction.is_jmp_short_or_near() => {
                self.jump(at, instruction, depth, group)?;
                Ok(Next::End)
            }
            FlowControl::Call if instruction.code() == Code::Call_rel32_64 => {
                let target = self.function(instruction.near_branch_target(), at)?;
                self.groups.calls(target, depth, at);
                // The compiler puts nothing behind a call that does not return, so what lies there is only followed
                // once a return of the called function has been.
                let behind = Path { at: at + instruction.len(), depth, group };
                self.waiting.extend(self.groups.continue_after(target, behind));
                Ok(Next::End)
            }
            // The operand was checked as an access: an entry of the control page.
            FlowControl::IndirectCall if instruction.code() == Code::Call_rm64 => Ok(Next::Behind(depth)),
            FlowControl::Return if instruction.code() == Code::Retnq && depth == 0 => {
                self.waiting.extend(self.groups.returns(group));
                Ok(Next::End)
            }
            FlowControl::Return => refuse(self, "it returns with another stack pointer than it began with"),
            FlowControl::Exception if instruction.mnemonic() == Mnemonic::Ud2 => Ok(Next::End),
            FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => Ok(Next::End),
            _ => refuse(self, "it changes the flow of control in a way that is not allowed"),
        }
    }

    fn jump(&mut self, at: usize, instruction: &Instruction, depth: u32, group: GroupId) -> Result<(), VerifyError> {
        let target = self.offset(instruction.near_branch_target(), at)?;
        self.waiting.push(Path { at: target, depth, group });
        Ok(())
    }
}

/// The 64-bit register whose upper half this instruction clears, where it is a move of 32 bits between registers.
fn cleared_register(instruction: &Instruction) -> Option<Register> {
    let moves = matches!(instruction.code(), Code::Mov_r32_rm32 | Code::Mov_rm32_r32);
    let between = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    (moves && between).then(|| instruction.op0_register().full_register())
}
