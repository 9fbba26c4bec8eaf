//! Bytes as text: hexadecimal digits and base64.
//!
//! ```
//! use sandstorm_api::encoding::{base64, base64_url, from_base64, from_hex, hex};
//!
//! assert_eq!((hex(b"\x00\xff"), from_hex("00fF").unwrap()), ("00ff".into(), b"\x00\xff".to_vec()));
//! assert_eq!((base64(b"hi?>"), base64_url(b"hi?>")), ("aGk/Pg==".into(), "aGk_Pg".into()));
//! assert_eq!(from_base64("aGk/Pg==").unwrap(), b"hi?>");
//! assert_eq!(from_base64("aGk_Pg").unwrap(), b"hi?>");
//! assert_eq!(from_hex("0g").unwrap_err().text(), "\"0g\" is not hexadecimal: 'g' is no digit of it");
//! ```

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;

const HEX: &[u8; 16] = b"0123456789abcdef";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Characters of a wrong text that its error shows.
const SHOWN: usize = 40;

/// The error of a text that is not what it should be.
#[cold]
fn wrong(text: &str, what: &str, why: &str) -> Error {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    Error::invalid(format!("{shown:?} is not {what}: {why}"))
}

/// The first character of a text that is none of these.
#[cold]
fn first_wrong(text: &str, is_right: impl Fn(char) -> bool) -> String {
    let found = text.chars().find(|one| !is_right(*one)).unwrap_or_default();
    format!("{found:?} is no digit of it")
}

/// Two lower-case hexadecimal digits for each byte.
///
/// ```
/// assert_eq!(sandstorm_api::encoding::hex(&[0, 255]), "00ff");
/// ```
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    text
}

/// The bytes of pairs of hexadecimal digits, in lower or upper case.
///
/// ```
/// use sandstorm_api::encoding::from_hex;
/// assert_eq!(from_hex("00ff"), Ok(vec![0, 255]));
/// assert_eq!(from_hex("00f").unwrap_err().text(), "\"00f\" is not hexadecimal: it has half a pair of digits");
/// ```
///
/// # Errors
/// `Invalid`, with the text: there is another character, or half a pair.
pub fn from_hex(text: &str) -> Result<Vec<u8>, Error> {
    const WHAT: &str = "hexadecimal";
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for pair in text.as_bytes().chunks(2) {
        let (Some(high), low) = (digit(pair[0]), pair.get(1).map(|low| digit(*low))) else {
            return Err(wrong(text, WHAT, &first_wrong(text, |one| one.is_ascii_hexdigit())));
        };
        let Some(low) = low else { return Err(wrong(text, WHAT, "it has half a pair of digits")) };
        let Some(low) = low else {
            return Err(wrong(text, WHAT, &first_wrong(text, |one| one.is_ascii_hexdigit())));
        };
        bytes.push(high << 4 | low);
    }
    Ok(bytes)
}

/// Base64 (RFC 4648) with `+`, `/` and padding, as in mail and PEM.
///
/// ```
/// assert_eq!(sandstorm_api::encoding::base64(b"hello"), "aGVsbG8=");
/// ```
pub fn base64(bytes: &[u8]) -> String {
    let mut text = encode(bytes, BASE64);
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// Base64 with `-` and `_` and without padding, as in addresses and JSON web tokens.
///
/// ```
/// assert_eq!(sandstorm_api::encoding::base64_url(&[255, 255]), "__8");
/// ```
pub fn base64_url(bytes: &[u8]) -> String {
    encode(bytes, BASE64_URL)
}

fn encode(bytes: &[u8], digits: &[u8; 64]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut bits = 0;
        for at in 0..3 {
            bits = bits << 8 | u32::from(group.get(at).copied().unwrap_or(0));
        }
        for at in 0..=group.len() {
            let digit = bits >> (18 - 6 * at) & 63;
            text.push(char::from(digits[digit as usize]));
        }
    }
    text
}

/// The bytes of a base64 text of either kind, with padding or without.
///
/// ```
/// use sandstorm_api::encoding::from_base64;
/// assert_eq!(from_base64("aGVsbG8="), Ok(b"hello".to_vec()));
/// assert_eq!(from_base64("aG VsbG8=").unwrap_err().text(), "\"aG VsbG8=\" is not base64: its padding is wrong");
/// assert_eq!(from_base64("aG?s").unwrap_err().text(), "\"aG?s\" is not base64: '?' is no digit of it");
/// ```
///
/// # Errors
/// `Invalid`, with the text: it is none. That it could be written in another way (bits that are not 0 behind the last
/// byte) counts.
pub fn from_base64(text: &str) -> Result<Vec<u8>, Error> {
    const WHAT: &str = "base64";
    let digits = text.trim_end_matches('=').as_bytes();
    let padding = text.len() - digits.len();
    if padding > 0 && (padding > 2 || !text.len().is_multiple_of(4)) {
        return Err(wrong(text, WHAT, "its padding is wrong"));
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits: u32 = 0;
        for digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                _ => {
                    let is_digit = |one: char| one.is_ascii_alphanumeric() || "+-/_".contains(one);
                    return Err(wrong(text, WHAT, &first_wrong(text, is_digit)));
                }
            };
            bits = bits << 6 | u32::from(value);
        }
        // Bits of the digits that are there, and of the bytes that they make.
        let whole = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return Err(wrong(text, WHAT, "it has a digit too many")),
        };
        let rest = 6 * group.len() - 8 * whole;
        if bits & ((1 << rest) - 1) != 0 {
            return Err(wrong(text, WHAT, "there are bits behind its last byte"));
        }
        let value = bits >> rest;
        for at in (0..whole).rev() {
            bytes.push((value >> (8 * at)) as u8);
        }
    }
    Ok(bytes)
}
