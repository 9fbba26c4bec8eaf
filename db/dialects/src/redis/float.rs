//! Sums of decimal fractions as in Redis: an x87 number of 64 significant bits, written with 17 digits behind the point
//! and no zeros at the end.

use crate::limits::redis::FLOAT_BYTES;

/// The reason that there is no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatSumError {
    NotANumber,
    Infinite,
}

/// A number: `mantissa * 2^exponent`, with the highest bit of the mantissa set unless it is zero.
#[derive(Clone, Copy, Debug)]
struct ExtendedFloat {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// Rounds to 64 bits, to even; `sticky` is whether there are more bits behind the last one.
fn rounded(negative: bool, number: u128, exponent: i32, sticky: bool) -> ExtendedFloat {
    let bits = (u128::BITS - number.leading_zeros()) as i32;
    let shift = bits - 64;
    if shift <= 0 {
        let mantissa = if number == 0 { 0 } else { (number as u64) << -shift };
        return ExtendedFloat { negative, mantissa, exponent: exponent + shift };
    }
    let (mut mantissa, rest) = (number >> shift, number & ((1 << shift) - 1));
    let half = 1u128 << (shift - 1);
    let mut exponent = exponent + shift;
    if rest > half || rest == half && (sticky || mantissa & 1 == 1) {
        mantissa += 1;
        if mantissa >> 64 != 0 {
            (mantissa, exponent) = (mantissa >> 1, exponent + 1);
        }
    }
    ExtendedFloat { negative, mantissa: mantissa as u64, exponent }
}

impl ExtendedFloat {
    fn of_f64(number: f64) -> ExtendedFloat {
        let bits = number.to_bits();
        let (raw, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
        let (mantissa, exponent) = if raw == 0 { (fraction, -1074) } else { (fraction | 1 << 52, raw as i32 - 1075) };
        rounded(number.is_sign_negative(), mantissa.into(), exponent, false)
    }

    /// Parses digits and a power of ten: exact if 38 digits hold all that is before the point, else through 53 bits.
    fn parse(text: &[u8]) -> Option<ExtendedFloat> {
        let text = std::str::from_utf8(text).ok()?;
        let plain = !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
        if !plain {
            let infinite = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
            return matches!(&*infinite, "inf" | "infinity").then(|| ExtendedFloat {
                negative: text.starts_with('-'),
                mantissa: 1 << 63,
                exponent: i32::MAX / 2,
            });
        }
        let approximate: f64 = text.parse().ok()?;
        if !approximate.is_finite() {
            return None;
        }
        Some(ExtendedFloat::exact(text).unwrap_or_else(|| ExtendedFloat::of_f64(approximate)))
    }

    fn exact(text: &str) -> Option<ExtendedFloat> {
        let negative = text.starts_with('-');
        let (digits, power) = match text.split_once(['e', 'E']) {
            Some((digits, power)) => (digits, power.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let digits = digits.trim_start_matches(['+', '-']);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        // 38 digits; of those behind them, their number and whether any of them is not a zero.
        let (mut number, mut dropped, mut more) = (0u128, 0, false);
        for digit in whole.bytes().chain(fraction.bytes()).map(|digit| u128::from(digit - b'0')) {
            if number < 10u128.pow(37) {
                number = number * 10 + digit;
            } else {
                (dropped, more) = (dropped + 1, more || digit != 0);
            }
        }
        let power = power.checked_sub(i32::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
        if number == 0 {
            return Some(ExtendedFloat { negative, mantissa: 0, exponent: 0 });
        }
        if power >= 0 {
            let number = 10u128.checked_pow(power as u32)?.checked_mul(number)?;
            return Some(rounded(negative, number, 0, more));
        }
        // A quotient of 66 bits or more, by long division, and whether there is a remainder. 10^38 fits with one bit to
        // spare.
        let divisor = 10u128.checked_pow(power.unsigned_abs())?;
        let (mut quotient, mut left, mut shift) = (number / divisor, number % divisor, 0);
        while quotient >> 65 == 0 {
            left <<= 1;
            let bit = left >= divisor;
            quotient = quotient << 1 | u128::from(bit);
            left -= if bit { divisor } else { 0 };
            shift -= 1;
        }
        Some(rounded(negative, quotient, shift, more || left != 0))
    }

    fn plus(self, other: ExtendedFloat) -> ExtendedFloat {
        let (large, small) = if (self.mantissa, self.exponent) == (0, self.exponent)
            || other.mantissa != 0 && other.exponent > self.exponent
        {
            (other, self)
        } else {
            (self, other)
        };
        if small.mantissa == 0 {
            return large;
        }
        // The larger one with 62 bits behind it, and the smaller one aligned to it.
        let distance = large.exponent.saturating_sub(small.exponent);
        let (high, low) = (u128::from(large.mantissa) << 62, u128::from(small.mantissa) << 62);
        let (low, sticky) = match u32::try_from(distance) {
            Ok(shift @ 0..=127) => (low >> shift, low & ((1u128 << shift) - 1) != 0),
            _ => (0, true),
        };
        let exponent = large.exponent - 62;
        if large.negative == small.negative {
            return rounded(large.negative, high + low, exponent, sticky);
        }
        let low = low + u128::from(sticky);
        match high.checked_sub(low) {
            Some(0) => ExtendedFloat { negative: false, mantissa: 0, exponent: 0 },
            Some(difference) => rounded(large.negative, difference, exponent, sticky),
            None => rounded(small.negative, low - high, exponent, sticky),
        }
    }

    /// The digits, 17 of them behind the point, rounded to even; no zeros at the end. `None`: too many before the
    /// point.
    fn text(self) -> Option<String> {
        const SCALE: u128 = 100_000_000_000_000_000;
        let (whole, fraction) = match self.exponent {
            0..=63 => (u128::from(self.mantissa) << self.exponent, 0),
            -190..=-1 => {
                let (scaled, shift) = (u128::from(self.mantissa) * SCALE, self.exponent.unsigned_abs());
                let (mut number, rest, half) = match shift {
                    1..=127 => (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1)),
                    _ => (0, 0, 1),
                };
                if rest > half || rest == half && number & 1 == 1 {
                    number += 1;
                }
                (number / SCALE, number % SCALE)
            }
            i32::MIN..=-191 => (0, 0),
            _ => return None,
        };
        let digits = format!("{whole}.{fraction:017}");
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        let sign = if self.negative && digits != "0" { "-" } else { "" };
        Some(format!("{sign}{digits}"))
    }
}

/// The sum of two numbers in decimal.
pub(super) fn add_decimals(a: &[u8], b: &[u8]) -> Result<String, FloatSumError> {
    let parse = |text: &[u8]| {
        let number = if text.len() < FLOAT_BYTES { ExtendedFloat::parse(text) } else { None };
        number.ok_or(FloatSumError::NotANumber)
    };
    let sum = parse(a)?.plus(parse(b)?);
    if sum.exponent > 16_320 {
        return Err(FloatSumError::Infinite);
    }
    sum.text().map_or_else(
        || {
            // Beyond 38 digits: as exact as 53 bits are.
            let value = (sum.mantissa as f64) * 2f64.powi(sum.exponent);
            if value.is_finite() {
                Ok(format!("{}{value:.0}", if sum.negative { "-" } else { "" }))
            } else {
                Err(FloatSumError::Infinite)
            }
        },
        Ok,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("3", "1.1", "4.1"),
            ("0", "1.23456789012345678", "1.23456789012345678"),
            ("1e17", "0.5", "100000000000000000.5"),
            ("-0.5", "0.5", "0"),
            ("0.19223372036854775807", "0.00000001", "0.19223373036854776"),
            ("0.192233720368547758079223372036854775807922337203685477580", "0.00000001", "0.19223373036854776"),
            ("0.00000000000000000000000000000000000001", "1", "1"),
            ("12345678901234567890.1234567890123456789012345678901234567890", "0", "12345678901234567890"),
        ] {
            assert_eq!(add_decimals(a.as_bytes(), b.as_bytes()).as_deref(), Ok(expected), "{a} + {b}");
        }
        for bad in ["", "abc", " 1", "1 ", "nan", "1e", "--1", "0x1p"] {
            assert_eq!(add_decimals(bad.as_bytes(), b"1"), Err(FloatSumError::NotANumber), "{bad}");
        }
        assert_eq!(add_decimals(b"1", b"inf"), Err(FloatSumError::Infinite));
    }
}
