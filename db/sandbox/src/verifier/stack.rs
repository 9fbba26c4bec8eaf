//! The stack: how its depth changes, and which functions read arguments from it.
//!
//! Depths count from the return address downwards. A function may use the bytes from its depth (and the red zone below)
//! up to its return address, and the arguments above that, as far as every caller has put its own part of the stack
//! there. Functions that share code form a group, which has the needs of all of them.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::Path;
use crate::limits::FRAME_MAX_BYTES;

/// Bytes below the stack pointer that a function may use without moving it (System V ABI).
pub(super) const RED_ZONE_BYTES: i64 = 128;

/// Returns the depth after an instruction that does not jump, call or return.
pub(super) fn depth_after(instruction: &Instruction, depth: u32) -> Result<u32, &'static str> {
    let change = match (instruction.mnemonic(), instruction.op0_register()) {
        (Mnemonic::Push, _) => 8,
        (Mnemonic::Pop, Register::RSP) => return Err("it loads the stack pointer"),
        (Mnemonic::Pop, _) => -8,
        (Mnemonic::Sub, Register::RSP) if is_immediate(instruction) => instruction.immediate(1) as i64,
        (Mnemonic::Add, Register::RSP) if is_immediate(instruction) => (instruction.immediate(1) as i64).wrapping_neg(),
        (Mnemonic::Lea, Register::RSP) if instruction.memory_base() == Register::RSP => {
            if instruction.memory_index() != Register::None {
                return Err("it moves the stack pointer by what is in a register");
            }
            (instruction.memory_displacement64() as i64).wrapping_neg()
        }
        _ => return Ok(depth),
    };
    let after = i64::from(depth).checked_add(change).ok_or("it moves the stack pointer too far")?;
    if after < 0 {
        return Err("it moves the stack pointer above its return address");
    }
    if after > FRAME_MAX_BYTES as i64 {
        return Err("its part of the stack is larger than the guard below a stack allows");
    }
    Ok(after as u32)
}

fn is_immediate(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 | Code::Add_rm64_imm8 | Code::Add_rm64_imm32
    ) && instruction.op0_kind() == OpKind::Register
}

/// A group of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupId(u32);

/// A call: its target, how much of the caller's own stack is above, and where it is.
#[derive(Clone, Copy, Debug)]
struct CallSite {
    target: GroupId,
    depth: u32,
    at: usize,
}

#[derive(Clone, Debug)]
struct Group {
    parent: GroupId,
    /// Bytes of arguments above the return address that its code uses, and the instruction that does.
    arguments: u32,
    at: usize,
    /// A return of its code was reached.
    returns: bool,
    /// What follows the calls of it, until a return is reached.
    behind: Vec<Path>,
}

/// All groups, and the calls between them.
#[derive(Debug, Default)]
pub(super) struct FunctionGroups {
    groups: Vec<Group>,
    calls: Vec<CallSite>,
}

impl FunctionGroups {
    /// A new group of one function.
    pub(super) fn add(&mut self) -> GroupId {
        let id = GroupId(self.groups.len() as u32);
        self.groups.push(Group { parent: id, arguments: 0, at: 0, returns: false, behind: Vec::new() });
        id
    }

    fn get(&mut self, id: GroupId) -> &mut Group {
        let id = self.find(id);
        &mut self.groups[id.0 as usize]
    }

    fn find(&mut self, mut id: GroupId) -> GroupId {
        while self.groups[id.0 as usize].parent != id {
            let parent = self.groups[id.0 as usize].parent;
            self.groups[id.0 as usize].parent = self.groups[parent.0 as usize].parent;
            id = parent;
        }
        id
    }

    /// Two functions share code. Returns the paths that are known to be reached by that.
    pub(super) fn unite(&mut self, one: GroupId, other: GroupId) -> Vec<Path> {
        let (one, other) = (self.find(one), self.find(other));
        if one == other {
            return Vec::new();
        }
        let group = &mut self.groups[other.0 as usize];
        group.parent = one;
        let (arguments, at, returns, behind) =
            (group.arguments, group.at, group.returns, std::mem::take(&mut group.behind));
        self.uses_arguments(one, arguments, at);
        let group = self.get(one);
        group.behind.extend(behind);
        if returns || group.returns { self.returns(one) } else { Vec::new() }
    }

    /// Code of the group uses so many bytes of arguments.
    pub(super) fn uses_arguments(&mut self, id: GroupId, bytes: u32, at: usize) {
        let group = self.get(id);
        if bytes > group.arguments {
            (group.arguments, group.at) = (bytes, at);
        }
    }

    /// Code of the group returns. Returns the paths that are known to be reached by that.
    pub(super) fn returns(&mut self, id: GroupId) -> Vec<Path> {
        let group = self.get(id);
        group.returns = true;
        std::mem::take(&mut group.behind)
    }

    /// What follows a call of the group is reached if that returns: gives the path back if it is known to, or keeps it.
    pub(super) fn continue_after(&mut self, id: GroupId, behind: Path) -> Option<Path> {
        let group = self.get(id);
        if group.returns {
            return Some(behind);
        }
        group.behind.push(behind);
        None
    }

    /// The host calls it, with nothing on the stack.
    pub(super) fn forbid_arguments(&mut self, target: GroupId) {
        self.calls(target, 0, 0);
    }

    /// A function with so much stack of its own calls it.
    pub(super) fn calls(&mut self, target: GroupId, depth: u32, at: usize) {
        self.calls.push(CallSite { target, depth, at });
    }

    /// Checks that every function's arguments lie in its caller's own part of the stack; returns the number of
    /// functions.
    pub(super) fn check(&mut self) -> Result<usize, (usize, &'static str)> {
        for index in 0..self.calls.len() {
            let CallSite { target, depth, at } = self.calls[index];
            let group = self.get(target);
            if group.arguments > depth {
                let at = if at == 0 { group.at } else { at };
                return Err((at, "it uses more arguments on the stack than its caller has put there"));
            }
        }
        Ok(self.groups.len())
    }
}
