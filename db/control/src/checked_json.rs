//! Files of one JSON value: an object with its `format`, and a last line with the SHA-256 of all that is before it. A
//! flipped bit is found, and what a later version of this program wrote is refused by name.
//!
//! Each kind of file has its own number of the format, and its first formats had no last line: what has no `format` is
//! of format 1. A file that is written by hand may be of such a format, too.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::Deserialize;

/// Beginning of the last line.
const CHECKSUM_WORD: &str = "sha256 ";
/// Bytes of the last line: its word, 64 digits, and the line feed.
const CHECKSUM_LINE_BYTES: usize = CHECKSUM_WORD.len() + 64 + 1;

/// The formats of a kind of file that this program reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonFormats {
    /// The first that is still read.
    pub(crate) oldest: u32,
    /// The one that is written.
    pub(crate) newest: u32,
    /// The first that has a checksum.
    pub(crate) first_checked: u32,
}

/// What is read of a value before the rest.
#[derive(Deserialize)]
struct AnyJsonFormat {
    #[serde(default = "first_format")]
    format: u64,
}

fn first_format() -> u64 {
    1
}

/// Returns the bytes of a file from the JSON of its value, which has a field `format`.
pub(crate) fn with_checksum(mut json: Vec<u8>) -> Vec<u8> {
    json.push(b'\n');
    let line = checksum_line(&json);
    json.extend_from_slice(line.as_bytes());
    json
}

/// Returns the format of a file, and its JSON, whose checksum is right.
///
/// # Errors
/// What is wrong with it, for people.
pub(crate) fn decode(bytes: &[u8], formats: JsonFormats) -> Result<(u32, &[u8]), String> {
    // Whatever a later format has behind the value: its number is told first.
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<AnyJsonFormat>();
    let first = values.next().ok_or_else(|| "it is empty".to_owned())?;
    let AnyJsonFormat { format } = first.map_err(|error| error.to_string())?;
    if format > u64::from(formats.newest) {
        return Err(format!(
            "it has format {format}, and this program reads formats up to {}: start the newer version that wrote it",
            formats.newest
        ));
    }
    let format = u32::try_from(format).unwrap_or(0);
    if format < formats.oldest {
        return Err(format!("it has format {format}, and this program reads formats from {} on", formats.oldest));
    }
    if format < formats.first_checked {
        return Ok((format, bytes));
    }
    let (json, line) = bytes.split_at(bytes.len().saturating_sub(CHECKSUM_LINE_BYTES));
    if !line.starts_with(CHECKSUM_WORD.as_bytes()) {
        return Err("it has no checksum at its end: it was cut off or changed".to_owned());
    }
    if line != checksum_line(json).as_bytes() {
        return Err("its checksum is wrong: it was changed or damaged".to_owned());
    }
    Ok((format, json))
}

/// A file of one number. Its first format was the number alone, as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberFile {
    /// The name of the number, a field of the file.
    pub(crate) field: &'static str,
}

/// What is read of a file of one number, beside the number.
const NUMBER_FORMATS: JsonFormats = JsonFormats { oldest: 2, newest: 2, first_checked: 2 };

impl NumberFile {
    /// Returns the bytes of the file with that number.
    pub(crate) fn encode(self, number: u64) -> Vec<u8> {
        let NumberFile { field } = self;
        with_checksum(format!("{{\"format\":2,\"{field}\":{number}}}").into_bytes())
    }

    /// Returns the number that a file has.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<u64, String> {
        let text = bytes.trim_ascii();
        if !text.is_empty() && text.iter().all(u8::is_ascii_digit) {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            return number.ok_or_else(|| "it has a number that is none of 64 bits".to_owned());
        }
        let (_, json) = decode(bytes, NUMBER_FORMATS)?;
        let fields: BTreeMap<String, u64> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        fields.get(self.field).copied().ok_or_else(|| format!("it has no field {}", self.field))
    }
}

/// Whether a field with that number is left out, as serde asks: it is then as if an earlier version had written it.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn checksum_line(json: &[u8]) -> String {
    format!("{CHECKSUM_WORD}{}\n", HEXLOWER.encode(digest(&SHA256, json).as_ref()))
}

