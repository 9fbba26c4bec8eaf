//! The blocks that a function's operators stand in.

use wasmparser::{BlockType, FuncType, ValType};

/// What kind of block one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Function,
    Block,
    Loop,
    If,
    Else,
}

/// A block under way.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// Its number in the function: the Rust label is `'b` and this.
    pub(crate) label: usize,
    pub(crate) parameters: Vec<ValType>,
    pub(crate) results: Vec<ValType>,
    /// Values on the stack below the block's own.
    pub(crate) height: usize,
    /// The operators that follow cannot be reached, up to the block's end.
    pub(crate) unreachable: bool,
    /// The values that an `if` began with, for its `else`.
    pub(crate) arguments: Vec<String>,
}

impl Frame {
    /// The types of the values that a branch to the block carries.
    pub(crate) fn branch_types(&self) -> &[ValType] {
        if self.kind == FrameKind::Loop { &self.parameters } else { &self.results }
    }

    /// The variable that a branch to the block, or its end, leaves a value in.
    pub(crate) fn branch_variable(&self, index: usize) -> String {
        if self.kind == FrameKind::Loop { self.parameter(index) } else { self.result(index) }
    }

    /// The variable of a loop's parameter.
    pub(crate) fn parameter(&self, index: usize) -> String {
        format!("p{}_{index}", self.label)
    }

    /// The variable of a block's result.
    pub(crate) fn result(&self, index: usize) -> String {
        format!("r{}_{index}", self.label)
    }
}

/// The parameters and results of a block.
pub(crate) fn block_signature(kind: BlockType, types: &[FuncType]) -> (Vec<ValType>, Vec<ValType>) {
    match kind {
        BlockType::Empty => (Vec::new(), Vec::new()),
        BlockType::Type(result) => (Vec::new(), vec![result]),
        BlockType::FuncType(index) => {
            let signature = &types[index as usize];
            (signature.params().to_vec(), signature.results().to_vec())
        }
    }
}
