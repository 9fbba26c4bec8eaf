//! The registers that say where code was.

/// Where code was: instruction, stack and frame pointer. An instruction pointer of 0: somewhere in the host's code,
/// which was called from above the stack pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestRegisters {
    pub(super) instruction: usize,
    pub(super) stack: usize,
    pub(super) frame: usize,
}
