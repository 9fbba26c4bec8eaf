//! Promise: encodings, hashes, dates, maps and regular expressions are those of known implementations.

use std::collections::{HashMap as StdMap, HashSet as StdSet};

use proptest::prelude::*;
use sandstorm_api::collections::{Entry, HashMap, HashSet, SmallVec};
use sandstorm_api::date::{Date, DateTime};
use sandstorm_api::encoding::{base64, base64_url, from_base64, from_hex, hex};
use sandstorm_api::hash::{crc32, sip13, xxh64};
use sandstorm_api::regex::Regex;
use sandstorm_api::uuid::Uuid;

#[test]
fn hashes_are_those_of_their_specifications() {
    assert_eq!((crc32(b""), crc32(b"The quick brown fox jumps over the lazy dog")), (0, 0x414f_a339));
    let text = b"Nobody inspects the spammish repetition";
    assert_eq!(
        (xxh64(text, 0), xxh64(b"a", 0), xxh64(b"abc", 0)),
        (0xfbce_a83c_8a37_8bf1, 0xd24e_c4f1_a98c_6e5b, 0x44bc_2cf5_ad77_0999)
    );
    let all: Vec<u8> = (0..64).collect();
    let seen: std::collections::BTreeSet<u64> = (0..=64).map(|len| xxh64(&all[..len], 7)).collect();
    assert_eq!(seen.len(), 65);
    // SipHash-1-3 is what the standard library's hasher computes with keys of 0, of the bytes alone.
    use std::hash::Hasher as _;
    for len in 0..64 {
        #[expect(deprecated, reason = "the one SipHash of the standard library with known keys")]
        let mut hasher = std::hash::SipHasher::new();
        hasher.write(&all[..len]);
        assert_ne!(sip13(&all[..len], [0, 0]), hasher.finish(), "that is SipHash-2-4");
    }
    let mut standard = std::collections::hash_map::DefaultHasher::new();
    standard.write(&all);
    assert_eq!(sip13(&all, [0, 0]), standard.finish());
}

#[test]
fn days_are_those_of_the_calendar() {
    let (mut day, mut expected) = (Date::new(0, 1, 1).unwrap(), (0_u16, 1_u8, 1_u8));
    let mut of_year = 1;
    for unix_days in day.unix_days()..=Date::new(9_999, 12, 31).unwrap().unix_days() {
        assert_eq!((day.year(), day.month(), day.day()), expected);
        assert_eq!((day.unix_days(), day.day_of_year()), (unix_days, of_year));
        let leap = expected.0 % 4 == 0 && (expected.0 % 100 != 0 || expected.0 % 400 == 0);
        let last = match expected.1 {
            2 => 28 + u8::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        assert_eq!(Date::new(expected.0, expected.1, last + 1), None);
        (expected, of_year) = match expected {
            (year, 12, 31) => ((year + 1, 1, 1), 1),
            (year, month, day) if day == last => ((year, month + 1, 1), of_year + 1),
            (year, month, day) => ((year, month, day + 1), of_year + 1),
        };
        match day.plus_days(1) {
            Some(next) => day = next,
            None => assert_eq!(expected, (10_000, 1, 1)),
        }
    }
    assert_eq!(format!("{:?}", Date::parse("2000-01-01").unwrap().weekday()), "Saturday");
}

#[test]
fn moments_are_read_and_written_as_rfc_3339_says() {
    for (text, us, written) in [
        ("1985-04-12T23:20:50.52Z", 482_196_050_520_000, "1985-04-12T23:20:50.520000Z"),
        ("1996-12-19T16:39:57-08:00", 851_042_397_000_000, "1996-12-20T00:39:57Z"),
        ("1990-12-31T23:59:60Z", 662_688_000_000_000, "1991-01-01T00:00:00Z"),
        ("1969-12-31 23:59:59.9999999Z", -1, "1969-12-31T23:59:59.999999Z"),
    ] {
        let moment = DateTime::parse_rfc3339(text).unwrap();
        assert_eq!((moment.unix_us(), moment.to_string().as_str()), (us, written));
        assert_eq!(DateTime::from_unix_us(us), Some(moment));
    }
    for wrong in [
        "",
        "2024-02-30T00:00:00Z",
        "2024-02-29",
        "2024-02-29T24:00:00Z",
        "2024-02-29T00:60:00Z",
        "2024-02-29T00:00:00",
        "2024-02-29T00:00:00.Z",
        "2024-02-29T00:00:00+1:00",
        "2024-02-29T00:00:00Z ",
        "0000-01-01T00:00:00+00:01",
        "24-02-29T00:00:00Z",
        "2024-02-29T00:00:00\u{ff0b}01:00",
    ] {
        assert!(DateTime::parse_rfc3339(wrong).is_err(), "{wrong}");
    }
    assert_eq!(DateTime::from_unix_us(i64::MAX), None);
    assert_eq!(DateTime::from_unix_us(i64::MIN), None);
}

#[test]
fn uuids_have_one_form() {
    let text = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    let uuid = Uuid::parse(&text.to_uppercase()).unwrap();
    assert_eq!((uuid.to_string().as_str(), uuid.version()), (text, 4));
    for wrong in [
        "",
        "67e5504410b1426f9247bb680e5fe0c8",
        "67e55044-10b1-426f-9247-bb680e5fe0c",
        &text.replace('c', "g"),
        &text.replace("e0c8", "e\u{e4}8"),
    ] {
        assert!(Uuid::parse(wrong).is_err(), "{wrong}");
    }
}

/// Expressions of few letters, whose meaning is the same in both.
fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "a", "b", "c", ".", "[ab]", "[^a]", "[a-c]", "\\d", "\\w", "\\s", "\\W", "^", "$", "\\b", "\\B", "\u{e4}", "x",
    ])
    .prop_map(String::from);
    leaf.prop_recursive(4, 24, 4, |inner| {
        let repeat = prop::sample::select(vec!["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|ways| format!("(?:{})", ways.join("|"))),
            (inner.clone(), repeat).prop_map(|(part, sign)| format!("(?:{part}){sign}")),
            inner.prop_map(|part| format!("({part})")),
        ]
    })
}

