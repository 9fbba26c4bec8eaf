//! The operators on numbers: what each takes, gives, and is in Rust.
//!
//! `i32` and `i64` are `u32` and `u64` there. `$a`, `$b` stand for the operands; `$f` for their Rust type in the
//! operators that both widths have.

use wasmparser::{Operator, ValType};

/// An operator on numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumericOperator {
    pub(crate) operands: usize,
    pub(crate) result: ValType,
    pub(crate) text: &'static str,
}

const fn unary(result: ValType, text: &'static str) -> Option<NumericOperator> {
    Some(NumericOperator { operands: 1, result, text })
}

const fn binary(result: ValType, text: &'static str) -> Option<NumericOperator> {
    Some(NumericOperator { operands: 2, result, text })
}

use ValType::{F32, F64, I32, I64};

/// The operator on numbers that this is, if it is one.
pub(crate) fn numeric(operator: &Operator<'_>) -> Option<NumericOperator> {
    i32_arithmetic(operator)
        .or_else(|| i64_arithmetic(operator))
        .or_else(|| integer_comparison(operator))
        .or_else(|| float_comparison(operator))
        .or_else(|| f32_arithmetic(operator))
        .or_else(|| f64_arithmetic(operator))
        .or_else(|| conversion(operator))
        .or_else(|| truncation(operator))
}

fn i32_arithmetic(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::I32Clz => unary(I32, "$a.leading_zeros()"),
        Operator::I32Ctz => unary(I32, "$a.trailing_zeros()"),
        Operator::I32Popcnt => unary(I32, "$a.count_ones()"),
        Operator::I32Extend8S => unary(I32, "($a as i8 as u32)"),
        Operator::I32Extend16S => unary(I32, "($a as i16 as u32)"),
        Operator::I32Add => binary(I32, "$a.wrapping_add($b)"),
        Operator::I32Sub => binary(I32, "$a.wrapping_sub($b)"),
        Operator::I32Mul => binary(I32, "$a.wrapping_mul($b)"),
        Operator::I32DivS => binary(I32, "div_i32($a, $b)"),
        Operator::I32DivU => binary(I32, "div_u32($a, $b)"),
        Operator::I32RemS => binary(I32, "rem_i32($a, $b)"),
        Operator::I32RemU => binary(I32, "rem_u32($a, $b)"),
        Operator::I32And => binary(I32, "($a & $b)"),
        Operator::I32Or => binary(I32, "($a | $b)"),
        Operator::I32Xor => binary(I32, "($a ^ $b)"),
        Operator::I32Shl => binary(I32, "$a.wrapping_shl($b)"),
        Operator::I32ShrS => binary(I32, "(($a as i32).wrapping_shr($b) as u32)"),
        Operator::I32ShrU => binary(I32, "$a.wrapping_shr($b)"),
        Operator::I32Rotl => binary(I32, "$a.rotate_left($b & 31)"),
        Operator::I32Rotr => binary(I32, "$a.rotate_right($b & 31)"),
        _ => None,
    }
}

fn i64_arithmetic(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::I64Clz => unary(I64, "($a.leading_zeros() as u64)"),
        Operator::I64Ctz => unary(I64, "($a.trailing_zeros() as u64)"),
        Operator::I64Popcnt => unary(I64, "($a.count_ones() as u64)"),
        Operator::I64Extend8S => unary(I64, "($a as i8 as u64)"),
        Operator::I64Extend16S => unary(I64, "($a as i16 as u64)"),
        Operator::I64Extend32S => unary(I64, "($a as i32 as u64)"),
        Operator::I64Add => binary(I64, "$a.wrapping_add($b)"),
        Operator::I64Sub => binary(I64, "$a.wrapping_sub($b)"),
        Operator::I64Mul => binary(I64, "$a.wrapping_mul($b)"),
        Operator::I64DivS => binary(I64, "div_i64($a, $b)"),
        Operator::I64DivU => binary(I64, "div_u64($a, $b)"),
        Operator::I64RemS => binary(I64, "rem_i64($a, $b)"),
        Operator::I64RemU => binary(I64, "rem_u64($a, $b)"),
        Operator::I64And => binary(I64, "($a & $b)"),
        Operator::I64Or => binary(I64, "($a | $b)"),
        Operator::I64Xor => binary(I64, "($a ^ $b)"),
        Operator::I64Shl => binary(I64, "$a.wrapping_shl($b as u32)"),
        Operator::I64ShrS => binary(I64, "(($a as i64).wrapping_shr($b as u32) as u64)"),
        Operator::I64ShrU => binary(I64, "$a.wrapping_shr($b as u32)"),
        Operator::I64Rotl => binary(I64, "$a.rotate_left($b as u32 & 63)"),
        Operator::I64Rotr => binary(I64, "$a.rotate_right($b as u32 & 63)"),
        _ => None,
    }
}

