use core::arch::asm;

// A panic cannot happen in what follows: no indexing, no checked arithmetic. The compiler asks for a handler all the
// same.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// Ends the invocation: an illegal instruction.
#[inline(always)]
unsafe fn trap() -> ! {
    unsafe { asm!("ud2", options(noreturn, nostack)) }
}

// Ends the invocation: a division by zero.
#[inline(always)]
unsafe fn trap_division() -> ! {
    unsafe { asm!("xor eax, eax", "div eax", "ud2", options(noreturn, nostack)) }
}

// Ends the invocation: an access outside of its memory.
#[inline(always)]
unsafe fn trap_memory() -> ! {
    unsafe { asm!("mov eax, -16", "mov eax, dword ptr gs:[eax]", "ud2", options(noreturn, nostack)) }
}

// The address is 32 bits long; the processor adds nothing to it, or a constant to the 64-bit register that the
// instruction before has set by its lower half.
macro_rules! load {
    ($name:ident, $type:ty, $register:ident, $at:literal, $offset:literal) => {
        #[inline(always)]
        unsafe fn $name<const OFFSET: u32>(address: u32) -> $type {
            let value: $type;
            unsafe {
                if OFFSET == 0 {
                    asm!($at, value = lateout($register) value, address = in(reg) address,
                        options(pure, readonly, nostack, preserves_flags));
                } else {
                    asm!("mov {wide:e}, {address:e}", $offset, value = lateout($register) value, address = in(reg) address,
                        wide = out(reg) _, offset = const OFFSET, options(pure, readonly, nostack, preserves_flags));
                }
            }
            value
        }
    };
}

macro_rules! store {
    ($name:ident, $type:ty, $register:ident, $at:literal, $offset:literal) => {
        #[inline(always)]
        unsafe fn $name<const OFFSET: u32>(address: u32, value: $type) {
            unsafe {
                if OFFSET == 0 {
                    asm!($at, value = in($register) value, address = in(reg) address, options(nostack, preserves_flags));
                } else {
                    asm!("mov {wide:e}, {address:e}", $offset, value = in($register) value, address = in(reg) address,
                        wide = out(reg) _, offset = const OFFSET, options(nostack, preserves_flags));
                }
            }
        }
    };
}

load!(load_u8, u32, reg, "movzx {value:e}, byte ptr gs:[{address:e}]", "movzx {value:e}, byte ptr gs:[{wide} + {offset}]");
load!(load_i8, u32, reg, "movsx {value:e}, byte ptr gs:[{address:e}]", "movsx {value:e}, byte ptr gs:[{wide} + {offset}]");
load!(load_u16, u32, reg, "movzx {value:e}, word ptr gs:[{address:e}]", "movzx {value:e}, word ptr gs:[{wide} + {offset}]");
load!(load_i16, u32, reg, "movsx {value:e}, word ptr gs:[{address:e}]", "movsx {value:e}, word ptr gs:[{wide} + {offset}]");
load!(load_u32, u32, reg, "mov {value:e}, dword ptr gs:[{address:e}]", "mov {value:e}, dword ptr gs:[{wide} + {offset}]");
load!(load_i8_64, u64, reg, "movsx {value:r}, byte ptr gs:[{address:e}]", "movsx {value:r}, byte ptr gs:[{wide} + {offset}]");
load!(load_i16_64, u64, reg, "movsx {value:r}, word ptr gs:[{address:e}]", "movsx {value:r}, word ptr gs:[{wide} + {offset}]");
load!(load_i32_64, u64, reg, "movsxd {value:r}, dword ptr gs:[{address:e}]", "movsxd {value:r}, dword ptr gs:[{wide} + {offset}]");
load!(load_u64, u64, reg, "mov {value:r}, qword ptr gs:[{address:e}]", "mov {value:r}, qword ptr gs:[{wide} + {offset}]");
load!(load_f32, f32, xmm_reg, "movss {value}, dword ptr gs:[{address:e}]", "movss {value}, dword ptr gs:[{wide} + {offset}]");
load!(load_f64, f64, xmm_reg, "movsd {value}, qword ptr gs:[{address:e}]", "movsd {value}, qword ptr gs:[{wide} + {offset}]");
store!(store_u8, u32, reg, "mov byte ptr gs:[{address:e}], {value:l}", "mov byte ptr gs:[{wide} + {offset}], {value:l}");
store!(store_u16, u32, reg, "mov word ptr gs:[{address:e}], {value:x}", "mov word ptr gs:[{wide} + {offset}], {value:x}");
store!(store_u32, u32, reg, "mov dword ptr gs:[{address:e}], {value:e}", "mov dword ptr gs:[{wide} + {offset}], {value:e}");
store!(store_u64, u64, reg, "mov qword ptr gs:[{address:e}], {value:r}", "mov qword ptr gs:[{wide} + {offset}], {value:r}");
store!(store_f32, f32, xmm_reg, "movss dword ptr gs:[{address:e}], {value}", "movss dword ptr gs:[{wide} + {offset}], {value}");
store!(store_f64, f64, xmm_reg, "movsd qword ptr gs:[{address:e}], {value}", "movsd qword ptr gs:[{wide} + {offset}], {value}");

