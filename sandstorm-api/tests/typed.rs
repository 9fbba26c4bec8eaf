//! Promise: structs and enums of a tenant's own are in records as they are in typed calls, and a call of another
//! extension's typed function compares the types of both.

use sandstorm_api::limits::CALL_BYTES;
use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;
use sandstorm_api::typed::TypeText;

#[derive(Clone, Debug, Default, PartialEq)]
struct Line {
    name: String,
    share: f32,
}
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Gift,
    Loan { years: u8, r#in: Option<Line> },
    Split(u64, Vec<Line>),
    Other(String),
}
#[derive(Clone, Debug, PartialEq)]
struct Transfer {
    from: i64,
    r#type: Option<Kind>,
    notes: Vec<Vec<u8>>,
    lines: Vec<Line>,
    is_open: bool,
}
typed!(struct Line { name, share });
typed!(enum Kind { Gift, Loan { years, r#in }, Split(amount, lines), Other(text) });
typed!(struct Transfer { from, r#type, notes, lines, is_open });

fn line(name: &str) -> Line {
    Line { name: name.into(), share: 0.5 }
}

fn transfers() -> Vec<Transfer> {
    let kinds = [
        None,
        Some(Kind::Gift),
        Some(Kind::Loan { years: 3, r#in: None }),
        Some(Kind::Loan { years: 3, r#in: Some(line("a")) }),
        Some(Kind::Split(7, vec![line("b"), line("ä")])),
        Some(Kind::Other("x".into())),
    ];
    let of = |kind| Transfer {
        from: -1,
        r#type: kind,
        notes: vec![vec![], vec![0, 255]],
        lines: vec![line("")],
        is_open: true,
    };
    kinds.into_iter().map(of).collect()
}

#[test]
fn a_value_comes_back_and_bytes_of_another_type_are_an_error() {
    for transfer in transfers() {
        let bytes = transfer.to_record();
        assert_eq!(Transfer::from_record(&bytes), Ok(transfer));
        for end in 0..bytes.len() {
            let error = Transfer::from_record(&bytes[..end]).expect_err("it is cut off");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.text().starts_with("the bytes are no Transfer: they "), "{error}");
        }
        let long = Transfer::from_record(&[&bytes[..], b"x"].concat()).unwrap_err();
        assert!(long.text().contains("they go on behind their end"), "{long}");
    }
    let kind = Vec::<Option<Kind>>::from_record(&[1, 0, 0, 0, 1, 4]).unwrap_err();
    let text =
        "the bytes are no Vec<Option<Kind>>: they have an enum without a variant of that number (at byte 6 of 6)";
    assert_eq!(kind.text(), text);
    // A count that nothing is behind takes no memory.
    assert!(Vec::<Line>::from_record(&[255; 4]).is_err());
}

/// The bytes of docs/types.md.
#[test]
fn the_bytes_are_those_of_the_page_and_stay() {
    let bytes =
        Transfer { from: 4, r#type: Some(Kind::Split(2, vec![])), notes: vec![], lines: vec![], is_open: false };
    let expected: [&[u8]; 6] = [&4i64.to_le_bytes(), &[1, 2], &2u64.to_le_bytes(), &[0; 4], &[0; 4], &[0, 0, 0, 0, 0]];
    assert_eq!(bytes.to_record(), expected.concat());
}

mod later {
    use super::*;

    #[derive(Debug, PartialEq)]
    pub(super) struct Line {
        pub(super) name: String,
        pub(super) share: f32,
        pub(super) unit: Option<String>,
        pub(super) count: Option<u8>,
    }
    typed!(struct Line { name, share, unit, count });

    /// In another struct they are no end of the record's.
    #[derive(Debug, PartialEq)]
    pub(super) struct Basket {
        pub(super) first: Line,
        pub(super) more: Vec<Line>,
    }
    typed!(struct Basket { first, more });
}

#[test]
fn a_struct_with_new_optional_fields_at_its_end_reads_what_was_written_before() {
    let old = line("tea").to_record();
    let read = later::Line { name: "tea".into(), share: 0.5, unit: None, count: None };
    assert_eq!(later::Line::from_record(&old), Ok(read));
    let with_unit = [&old[..], &Some("g".to_string()).to_record()].concat();
    let read = later::Line::from_record(&with_unit).expect("the second field is missing");
    assert_eq!((read.unit.as_deref(), read.count), (Some("g"), None));
    assert_eq!(later::Line::from_record(&read.to_record()), Ok(read));
    assert!(Line::from_record(&with_unit).is_err(), "the former struct does not know it");
    let inner = [&old[..], &[1, 0, 0, 0], &old].concat();
    assert!(later::Basket::from_record(&inner).is_err(), "what is cut off is no value");
}

/// A type that contains itself ends with an error, and not with the stack.
struct Tree {
    below: Vec<Tree>,
}
typed!(struct Tree { below });

#[test]
fn bytes_that_nest_deeper_than_any_value_are_an_error() {
    let deep = [1, 0, 0, 0].repeat(100_000);
    let error = Tree::from_record(&deep).map(|_| ()).unwrap_err();
    assert!(error.text().contains("they are nested too deep"), "{error}");
    assert!(Tree::from_record(&[&[1, 0, 0, 0].repeat(10)[..], &[0; 4]].concat()).is_ok());
}

#[test]
fn a_record_of_another_type_is_named() {
    let mut store = TestStore::new();
    let table = store.table("t");
    store.put(table, b"k\n1", b"?");
    let plain = async |db: Db<'_>, key: Vec<u8>| -> Result<Line, Error> {
        db.get(db.table("t")?, &key).await?.ok_or(Error::not_found("none"))?.typed()
    };
    let noted = async |db: Db<'_>, key: Vec<u8>| -> Result<Line, Error> {
        db.transaction().get(db.table("t")?, &key).await?.ok_or(Error::not_found("none"))?.typed()
    };
    let text = "the record \"k\\n1\": the bytes are no Line: they end too early (at byte 0 of 1)";
    assert_eq!(store.call(plain, b"k\n1".to_vec()).unwrap_err().text(), text);
    assert_eq!(store.call(noted, b"k\n1".to_vec()).unwrap_err().text(), text);
    store.put(table, b"k", &line("tea").to_record());
    assert_eq!(
        (store.call(plain, b"k".to_vec()), store.call(noted, b"k".to_vec())),
        (Ok(line("tea")), Ok(line("tea")))
    );
}

#[test]
fn the_text_of_a_calls_types_has_each_type_once() {
    let text = TypeText::of_call::<Transfer, Option<Kind>>("move").unwrap();
    let expected = "sandstorm call 1
move(Transfer) Option<Kind>
struct Transfer { from: i64, type: Option<Kind>, notes: Vec<bytes>, lines: Vec<Line>, is_open: bool }
enum Kind { Gift, Loan { years: u8, in: Option<Line> }, Split(u64, Vec<Line>), Other(String) }
struct Line { name: String, share: f32 }
";
    assert_eq!(text, expected);
    assert_eq!(TypeText::of_call::<(), Vec<u8>>("f").unwrap(), "sandstorm call 1\nf(()) bytes\n");
}

async fn split(db: Db<'_>, args: Transfer) -> Result<Option<Kind>, Error> {
    db.transaction().increment(db.table("t")?, b"calls", 1).await?;
    if args.from == 0 { Err(Error::not_found("no account 0")) } else { Ok(args.r#type) }
}

async fn total(db: Db<'_>) -> Result<u64, Error> {
    Ok(db.transaction().get(db.table("t")?, b"calls").await?.map_or(0, |record| record.value()[0] - b'0').into())
}

/// What a caller gets that asks for `R`.
async fn ask<R: Typed>(db: Db<'_>, function: &str, args: &impl Typed) -> Result<R, Error> {
    db.transaction().put(db.table("t")?, b"caller", b"")?;
    db.call_typed(function, args).await
}

#[test]
fn a_typed_function_is_called_in_the_callers_transaction() {
    let mut store = TestStore::new();
    let table = store.table("t");
    store.typed_extension("bank.split", split);
    store.typed_extension("bank.total", async |db: Db<'_>, ()| total(db).await);
    for transfer in transfers() {
        let caller = async |db: Db<'_>, args: Transfer| ask::<Option<Kind>>(db, "bank.split", &args).await;
        assert_eq!(store.call(caller, transfer.clone()), Ok(transfer.r#type));
    }
    let count = async |db: Db<'_>, ()| ask::<u64>(db, "bank.total", &()).await;
    assert_eq!((store.call(count, ()), store.get(table, b"calls")), (Ok(6), Some(&b"6"[..])));
    let failing = async |db: Db<'_>, mut args: Transfer| {
        args.from = 0;
        ask::<Option<Kind>>(db, "bank.split", &args).await
    };
    store.delete(table, b"caller");
    let error = store.call(failing, transfers().remove(0)).unwrap_err();
    assert_eq!((error.kind(), error.text()), (ErrorKind::NotFound, "bank.split: no account 0"));
    assert_eq!((store.get(table, b"calls"), store.get(table, b"caller")), (Some(&b"6"[..]), None));
}

#[test]
fn a_call_that_does_not_fit_says_what_to_do() {
    let mut store = TestStore::new();
    store.table("t");
    store.typed_extension("bank.split", split);
    store.typed_extension("bank.total", async |db: Db<'_>, ()| total(db).await);
    store.extension("plain", async |_: Db<'_>, _: &[u8]| Ok(()));
    let typed = async |db: Db<'_>, name: String| ask::<u64>(db, &name, &Line::default()).await;
    let bytes = async |db: Db<'_>, name: String| db.call(&name, b"abc").await;
    let invalid = ErrorKind::Invalid;
    for (name, kind, part) in [
        ("bank.split", invalid, "`split(Line) u64` in the caller, `split(Transfer) Option<Kind>` there"),
        ("bank.total", invalid, "`sandstorm ext show bank` prints them"),
        ("bank.buy", ErrorKind::NotFound, "it has no function \"buy\": there are split, total"),
        ("bank", invalid, "write the extension, a dot and the function"),
        ("plain.split", invalid, "it has no typed functions: call it as `db.call(\"plain\", bytes)`"),
        ("nowhere.split", ErrorKind::NotFound, "no extension of this name"),
    ] {
        let error = store.call(typed, name.to_string()).unwrap_err();
        assert!(error.kind() == kind && error.text().contains(part), "{name}: {error}");
    }
    for (name, part) in [
        ("bank", "`db.call_typed(\"bank.split\", &argument)`"),
        ("bank.total", "`db.call_typed(\"bank.total\", &argument)`"),
        ("plain.run", "call it as `db.call(\"plain\", bytes)`"),
    ] {
        let error = store.call(bytes, name.to_string()).unwrap_err();
        assert!(error.kind() == invalid && error.text().contains(part), "{name}: {error}");
    }
    store.typed_extension("bank.long", async |_: Db<'_>, text: String| Ok(text));
    let long = async |db: Db<'_>, len: u32| {
        ask::<String>(db, "bank.long", &"x".repeat(len as usize)).await.map(|text| text.len())
    };
    assert_eq!(store.call(long, 1000), Ok(1000));
    assert_eq!(store.call(long, CALL_BYTES as u32).unwrap_err().kind(), ErrorKind::TooLarge);
}

/// The name that the macro's own enum once had.
#[derive(Debug, PartialEq)]
enum Number {
    Whole(i64),
    Part { of: f64 },
}
typed!(enum Number { Whole(value), Part { of } });

/// A type of the name of another one, which it does not have in it.
mod same_name {
    use super::*;

    #[derive(Debug, Default)]
    pub(super) struct Line {
        pub(super) name: u64,
    }
    typed!(struct Line { name });

    #[derive(Default)]
    pub(super) struct Both {
        pub(super) one: Line,
        pub(super) other: Vec<super::Line>,
        pub(super) again: Line,
    }
    typed!(struct Both { one, other, again });
}

#[test]
fn an_enum_may_have_any_name() {
    for (number, first) in [(Number::Whole(-1), 0), (Number::Part { of: 0.5 }, 1)] {
        let bytes = number.to_record();
        assert_eq!((bytes[0], Number::from_record(&bytes)), (first, Ok(number)));
    }
}

#[test]
fn two_types_of_one_name_in_a_call_are_refused() {
    let mut store = TestStore::new();
    store.table("t");
    store.typed_extension("bank.split", split);
    let both = async |db: Db<'_>, ()| ask::<u64>(db, "bank.split", &same_name::Both::default()).await;
    let error = store.call(both, ()).unwrap_err();
    assert!(error.text().starts_with("two types of the call have the name Line: "), "{error}");
    let reply = async |db: Db<'_>, ()| ask::<same_name::Line>(db, "bank.split", &Line::default()).await;
    assert!(store.call(reply, ()).unwrap_err().text().contains("name Line"));
}

#[test]
fn a_reply_of_another_type_is_named() {
    /// Has the name of a number, as a faulty `Typed` of its own would.
    struct Liar;
    impl Typed for Liar {
        fn typed_read(_: &mut sandstorm_api::typed::Decoder<'_>) -> Result<Liar, Error> {
            Ok(Liar)
        }
        fn typed_write(&self, to: &mut Vec<u8>) {
            to.push(7);
        }
        fn typed_empty() -> Liar {
            Liar
        }
        fn typed_name(to: &mut sandstorm_api::typed::TypeText) {
            to.push("u64");
        }
    }
    let mut store = TestStore::new();
    store.table("t");
    store.typed_extension("bank.total", async |_: Db<'_>, ()| Ok(Liar));
    let count = async |db: Db<'_>, ()| ask::<u64>(db, "bank.total", &()).await;
    let error = store.call(count, ()).unwrap_err();
    let text = "bank.total: the reply is not of its type: they end too early (at byte 0 of 1)";
    assert_eq!((error.kind(), error.text()), (ErrorKind::Invalid, text));
}