proptest! {
    #[test]
    fn expressions_match_what_the_regex_crate_matches(expression in expressions(), text in "[abcx1 \n\u{e4}_]{0,12}", fold in any::<bool>()) {
        let expression = if fold { format!("(?i){expression}") } else { expression };
        let text = if fold { text.to_uppercase() } else { text };
        // Its classes and word edges are those of Unicode, unless it is asked for ASCII.
        let ascii = expression.replace("\\d", "[0-9]").replace("\\w", "[0-9A-Za-z_]").replace("\\W", "[^0-9A-Za-z_]");
        let ascii = ascii.replace("\\s", "[ \\t\\n\\r\\x0b\\x0c]").replace("\\b", "(?-u:\\b)").replace("\\B", "(?-u:\\B)");
        let (Ok(ours), Ok(theirs)) = (Regex::new(&expression), regex::Regex::new(&ascii)) else {
            // Repeated assertions are refused here, and `\B` between the bytes of a character there.
            return Ok(());
        };
        if fold && expression.contains('\u{e4}') {
            return Ok(());
        }
        prop_assert_eq!(ours.is_match(&text), theirs.is_match(&text), "{} in {:?}", &expression, &text);
        prop_assert_eq!(ours.find(&text), theirs.find(&text).map(|at| at.range()), "{} in {:?}", &expression, &text);
        let all: Vec<_> = theirs.find_iter(&text).map(|at| at.range()).collect();
        prop_assert_eq!(ours.find_all(&text), all, "all of {} in {:?}", &expression, &text);
        let groups = theirs.captures(&text).map(|found| found.iter().map(|group| group.map(|at| at.as_str())).collect::<Vec<_>>());
        prop_assert_eq!(ours.captures(&text), groups, "groups of {} in {:?}", &expression, &text);
    }

    #[test]
    fn no_expression_does_harm(expression in "[a(){}|*+?\\[\\]^$\\\\bdw,0-9:i.-]{0,20}", text in "[ab1]{0,30}") {
        if let Ok(expression) = Regex::new(&expression) {
            expression.find_all(&text);
        }
    }

    #[test]
    fn base64_and_hex_are_those_of_data_encoding(bytes in prop::collection::vec(any::<u8>(), 0..50), text in "[A-Za-z0-9+/=]{0,8}") {
        use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
        prop_assert_eq!(base64(&bytes), BASE64.encode(&bytes));
        prop_assert_eq!(base64_url(&bytes), BASE64URL_NOPAD.encode(&bytes));
        prop_assert_eq!(hex(&bytes), HEXLOWER.encode(&bytes));
        prop_assert_eq!(from_base64(&base64(&bytes)).unwrap(), &bytes[..]);
        prop_assert_eq!(from_base64(&base64_url(&bytes)).unwrap(), &bytes[..]);
        prop_assert_eq!(from_hex(&hex(&bytes).to_uppercase()).unwrap(), bytes);
        // It takes several padded texts in a row, too.
        if text.contains('=') && !text.trim_end_matches('=').contains('=') {
            prop_assert_eq!(from_base64(&text).ok(), BASE64.decode(text.as_bytes()).ok(), "{}", text);
        }
    }

    #[test]
    fn a_map_is_what_the_standard_librarys_is(
        steps in prop::collection::vec((0..64_u8, 0..40_u16, any::<u32>()), 0..300),
    ) {
        let (mut ours, mut theirs) = (HashMap::new(), StdMap::new());
        for (kind, key, value) in steps {
            let key = format!("{key}");
            match kind {
                0..24 => prop_assert_eq!(ours.insert(key.clone(), value), theirs.insert(key, value)),
                24..36 => prop_assert_eq!(ours.remove(key.as_str()), theirs.remove(key.as_str())),
                36..44 => {
                    let entry = ours.entry(key.clone()).and_modify(|old| *old ^= value);
                    let expected = *theirs.entry(key).and_modify(|old| *old ^= value).or_insert(7);
                    prop_assert_eq!(*entry.or_insert(7), expected);
                }
                44..52 => {
                    let removed = match ours.entry(key.clone()) {
                        Entry::Occupied(entry) => Some(entry.remove()),
                        Entry::Vacant(_) => None,
                    };
                    prop_assert_eq!(removed, theirs.remove(&key));
                }
                52 => {
                    let order: Vec<String> = ours.keys().cloned().collect();
                    ours.retain(|_, old| *old % 3 != value % 3);
                    theirs.retain(|_, old| *old % 3 != value % 3);
                    let left: Vec<&String> = order.iter().filter(|key| theirs.contains_key(*key)).collect();
                    prop_assert!(ours.keys().eq(left), "the order stays");
                }
                _ => {
                    *ours.get_or_insert_with(key.clone(), || 7) ^= value;
                    *theirs.entry(key).or_insert(7) ^= value;
                }
            }
            prop_assert_eq!(ours.len(), theirs.len());
        }
        for number in 0..40 {
            prop_assert_eq!(ours.get(&*format!("{number}")), theirs.get(&format!("{number}")));
        }
        let listed: StdMap<String, u32> = ours.into_iter().collect();
        prop_assert_eq!(listed, theirs);
    }

    #[test]
    fn a_set_is_what_the_standard_librarys_is(steps in prop::collection::vec((0..32_u8, 0..40_u16), 0..300)) {
        let (mut ours, mut theirs) = (HashSet::new(), StdSet::new());
        for (kind, value) in steps {
            match kind {
                0..20 => prop_assert_eq!(ours.insert(value), theirs.insert(value)),
                20..31 => prop_assert_eq!(ours.remove(&value), theirs.remove(&value)),
                _ => {
                    ours.retain(|one| one % 3 != value % 3);
                    theirs.retain(|one| one % 3 != value % 3);
                }
            }
            prop_assert_eq!((ours.len(), ours.is_empty()), (theirs.len(), theirs.is_empty()));
            prop_assert!((0..40).all(|value| ours.contains(&value) == theirs.contains(&value)));
        }
        prop_assert_eq!(ours.into_iter().collect::<StdSet<u16>>(), theirs);
    }

    #[test]
    fn a_small_vector_is_a_vector(steps in prop::collection::vec(prop::option::of(any::<u8>()), 0..40)) {
        let (mut ours, mut theirs) = (SmallVec::<u8, 4>::new(), Vec::new());
        for step in steps {
            match step {
                Some(value) => {
                    ours.push(value);
                    theirs.push(value);
                }
                None => prop_assert_eq!(ours.pop(), theirs.pop()),
            }
            prop_assert_eq!(&ours[..], &theirs[..]);
        }
    }
}

#[test]
fn a_text_that_is_no_bytes_is_in_its_error() {
    for (text, error) in [
        ("0", "\"0\" is not hexadecimal: it has half a pair of digits"),
        ("0x1f", "\"0x1f\" is not hexadecimal: 'x' is no digit of it"),
        ("0ä1", "\"0ä1\" is not hexadecimal: 'ä' is no digit of it"),
    ] {
        assert_eq!(from_hex(text).unwrap_err().text(), error);
    }
    for (text, error) in [
        ("a=bc", "\"a=bc\" is not base64: '=' is no digit of it"),
        ("abcde", "\"abcde\" is not base64: it has a digit too many"),
        ("ab=", "\"ab=\" is not base64: its padding is wrong"),
        ("ab", "\"ab\" is not base64: there are bits behind its last byte"),
    ] {
        assert_eq!(from_base64(text).unwrap_err().text(), error);
    }
    let long = from_hex(&"x".repeat(1000)).unwrap_err();
    assert!(long.text().len() < 100 && long.text().contains('…'), "{long}");
}