// The module's variables lie below its memory.
#[inline(always)]
unsafe fn get_global<const AT: i32>() -> u64 {
    let value: u64;
    unsafe { asm!("mov {value}, qword ptr gs:[{at}]", value = lateout(reg) value, at = const AT,
        options(pure, readonly, nostack, preserves_flags)) };
    value
}

#[inline(always)]
unsafe fn get_global_u32<const AT: i32>() -> u32 {
    let value: u32;
    unsafe { asm!("mov {value:e}, dword ptr gs:[{at}]", value = lateout(reg) value, at = const AT,
        options(pure, readonly, nostack, preserves_flags)) };
    value
}

#[inline(always)]
unsafe fn set_global<const AT: i32>(value: u64) {
    unsafe { asm!("mov qword ptr gs:[{at}], {value}", value = in(reg) value, at = const AT,
        options(nostack, preserves_flags)) };
}

#[inline(always)]
unsafe fn set_global_u32<const AT: i32>(value: u32) {
    unsafe { asm!("mov dword ptr gs:[{at}], {value:e}", value = in(reg) value, at = const AT,
        options(nostack, preserves_flags)) };
}

#[inline(always)]
unsafe fn div_i32(a: u32, b: u32) -> u32 {
    match (a as i32).checked_div(b as i32) {
        Some(quotient) => quotient as u32,
        None => unsafe { if b == 0 { trap_division() } else { trap() } },
    }
}

#[inline(always)]
unsafe fn div_u32(a: u32, b: u32) -> u32 {
    match a.checked_div(b) {
        Some(quotient) => quotient,
        None => unsafe { trap_division() },
    }
}

#[inline(always)]
unsafe fn rem_i32(a: u32, b: u32) -> u32 {
    if b == 0 {
        unsafe { trap_division() }
    }
    (a as i32).checked_rem(b as i32).unwrap_or(0) as u32
}

#[inline(always)]
unsafe fn rem_u32(a: u32, b: u32) -> u32 {
    match a.checked_rem(b) {
        Some(rest) => rest,
        None => unsafe { trap_division() },
    }
}

#[inline(always)]
unsafe fn div_i64(a: u64, b: u64) -> u64 {
    match (a as i64).checked_div(b as i64) {
        Some(quotient) => quotient as u64,
        None => unsafe { if b == 0 { trap_division() } else { trap() } },
    }
}

#[inline(always)]
unsafe fn div_u64(a: u64, b: u64) -> u64 {
    match a.checked_div(b) {
        Some(quotient) => quotient,
        None => unsafe { trap_division() },
    }
}

#[inline(always)]
unsafe fn rem_i64(a: u64, b: u64) -> u64 {
    if b == 0 {
        unsafe { trap_division() }
    }
    (a as i64).checked_rem(b as i64).unwrap_or(0) as u64
}

#[inline(always)]
unsafe fn rem_u64(a: u64, b: u64) -> u64 {
    match a.checked_rem(b) {
        Some(rest) => rest,
        None => unsafe { trap_division() },
    }
}

macro_rules! float {
    ($type:ty, $bits:ty, $sqrt:ident, $round:ident, $min:ident, $max:ident, $copysign:ident, $sqrt_text:literal, $round_text:literal) => {
        #[inline(always)]
        unsafe fn $sqrt(a: $type) -> $type {
            let value: $type;
            unsafe { asm!($sqrt_text, value = lateout(xmm_reg) value, a = in(xmm_reg) a, options(pure, nomem, nostack, preserves_flags)) };
            value
        }

        // 0: to nearest, 1: down, 2: up, 3: towards zero; 8: no inexact exception.
        #[inline(always)]
        unsafe fn $round<const MODE: u8>(a: $type) -> $type {
            let value: $type;
            unsafe { asm!($round_text, value = lateout(xmm_reg) value, a = in(xmm_reg) a, mode = const MODE + 8,
                options(pure, nomem, nostack, preserves_flags)) };
            value
        }

        #[inline(always)]
        fn $min(a: $type, b: $type) -> $type {
            if a != a || b != b {
                a + b
            } else if a == b {
                <$type>::from_bits(a.to_bits() | b.to_bits())
            } else if a < b {
                a
            } else {
                b
            }
        }

        #[inline(always)]
        fn $max(a: $type, b: $type) -> $type {
            if a != a || b != b {
                a + b
            } else if a == b {
                <$type>::from_bits(a.to_bits() & b.to_bits())
            } else if a > b {
                a
            } else {
                b
            }
        }

        #[inline(always)]
        fn $copysign(a: $type, b: $type) -> $type {
            let sign = (1 as $bits) << (<$bits>::BITS - 1);
            <$type>::from_bits(a.to_bits() & !sign | b.to_bits() & sign)
        }
    };
}

float!(f32, u32, sqrt_f32, round_f32, min_f32, max_f32, copysign_f32, "sqrtss {value}, {a}", "roundss {value}, {a}, {mode}");
float!(f64, u64, sqrt_f64, round_f64, min_f64, max_f64, copysign_f64, "sqrtsd {value}, {a}", "roundsd {value}, {a}, {mode}");

