//! The operators that load and store.

use ValType::{F32, F64, I32, I64};
use wasmparser::{MemArg, Operator, ValType};

/// A load or a store: the function of the generated crate for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryOperator {
    pub(crate) offset: u64,
    pub(crate) kind: ValType,
    /// Whether the value is stored.
    pub(crate) stores: bool,
    pub(crate) function: &'static str,
    /// What the loaded value goes through, or the value to store: `$v`.
    pub(crate) value: &'static str,
}

fn load(at: &MemArg, kind: ValType, function: &'static str, value: &'static str) -> Option<MemoryOperator> {
    Some(MemoryOperator { offset: at.offset, kind, stores: false, function, value })
}

fn store(at: &MemArg, kind: ValType, function: &'static str, value: &'static str) -> Option<MemoryOperator> {
    Some(MemoryOperator { offset: at.offset, kind, stores: true, function, value })
}

/// The load or store that this is, if it is one.
pub(crate) fn memory(operator: &Operator<'_>) -> Option<MemoryOperator> {
    match operator {
        Operator::I32Load { memarg } => load(memarg, I32, "load_u32", "$v"),
        Operator::I64Load { memarg } => load(memarg, I64, "load_u64", "$v"),
        Operator::F32Load { memarg } => load(memarg, F32, "load_f32", "$v"),
        Operator::F64Load { memarg } => load(memarg, F64, "load_f64", "$v"),
        Operator::I32Load8S { memarg } => load(memarg, I32, "load_i8", "$v"),
        Operator::I32Load8U { memarg } => load(memarg, I32, "load_u8", "$v"),
        Operator::I32Load16S { memarg } => load(memarg, I32, "load_i16", "$v"),
        Operator::I32Load16U { memarg } => load(memarg, I32, "load_u16", "$v"),
        Operator::I64Load8S { memarg } => load(memarg, I64, "load_i8_64", "$v"),
        Operator::I64Load8U { memarg } => load(memarg, I64, "load_u8", "$v as u64"),
        Operator::I64Load16S { memarg } => load(memarg, I64, "load_i16_64", "$v"),
        Operator::I64Load16U { memarg } => load(memarg, I64, "load_u16", "$v as u64"),
        Operator::I64Load32S { memarg } => load(memarg, I64, "load_i32_64", "$v"),
        Operator::I64Load32U { memarg } => load(memarg, I64, "load_u32", "$v as u64"),
        Operator::I32Store { memarg } => store(memarg, I32, "store_u32", "$v"),
        Operator::I64Store { memarg } => store(memarg, I64, "store_u64", "$v"),
        Operator::F32Store { memarg } => store(memarg, F32, "store_f32", "$v"),
        Operator::F64Store { memarg } => store(memarg, F64, "store_f64", "$v"),
        Operator::I32Store8 { memarg } => store(memarg, I32, "store_u8", "$v"),
        Operator::I32Store16 { memarg } => store(memarg, I32, "store_u16", "$v"),
        Operator::I64Store8 { memarg } => store(memarg, I64, "store_u8", "$v as u32"),
        Operator::I64Store16 { memarg } => store(memarg, I64, "store_u16", "$v as u32"),
        Operator::I64Store32 { memarg } => store(memarg, I64, "store_u32", "$v as u32"),
        _ => None,
    }
}