fn integer_comparison(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::I32Eqz => unary(I32, "($a == 0) as u32"),
        Operator::I32Eq => binary(I32, "($a == $b) as u32"),
        Operator::I32Ne => binary(I32, "($a != $b) as u32"),
        Operator::I32LtS => binary(I32, "(($a as i32) < ($b as i32)) as u32"),
        Operator::I32LtU => binary(I32, "($a < $b) as u32"),
        Operator::I32GtS => binary(I32, "(($a as i32) > ($b as i32)) as u32"),
        Operator::I32GtU => binary(I32, "($a > $b) as u32"),
        Operator::I32LeS => binary(I32, "(($a as i32) <= ($b as i32)) as u32"),
        Operator::I32LeU => binary(I32, "($a <= $b) as u32"),
        Operator::I32GeS => binary(I32, "(($a as i32) >= ($b as i32)) as u32"),
        Operator::I32GeU => binary(I32, "($a >= $b) as u32"),
        Operator::I64Eqz => unary(I32, "($a == 0) as u32"),
        Operator::I64Eq => binary(I32, "($a == $b) as u32"),
        Operator::I64Ne => binary(I32, "($a != $b) as u32"),
        Operator::I64LtS => binary(I32, "(($a as i64) < ($b as i64)) as u32"),
        Operator::I64LtU => binary(I32, "($a < $b) as u32"),
        Operator::I64GtS => binary(I32, "(($a as i64) > ($b as i64)) as u32"),
        Operator::I64GtU => binary(I32, "($a > $b) as u32"),
        Operator::I64LeS => binary(I32, "(($a as i64) <= ($b as i64)) as u32"),
        Operator::I64LeU => binary(I32, "($a <= $b) as u32"),
        Operator::I64GeS => binary(I32, "(($a as i64) >= ($b as i64)) as u32"),
        Operator::I64GeU => binary(I32, "($a >= $b) as u32"),
        _ => None,
    }
}

fn float_comparison(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::F32Eq => binary(I32, "($a == $b) as u32"),
        Operator::F32Ne => binary(I32, "($a != $b) as u32"),
        Operator::F32Lt => binary(I32, "($a < $b) as u32"),
        Operator::F32Gt => binary(I32, "($a > $b) as u32"),
        Operator::F32Le => binary(I32, "($a <= $b) as u32"),
        Operator::F32Ge => binary(I32, "($a >= $b) as u32"),
        Operator::F64Eq => binary(I32, "($a == $b) as u32"),
        Operator::F64Ne => binary(I32, "($a != $b) as u32"),
        Operator::F64Lt => binary(I32, "($a < $b) as u32"),
        Operator::F64Gt => binary(I32, "($a > $b) as u32"),
        Operator::F64Le => binary(I32, "($a <= $b) as u32"),
        Operator::F64Ge => binary(I32, "($a >= $b) as u32"),
        _ => None,
    }
}

fn f32_arithmetic(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::F32Abs => unary(F32, "f32::from_bits($a.to_bits() & !(1 << 31))"),
        Operator::F32Neg => unary(F32, "f32::from_bits($a.to_bits() ^ (1 << 31))"),
        Operator::F32Sqrt => unary(F32, "sqrt_f32($a)"),
        Operator::F32Nearest => unary(F32, "round_f32::<0>($a)"),
        Operator::F32Floor => unary(F32, "round_f32::<1>($a)"),
        Operator::F32Ceil => unary(F32, "round_f32::<2>($a)"),
        Operator::F32Trunc => unary(F32, "round_f32::<3>($a)"),
        Operator::F32Add => binary(F32, "($a + $b)"),
        Operator::F32Sub => binary(F32, "($a - $b)"),
        Operator::F32Mul => binary(F32, "($a * $b)"),
        Operator::F32Div => binary(F32, "($a / $b)"),
        Operator::F32Min => binary(F32, "min_f32($a, $b)"),
        Operator::F32Max => binary(F32, "max_f32($a, $b)"),
        Operator::F32Copysign => binary(F32, "copysign_f32($a, $b)"),
        _ => None,
    }
}