#[cfg(test)]
mod tests {
    //! Promise: what was written is read, and whatever bit of it is another one, or wherever it ends, it is refused.

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const FORMATS: JsonFormats = JsonFormats { oldest: 1, newest: 2, first_checked: 2 };

    #[derive(Debug, PartialEq, Deserialize, serde::Serialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        format: u32,
        names: Vec<String>,
        number: u64,
    }

    /// As the users of this module read a file.
    fn read(bytes: &[u8]) -> Result<Content, String> {
        let (_, json) = decode(bytes, FORMATS)?;
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }

    fn some_content(random: &mut SmallRng) -> Content {
        let letters: Vec<char> = "ab1 \"\\\n{}[]:,é\u{1f600}\u{0}".chars().collect();
        let mut name = || -> String {
            let length = random.random_range(0..9);
            (0..length).map(|_| letters[random.random_range(0..letters.len())]).collect()
        };
        let names = (0..4).map(|_| name()).collect();
        Content { format: 2, names, number: random.random() }
    }

    #[test]
    fn what_was_written_is_read_and_no_flipped_bit_or_cut_passes() {
        for seed in 0..50 {
            let random = &mut SmallRng::seed_from_u64(seed);
            let content = some_content(random);
            let json = if seed % 2 == 0 { serde_json::to_vec(&content) } else { serde_json::to_vec_pretty(&content) };
            let bytes = with_checksum(json.unwrap());
            assert_eq!(read(&bytes), Ok(content), "seed {seed}");
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 1 << random.random_range(0..8);
                assert!(read(&other).is_err(), "seed {seed}, byte {at}: {}", String::from_utf8_lossy(&other));
                assert!(read(&bytes[..at]).is_err(), "seed {seed}, {at} bytes of {}", bytes.len());
            }
        }
    }

    #[test]
    fn a_file_of_a_number_is_read_in_both_formats_and_no_flipped_bit_or_cut_passes() {
        let file = NumberFile { field: "last" };
        for number in [0, 7, 1_000_000, u64::MAX] {
            let bytes = file.encode(number);
            assert_eq!(file.decode(&bytes), Ok(number));
            assert_eq!(file.decode(format!("{number}\n").as_bytes()), Ok(number), "as the first format had it");
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    assert!(file.decode(&other).is_err(), "{}", String::from_utf8_lossy(&other));
                }
                assert!(file.decode(&bytes[..at]).is_err(), "{at} bytes of {}", bytes.len());
            }
        }
        let wrong = |bytes: &[u8]| file.decode(bytes).unwrap_err();
        for bad in ["", "seven\n", "18446744073709551616\n", "-1\n", "7 8\n", "{}\n"] {
            assert!(file.decode(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(wrong(b"{\"format\":3,\"last\":7}\n").contains("start the newer version"));
        let other = NumberFile { field: "position" }.encode(7);
        assert!(wrong(&other).contains("no field last"), "it is a file of another number");
    }

    #[test]
    fn formats_that_are_not_read_are_named() {
        let json = |format: &str| format!("{{{format}\"names\":[],\"number\":1}}");
        let first = read(json("\"format\":1,").as_bytes()).unwrap();
        assert_eq!((first.format, first.number), (1, 1));
        assert_eq!(decode(json("").as_bytes(), FORMATS).map(|(format, _)| format), Ok(1), "it is not named there");
        let refused = |bytes: &[u8], formats| decode(bytes, formats).unwrap_err();
        assert!(refused(json("\"format\":2,").as_bytes(), FORMATS).contains("no checksum"));
        for newer in [
            json("\"format\":3,"),
            json("\"format\":3,") + "\nsomething else",
            json("\"format\":18446744073709551615,"),
        ] {
            let why = refused(newer.as_bytes(), FORMATS);
            assert!(why.contains("reads formats up to 2: start the newer version"), "{why}");
        }
        let later = JsonFormats { oldest: 2, ..FORMATS };
        assert!(refused(json("").as_bytes(), later).contains("it has format 1, and this program reads formats from 2"));
        assert!(refused(json("\"format\":0,").as_bytes(), FORMATS).contains("format 0"));
        for none in ["", "  ", "{", "1", "{\"format\":-1}"] {
            assert!(decode(none.as_bytes(), FORMATS).is_err(), "{none:?}");
        }
    }
}
