//! What the extension API has beside the database (JSON, encodings, hashes, expressions, dates, collections), in both
//! tiers: the same code, the same replies.

use super::*;

const TOOLS: &str = r#"#![no_std]
use sandstorm_api::collections::{HashMap, SmallVec};
use sandstorm_api::date::DateTime;
use sandstorm_api::encoding::{base64, base64_url, from_base64, from_hex, hex};
use sandstorm_api::hash::{crc32, sip13, xxh64};
use sandstorm_api::json::{FromJson, Json, JsonError};
use sandstorm_api::prelude::*;
use sandstorm_api::regex::Regex;
use sandstorm_api::uuid::Uuid;

struct Item {
    name: String,
    price: f64,
    count: u32,
}

impl FromJson for Item {
    fn from_json(json: &Json) -> Result<Item, JsonError> {
        Ok(Item { name: json.read("name")?, price: json.read("price")?, count: json.read("count")? })
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    match args.split_first() {
        Some((b'j', text)) => {
            let order = Json::parse(text)?;
            let items: Vec<Item> = order.read("items")?;
            let sum: f64 = items.iter().map(|item| item.price * f64::from(item.count)).sum();
            let names = Json::list(items.into_iter().map(|item| item.name));
            db.reply(Json::object().with("sum", sum).with("names", names).with("note", order.read::<Option<String>>("note")?).to_string().as_bytes())
        }
        Some((b'e', text)) => {
            let decoded = from_base64(core::str::from_utf8(text)?)?;
            db.reply(format!("{} {} {}", hex(&decoded), base64(&decoded), base64_url(&from_hex("fbff")?)).as_bytes())
        }
        Some((b'h', bytes)) => db.reply(format!("{:08x} {:016x} {:016x}", crc32(bytes), xxh64(bytes, 1), sip13(bytes, [1, 2])).as_bytes()),
        Some((b'r', text)) => {
            let form = Regex::new(r"(?i)^([a-z]+)\s*=\s*(-?\d+(?:\.\d+)?)$")?;
            let parts = form.captures(core::str::from_utf8(text)?).ok_or(Error::invalid("no assignment"))?;
            let number: f64 = parts[2].unwrap_or("").parse().map_err(|_| Error::invalid("no number"))?;
            db.reply(format!("{}:{number:?}", parts[1].unwrap_or("")).as_bytes())
        }
        Some((b'd', text)) => {
            let moment = DateTime::parse_rfc3339(core::str::from_utf8(text)?)?;
            db.reply(format!("{moment} {:?} {}", moment.date.weekday(), moment.unix_us()).as_bytes())
        }
        Some((b'u', _)) => {
            let (a, b) = (Uuid::v4(&db), Uuid::v7(&db));
            let back = Uuid::parse(&a.to_string())?;
            db.reply(format!("{} {} {}", a.version(), b.version(), back == a && a != b).as_bytes())
        }
        Some((b'c', text)) => {
            let mut counts = HashMap::new();
            for word in text.split(|byte| *byte == b' ') {
                *counts.get_or_insert_with(word, || 0_u32) += 1;
            }
            let few: SmallVec<u32, 2> = counts.values().copied().collect();
            let shown: Vec<String> =
                counts.iter().map(|(word, count)| format!("{}{count}", String::from_utf8_lossy(word))).collect();
            db.reply(format!("{} {:?}", shown.join(","), &few[..]).as_bytes())
        }
        _ => Err(Error::invalid("what?")),
    }
}
"#;

#[test]
fn what_code_needs_beside_records_answers_the_same_in_both_tiers() {
    let mut world = World::new();
    let library = ExtensionLibrary::load(&compile("tools", TOOLS), builder::api_fingerprint()).unwrap();
    let native = Arc::new(LoadedExtension::new("tools", 1, library, BudgetOverride::default()));
    for extension in [native, sandboxed("tools", TOOLS)] {
        for (args, expected) in [
            (
                r#"j{"items": [{"name": "t\u00e9", "price": 1.5, "count": 2}, {"name": "x", "price": 0.25, "count": 1}]}"#,
                r#"{"names":["té","x"],"note":null,"sum":3.25}"#,
            ),
            (
                r#"j{"items": [{"name": "x", "price": "1", "count": 2}]}"#,
                "JSON: items[0].price: a number is needed, not a text",
            ),
            ("j{", "JSON: line 1, column 2: a field begins with its name, in `\"`"),
            ("eAQL/", "0102ff AQL/ -_8"),
            ("eAQL", "\"AQL\" is not base64: there are bits behind its last byte"),
            ("habc", "352441c2 bea9ca8199328908 27dfc47cf121981a"),
            ("rRate = -2.50", "Rate:-2.5"),
            ("r2 = 3", "no assignment"),
            ("d2024-02-29T12:30:00+02:00", "2024-02-29T10:30:00Z Thursday 1709202600000000"),
            ("d2023-02-29T12:30:00Z", "no time such as 2024-02-29T12:30:00Z"),
            ("u", "4 7 true"),
            ("cb a b c b a", "b3,a2,c1 [3, 2, 1]"),
        ] {
            let (end, reply, text) = world.run(&extension, args.as_bytes(), long());
            let said = if end == PollOutcome::Done { String::from_utf8(reply).unwrap() } else { text };
            assert!(said.starts_with(expected), "{args}: {said}");
        }
    }
}