fn f64_arithmetic(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::F64Abs => unary(F64, "f64::from_bits($a.to_bits() & !(1 << 63))"),
        Operator::F64Neg => unary(F64, "f64::from_bits($a.to_bits() ^ (1 << 63))"),
        Operator::F64Sqrt => unary(F64, "sqrt_f64($a)"),
        Operator::F64Nearest => unary(F64, "round_f64::<0>($a)"),
        Operator::F64Floor => unary(F64, "round_f64::<1>($a)"),
        Operator::F64Ceil => unary(F64, "round_f64::<2>($a)"),
        Operator::F64Trunc => unary(F64, "round_f64::<3>($a)"),
        Operator::F64Add => binary(F64, "($a + $b)"),
        Operator::F64Sub => binary(F64, "($a - $b)"),
        Operator::F64Mul => binary(F64, "($a * $b)"),
        Operator::F64Div => binary(F64, "($a / $b)"),
        Operator::F64Min => binary(F64, "min_f64($a, $b)"),
        Operator::F64Max => binary(F64, "max_f64($a, $b)"),
        Operator::F64Copysign => binary(F64, "copysign_f64($a, $b)"),
        _ => None,
    }
}

fn conversion(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::I32WrapI64 => unary(I32, "($a as u32)"),
        Operator::I64ExtendI32S => unary(I64, "($a as i32 as u64)"),
        Operator::I64ExtendI32U => unary(I64, "($a as u64)"),
        Operator::F32ConvertI32S => unary(F32, "($a as i32 as f32)"),
        Operator::F32ConvertI32U => unary(F32, "($a as f32)"),
        Operator::F32ConvertI64S => unary(F32, "($a as i64 as f32)"),
        Operator::F32ConvertI64U => unary(F32, "($a as f32)"),
        Operator::F32DemoteF64 => unary(F32, "($a as f32)"),
        Operator::F64ConvertI32S => unary(F64, "($a as i32 as f64)"),
        Operator::F64ConvertI32U => unary(F64, "($a as f64)"),
        Operator::F64ConvertI64S => unary(F64, "($a as i64 as f64)"),
        Operator::F64ConvertI64U => unary(F64, "($a as f64)"),
        Operator::F64PromoteF32 => unary(F64, "($a as f64)"),
        Operator::I32ReinterpretF32 => unary(I32, "$a.to_bits()"),
        Operator::I64ReinterpretF64 => unary(I64, "$a.to_bits()"),
        Operator::F32ReinterpretI32 => unary(F32, "f32::from_bits($a)"),
        Operator::F64ReinterpretI64 => unary(F64, "f64::from_bits($a)"),
        _ => None,
    }
}

fn truncation(operator: &Operator<'_>) -> Option<NumericOperator> {
    match operator {
        Operator::I32TruncF32S => unary(I32, "truncate_f32_i32($a)"),
        Operator::I32TruncF32U => unary(I32, "truncate_f32_u32($a)"),
        Operator::I32TruncF64S => unary(I32, "truncate_f64_i32($a)"),
        Operator::I32TruncF64U => unary(I32, "truncate_f64_u32($a)"),
        Operator::I64TruncF32S => unary(I64, "truncate_f32_i64($a)"),
        Operator::I64TruncF32U => unary(I64, "truncate_f32_u64($a)"),
        Operator::I64TruncF64S => unary(I64, "truncate_f64_i64($a)"),
        Operator::I64TruncF64U => unary(I64, "truncate_f64_u64($a)"),
        Operator::I32TruncSatF32S | Operator::I32TruncSatF64S => unary(I32, "($a as i32 as u32)"),
        Operator::I32TruncSatF32U => unary(I32, "($a as u32)"),
        Operator::I32TruncSatF64U => unary(I32, "($a as u32)"),
        Operator::I64TruncSatF32S => unary(I64, "($a as i64 as u64)"),
        Operator::I64TruncSatF64S => unary(I64, "($a as i64 as u64)"),
        Operator::I64TruncSatF32U => unary(I64, "($a as u64)"),
        Operator::I64TruncSatF64U => unary(I64, "($a as u64)"),
        _ => None,
    }
}
