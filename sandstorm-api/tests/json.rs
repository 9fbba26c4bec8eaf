//! Promise: JSON is read and written as serde_json does, and whatever is no JSON is refused.

use proptest::prelude::*;
use sandstorm_api::json::{FromJson, Json, JsonError, JsonLimits, JsonNumber};

/// Whether both are the same, but for the last digit of floating-point numbers, which serde_json does not always get
/// right.
fn is_same(ours: &Json, theirs: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (ours, theirs) {
        (Json::Null, Value::Null) => true,
        (Json::Bool(ours), Value::Bool(theirs)) => ours == theirs,
        (Json::Number(JsonNumber::Negative(ours)), Value::Number(theirs)) => theirs.as_i64() == Some(*ours),
        (Json::Number(JsonNumber::Positive(ours)), Value::Number(theirs)) => theirs.as_u64() == Some(*ours),
        (Json::Number(JsonNumber::Float(ours)), Value::Number(theirs)) => {
            let theirs = theirs.as_f64().filter(|_| theirs.is_f64()).unwrap_or(f64::NAN);
            ours.to_bits() == theirs.to_bits() || (ours - theirs).abs() <= ours.abs() * 1e-14
        }
        (Json::Text(ours), Value::String(theirs)) => ours == theirs,
        (Json::List(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| is_same(ours, theirs))
        }
        (Json::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(name, ours)| theirs.get(name).is_some_and(|theirs| is_same(ours, theirs)))
        }
        _ => false,
    }
}

fn values() -> impl Strategy<Value = Json> {
    let texts = prop_oneof![any::<String>(), "[a-z\"\\\\/\n\u{1}\u{1f}]{0,6}"];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        texts.clone().prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::List),
            prop::collection::btree_map(texts.clone(), inner, 0..6).prop_map(Json::Object),
        ]
    })
}

/// Texts that are nearly JSON: values, with pieces taken out, put in and changed.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
        "\\",
        "\\u",
        "\\ud83d",
        "\\ude00",
        "\\n",
        "0",
        "-",
        "1e9",
        ".5",
        "e",
        "E+",
        "true",
        "null",
        "nul",
        " ",
        "\t",
        "\u{b}",
        "\n",
        "\u{e4}",
        "1e400",
        "-0",
        "00",
        "18446744073709551616",
        "\u{0}",
        "\u{7f}",
    ]);
    let joined = prop::collection::vec(pieces, 0..14).prop_map(|pieces| pieces.concat().into_bytes());
    let damaged = (values(), any::<prop::sample::Index>(), any::<u8>(), 0..3).prop_map(|(value, at, byte, how)| {
        let mut text = value.to_string().into_bytes();
        let at = at.index(text.len());
        match how {
            0 => text[at] = byte,
            1 => drop(text.remove(at)),
            _ => text.insert(at, byte),
        }
        text
    });
    prop_oneof![joined, damaged]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_by_both(value in values()) {
        let text = value.to_string();
        prop_assert_eq!(Json::parse(text.as_bytes()), Ok(value.clone()));
        let pretty = format!("{value:#}");
        prop_assert_eq!(Json::parse(pretty.as_bytes()), Ok(value.clone()));
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        prop_assert!(is_same(&value, &read), "{value} and {read}");
        let written = Json::parse(read.to_string().as_bytes()).unwrap();
        prop_assert!(is_same(&written, &read), "{written} and {read}");
    }

    #[test]
    fn both_read_the_same_texts_and_refuse_the_same(text in texts()) {
        match (Json::parse(&text), serde_json::from_slice::<serde_json::Value>(&text)) {
            (Ok(ours), Ok(read)) => prop_assert!(is_same(&ours, &read), "{ours} and {read}"),
            (Err(_), Err(_)) => {}
            (ours, read) => prop_assert!(false, "{:?}: {ours:?} and {read:?}", String::from_utf8_lossy(&text)),
        }
    }

    #[test]
    fn no_bytes_do_harm(text in prop::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(Json::parse(&text).is_ok(), serde_json::from_slice::<serde_json::Value>(&text).is_ok());
    }
}

#[test]
fn limits_are_kept_and_named() {
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat().into_bytes();
    assert!(Json::parse(&nested(64)).is_ok());
    let deep = Json::parse(&nested(65)).unwrap_err().to_string();
    assert_eq!(deep, "JSON: line 1, column 65: values are nested deeper than 64");
    let more = JsonLimits { depth: 1_000_000, ..JsonLimits::default() };
    assert!(Json::parse_within(&nested(100_000), more).is_err(), "the stack has an end");
    let few = JsonLimits { values: 3, bytes: 9, ..JsonLimits::default() };
    assert!(Json::parse_within(b"[1,2]", few).is_ok());
    assert!(Json::parse_within(b"[1,2,3]", few).unwrap_err().to_string().contains("more than 3 values"));
    assert!(Json::parse_within(b"[1,2]     ", few).unwrap_err().to_string().contains("at most 9 bytes"));
    let place = Json::parse("{\n \"\u{e4}\": tru}".as_bytes()).unwrap_err().to_string();
    assert_eq!(place, "JSON: line 2, column 7: it is no true");
}

#[derive(Debug, PartialEq)]
struct Item {
    name: String,
    count: u8,
}

impl FromJson for Item {
    fn from_json(json: &Json) -> Result<Item, JsonError> {
        let item = Item { name: json.read("name")?, count: json.read("count")? };
        if item.count == 0 { Err(JsonError::new("none of it").within("count")) } else { Ok(item) }
    }
}

#[test]
fn errors_name_the_path() {
    let read = |text: &str| Json::parse(text.as_bytes()).unwrap().read::<Vec<Item>>("order.items");
    let text = r#"{"order": {"items": [{"name": "tea", "count": 2}, {"name": "milk", "count": 1}]}}"#;
    let [tea, milk] = [("tea", 2), ("milk", 1)].map(|(name, count)| Item { name: name.into(), count });
    assert_eq!(read(text), Ok(vec![tea, milk]));
    for (change, error) in [
        (("1}", "256}"), "order.items[1].count: a number without fraction from 0 to 255 is needed, not another number"),
        (
            ("1}", "1.5}"),
            "order.items[1].count: a number without fraction from 0 to 255 is needed, not a number with a fraction",
        ),
        (("1}", "0}"), "order.items[1].count: none of it"),
        (("\"milk\"", "null"), "order.items[1].name: a text is needed, not null"),
        (("\"name\": \"milk\", ", ""), "order.items[1].name: there is no such field"),
        (("\"order\"", "\"other\""), "order.items: there is no such field"),
    ] {
        let found = read(&text.replace(change.0, change.1)).unwrap_err();
        assert_eq!(found.to_string(), format!("JSON: {error}"));
    }
    let json = Json::parse(br#"{"a.b": {"c": [[1, 2], [3]]}}"#).unwrap();
    let inner = json.field("a.b").unwrap();
    assert_eq!((inner.read::<u8>("c[0][1]"), inner.read::<Option<u8>>("c[1][1]")), (Ok(2), Ok(None)));
    assert_eq!((json.find("a.b"), inner.find("c[x]"), inner.find("c[0]]")), (None, None, None));
}