macro_rules! truncate {
    ($name:ident, $float:ty, $to:ty, $result:ty, $low:expr, $high:expr) => {
        #[inline(always)]
        unsafe fn $name(a: $float) -> $result {
            // Not a number compares with nothing.
            if a > $low && a < $high {
                return (a as $to) as $result;
            }
            unsafe { trap() }
        }
    };
}

truncate!(truncate_f32_i32, f32, i32, u32, -2147483904.0, 2147483648.0);
truncate!(truncate_f32_u32, f32, u32, u32, -1.0, 4294967296.0);
truncate!(truncate_f64_i32, f64, i32, u32, -2147483649.0, 2147483648.0);
truncate!(truncate_f64_u32, f64, u32, u32, -1.0, 4294967296.0);
truncate!(truncate_f32_i64, f32, i64, u64, -9223373136366403584.0, 9223372036854775808.0);
truncate!(truncate_f32_u64, f32, u64, u64, -1.0, 18446744073709551616.0);
truncate!(truncate_f64_i64, f64, i64, u64, -9223372036854777856.0, 9223372036854775808.0);
truncate!(truncate_f64_u64, f64, u64, u64, -1.0, 18446744073709551616.0);

// Copies up to so many bytes by itself; more are the host's business.
const SMALL_BYTES: u32 = 128;

#[inline(never)]
unsafe fn copy_memory(to: u32, from: u32, len: u32) {
    unsafe {
        if len > SMALL_BYTES {
            return copy_many(to, from, len);
        }
        if len >= 16 {
            if to.wrapping_sub(from) >= len {
                let mut at = 0;
                while at + 8 <= len {
                    store_u64::<0>(to.wrapping_add(at), load_u64::<0>(from.wrapping_add(at)));
                    at += 8;
                }
                copy_tail(to.wrapping_add(at), from.wrapping_add(at), len - at);
                return;
            }
            // The ranges overlap, and the last bytes come first.
            let mut left = len;
            while left >= 8 {
                left -= 8;
                store_u64::<0>(to.wrapping_add(left), load_u64::<0>(from.wrapping_add(left)));
            }
            copy_tail(to, from, left);
            return;
        }
        copy_tail(to, from, len)
    }
}

// Up to 16 bytes: all are read before the first is written.
#[inline(always)]
unsafe fn copy_tail(to: u32, from: u32, len: u32) {
    unsafe {
        if len >= 8 {
            let (first, last) = (load_u64::<0>(from), load_u64::<0>(from.wrapping_add(len - 8)));
            store_u64::<0>(to, first);
            store_u64::<0>(to.wrapping_add(len - 8), last);
        } else if len >= 4 {
            let (first, last) = (load_u32::<0>(from), load_u32::<0>(from.wrapping_add(len - 4)));
            store_u32::<0>(to, first);
            store_u32::<0>(to.wrapping_add(len - 4), last);
        } else if len >= 2 {
            let (first, last) = (load_u16::<0>(from), load_u16::<0>(from.wrapping_add(len - 2)));
            store_u16::<0>(to, first);
            store_u16::<0>(to.wrapping_add(len - 2), last);
        } else if len == 1 {
            store_u8::<0>(to, load_u8::<0>(from));
        }
    }
}

#[inline(never)]
unsafe fn fill_memory(to: u32, byte: u32, len: u32) {
    unsafe {
        if len > SMALL_BYTES {
            return fill_many(to, byte, len);
        }
        let word = (byte as u8 as u64).wrapping_mul(0x0101_0101_0101_0101);
        let mut at = 0;
        while at + 8 <= len {
            store_u64::<0>(to.wrapping_add(at), word);
            at += 8;
        }
        while at < len {
            store_u8::<0>(to.wrapping_add(at), byte);
            at += 1;
        }
    }
}

// The host copies a piece at a time: a switch to another invocation waits for the end of a call.
#[cold]
#[inline(never)]
unsafe fn copy_many(to: u32, from: u32, len: u32) {
    unsafe {
        let mut left = len;
        if to.wrapping_sub(from) >= len {
            let mut at = 0_u32;
            while left > 0 {
                let piece = if left < PIECE_BYTES { left } else { PIECE_BYTES };
                host_copy(to.wrapping_add(at), from.wrapping_add(at), piece);
                at = at.wrapping_add(piece);
                left -= piece;
            }
        } else {
            while left > 0 {
                let piece = if left < PIECE_BYTES { left } else { PIECE_BYTES };
                left -= piece;
                host_copy(to.wrapping_add(left), from.wrapping_add(left), piece);
            }
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn fill_many(to: u32, byte: u32, len: u32) {
    unsafe {
        let (mut at, mut left) = (to, len);
        while left > 0 {
            let piece = if left < PIECE_BYTES { left } else { PIECE_BYTES };
            host_fill(at, byte, piece);
            at = at.wrapping_add(piece);
            left -= piece;
        }
    }
}
