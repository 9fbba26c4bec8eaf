//! Words and numbers of a line, read as the C library reads them.

use std::sync::LazyLock;

use data_encoding::{BASE64, Encoding};

/// The words of a line, which single blanks or several stand between.
#[derive(Clone, Copy, Debug)]
pub struct LineTokens<'i> {
    rest: &'i [u8],
}

impl<'i> LineTokens<'i> {
    /// The words of a line without its end.
    pub fn new(line: &'i [u8]) -> LineTokens<'i> {
        LineTokens { rest: line }
    }

    /// Returns the words that have not been taken yet.
    pub fn rest(&self) -> &'i [u8] {
        self.rest
    }
}

impl PartialEq for LineTokens<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rest() == other.rest()
    }
}

impl Eq for LineTokens<'_> {}

impl<'i> Iterator for LineTokens<'i> {
    type Item = &'i [u8];

    #[inline]
    fn next(&mut self) -> Option<&'i [u8]> {
        let blanks = self.rest.iter().take_while(|byte| **byte == b' ').count();
        let word = &self.rest[blanks..];
        let len = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        let (word, rest) = word.split_at(len);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Parses a sign and a magnitude as `strtol` and its like do: blanks before it, a sign, digits, and then the end, a
/// blank or a zero byte. Returns `None` for anything else, and where 64 bits are not enough.
fn parse_signed(text: &[u8]) -> Option<(bool, u64)> {
    let text = &text[text.iter().take_while(|byte| is_space(**byte)).count()..];
    let (negative, text) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = text.get(digits).is_none_or(|byte| is_space(*byte) || *byte == 0);
    if digits == 0 || !ends {
        return None;
    }
    let add = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    text[..digits].iter().try_fold(0, add).map(|number| (negative, number))
}

/// A number from 0 to 2^64 - 1. A minus is read, too, if the result, modulo 2^64, is below 2^63.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    let (negative, number) = parse_signed(text)?;
    let number = if negative { number.wrapping_neg() } else { number };
    (!negative || number < 1 << 63).then_some(number)
}

/// A number of 32 bits with a sign: of one of 64 bits, its lower 32.
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    let (negative, number) = parse_signed(text)?;
    let number = i128::from(number) * if negative { -1 } else { 1 };
    i64::try_from(number).ok().map(|number| number as i32)
}

/// A number of 32 bits without a sign. A larger one is cut to its lower 32 bits.
pub fn parse_flags(text: &[u8]) -> Option<u32> {
    parse_u64(text).map(|number| number as u32)
}

/// Base64 as memcached reads it: bits of the last letter that stand for no byte may have any value.
static BASE64_LENIENT: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = BASE64.specification();
    specification.check_trailing_bits = false;
    // It is a specification of the library's own, but for one check.
    specification.encoding().unwrap_or(BASE64)
});

/// Bytes that a base64 text stands for, in `into`. `None` if it is not base64, or may be longer than `into`.
pub fn decode_base64<'b>(text: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    // The library takes padded texts in a row for one text.
    if text.is_empty() || text.iter().rev().skip(padding).any(|byte| *byte == b'=') {
        return None;
    }
    let into = into.get_mut(..BASE64_LENIENT.decode_len(text.len()).ok()?)?;
    let len = BASE64_LENIENT.decode_mut(text, into).ok()?;
    into.get(..len)
}

/// Appends bytes as base64.
pub fn push_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + BASE64.encode_len(bytes.len()), 0);
    if let Some(text) = out.get_mut(start..) {
        BASE64.encode_mut(bytes, text);
    }
}

/// Appends a number in decimal.
#[inline]
pub fn push_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("+12", Some(12)),
            (" \t12 x", Some(12)),
            ("12x", None),
            ("", None),
            ("-", None),
            ("-1", None),
            ("-0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
        ] {
            assert_eq!(parse_u64(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(parse_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(
            (parse_i32(b"4294967298"), parse_i32(b"9223372036854775808"), parse_i32(b"x")),
            (Some(2), None, None)
        );
        assert_eq!(parse_flags(b"4294967295"), Some(u32::MAX));
    }

    #[test]
    fn base64_is_read_as_memcached_reads_it() {
        for (text, expected) in [
            ("QUJD", Some("ABC")),
            ("QUI=", Some("AB")),
            ("QQ==", Some("A")),
            // Bits that stand for no byte.
            ("QUJ=", Some("AB")),
            ("QR==", Some("A")),
            ("QQ==QQ==", None),
            ("Q=Q=", None),
            ("A===", None),
            ("====", None),
            ("QQ=", None),
            ("QUJD\n", None),
            ("", None),
        ] {
            assert_eq!(decode_base64(text.as_bytes(), &mut [0; 16]), expected.map(str::as_bytes), "{text:?}");
        }
        assert_eq!(decode_base64(b"QUJDQUJD", &mut [0; 5]), None, "longer than the buffer");
    }

    proptest! {
        #[test]
        fn base64_goes_there_and_back(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            let (mut text, mut buffer) = (Vec::new(), [0; 256]);
            push_base64(&bytes, &mut text);
            prop_assert_eq!(decode_base64(&text, &mut buffer), Some(&bytes[..]));
        }

        #[test]
        fn words_are_what_a_split_finds(line in "[a-c ]{0,40}") {
            let expected: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
            let found: Vec<_> = LineTokens::new(line.as_bytes()).map(|word| std::str::from_utf8(word).unwrap()).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn numbers_are_written_as_anybody_writes_them(number in any::<u64>()) {
            let mut out = Vec::new();
            push_number(number, &mut out);
            prop_assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
