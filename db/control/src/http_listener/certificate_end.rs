//! When a certificate ends: the one field of it that an operator has to know in time.

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's validity, in seconds since 1970; `None` if the bytes are not what a certificate begins
/// with.
pub(super) fn not_after_s(certificate: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(certificate)?;
    let (_, signed, _) = element(certificate)?;
    let mut rest = signed;
    if let (VERSION, _, after) = element(rest)? {
        rest = after;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (_, _, after) = element(validity)?;
    let (tag, time, _) = element(after)?;
    let digits: Vec<i64> =
        time.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| i64::from(byte - b'0')).collect();
    let number = |from: usize, count: usize| -> Option<i64> {
        Some(digits.get(from..from + count)?.iter().fold(0, |number, digit| 10 * number + digit))
    };
    let (year, at) = match tag {
        // Two digits stand for 1950 to 2049.
        UTC_TIME => (number(0, 2).map(|year| if year < 50 { 2_000 + year } else { 1_900 + year })?, 2),
        GENERALIZED_TIME => (number(0, 4)?, 4),
        _ => return None,
    };
    let (month, day) = (number(at, 2)?, number(at + 2, 2)?);
    let seconds = 3_600 * number(at + 4, 2)? + 60 * number(at + 6, 2)? + number(at + 8, 2)?;
    Some(86_400 * days_since_1970(year, month, day) + seconds)
}

/// An element of DER: its tag, its content, and what is behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        let count = length & 0x7f;
        if count > 4 {
            return None;
        }
        length = rest.get(..count)?.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
        rest = rest.get(count..)?;
    }
    Some((*tag, rest.get(..length)?, rest.get(length..)?))
}

/// Days between 1 January 1970 and a date of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March: a leap day is their last.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_in_either_form_of_a_date() {
        for (year, expected) in
            [(2030, 1_894_060_800), (2049, 2_493_676_800), (2050, 2_525_212_800), (2400, 13_570_070_400)]
        {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            params.not_after = rcgen::date_time_ymd(year, 1, 8);
            let pair = rcgen::KeyPair::generate().expect("a key");
            let made = params.self_signed(&pair).expect("a certificate");
            assert_eq!(not_after_s(made.der()), Some(expected), "{year}");
        }
    }

    #[test]
    fn cut_and_foreign_bytes_have_none() {
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let made = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a certificate");
        for cut in 0..40 {
            assert_eq!(not_after_s(&made.der()[..cut]), None);
        }
        for junk in [&b"\x30\x84\xff\xff\xff\xff"[..], b"\x30\x80", b"\x30\x03\x30\x01\xa0", b"hello"] {
            assert_eq!(not_after_s(junk), None);
        }
    }
}
