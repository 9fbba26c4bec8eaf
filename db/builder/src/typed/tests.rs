//! What is read as a typed function, and what is written around it.

use super::*;
use crate::{Manifest, SourceFile};

fn source(text: &str) -> PushedSource {
    let manifest = Manifest::parse("name = \"x\"\nedition = \"2024\"\napi = 1\n").expect("a manifest");
    PushedSource { manifest, files: vec![SourceFile { path: ROOT_FILE.to_owned(), text: text.to_owned() }] }
}

fn schema(text: &str) -> Option<ExtensionSchema> {
    schema_of(&source(text)).unwrap_or_else(|error| panic!("{error}"))
}

/// The lines and messages of what is refused.
fn refused(text: &str) -> Vec<(u32, String)> {
    match schema_of(&source(text)) {
        Err(BuildError::Refused(found)) => found.into_iter().map(|one| (one.line, one.message)).collect(),
        other => panic!("{other:?}"),
    }
}

const SHOP: &str = "
#![no_std]
use sandstorm_api::prelude::*;
/// What is moved.
#[derive(Clone)]
pub struct Transfer {
    /// The account that pays.
    pub from: u64,
    pub r#type: Option<Kind>,
    pub notes: Vec<Vec<u8>>,
    pub lines: Vec<Line>,
}
pub enum Kind {
    Gift,
    /// Has to be paid back.
    Loan { /// In years.
        years: u8, r#in: Option<Line> },
    Split(u64, Vec<Line>),
    Other(String),
}
pub struct Line { pub name: String, pub share: f32 }
pub struct Balances { pub from: u64, pub kind: Kind }

/// Moves an amount.
pub async fn transfer(db: Db<'_>, args: Transfer) -> Result<Balances, Error> { todo!() }
pub async fn total(db: Db<'_>) -> Result<u64, Error> { todo!() }
async fn helper(db: Db<'_>, other: &str) -> Result<(), Error> { Ok(()) }
pub fn pure(number: u64) -> u64 { number }
";

#[test]
fn public_functions_of_a_database_are_typed_unless_there_is_a_plain_entry() {
    let found = schema(SHOP).expect("typed functions");
    let functions: Vec<String> =
        found.functions.iter().map(|f| format!("{}({}) {}", f.name, f.args, f.reply)).collect();
    assert_eq!(functions, ["transfer(Transfer) Balances", "total(()) u64"]);
    assert_eq!((found.functions[0].description.as_str(), found.types.len()), ("Moves an amount.", 4));
    let transfer = found.types.iter().find(|one| one.name == "Transfer").expect("the struct");
    assert_eq!(transfer.description, "What is moved.");
    let sandstorm_schema::TypeBody::Struct(body) = &transfer.body else { panic!("{transfer:?}") };
    let fields: Vec<String> = body.fields.iter().map(|f| format!("{}: {}", f.name, f.value)).collect();
    assert_eq!(fields, ["from: u64", "type: Option<Kind>", "notes: Vec<bytes>", "lines: Vec<Line>"]);
    assert_eq!(body.fields[0].description, "The account that pays.");
    let kind = found.types.iter().find(|one| one.name == "Kind").expect("the enum");
    let sandstorm_schema::TypeBody::Enum(kind) = &kind.body else { panic!("{kind:?}") };
    let variants: Vec<String> = kind.variants.iter().map(ToString::to_string).collect();
    assert_eq!(variants, ["Gift", "Loan { years: u8, in: Option<Line> }", "Split(u64, Vec<Line>)", "Other(String)"]);
    assert_eq!(kind.variants[1].description, "Has to be paid back.");

    for plain in [
        "pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { Ok(()) }",
        "mod inner; pub use inner::run;",
        "mod inner; pub use inner::{start as run, other};",
    ] {
        assert_eq!(schema(&format!("{SHOP}{plain}")), None, "{plain}");
    }
    assert_eq!(schema("pub fn nothing() {}"), None);
    assert!(schema("pub async fn run(db: Db<'_>, args: u64) -> Result<(), Error> { Ok(()) }").is_some());
}

#[test]
fn what_no_client_could_give_is_refused_with_its_line() {
    for (text, line, message) in [
        (
            "pub async fn f(db: Db<'_>, args: &str) -> Result<(), Error> {}",
            1,
            "`&str`: write `String`: a type of arguments and replies is bool",
        ),
        ("pub async fn f(db: Db<'_>, args: &[u8]) -> Result<(), Error> {}", 1, "as they are is named `run`"),
        ("pub async fn f(db: Db<'_>, count: usize) -> Result<(), Error> {}", 1, "`usize`: write `u64`"),
        ("pub async fn f(db: Db<'_>, pair: (u8, u8)) -> Result<(), Error> {}", 1, "a tuple: write a `pub struct`"),
        ("pub async fn f(db: Db<'_>, all: Vec<Box<u8>>) -> Result<(), Error> {}", 1, "write the type itself"),
        ("pub async fn f(db: Db<'_>, args: Wallet) -> Result<(), Error> {}", 1, "`Wallet`: a type of"),
        (
            "struct A { pub x: u8 }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}",
            2,
            "`A` has to be `pub`",
        ),
        (
            "pub struct A { x: u8 }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}",
            1,
            "a field of `A` is not `pub`",
        ),
        ("pub struct A(pub u8);\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}", 1, "have no names"),
        (
            "pub struct A<T> { pub x: T }\npub async fn f(db: Db<'_>, args: A<u8>) -> Result<(), Error> {}",
            2,
            "a type of",
        ),
        ("pub enum A { X(u128) }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}", 1, "`u128`: a type of"),
        (
            "pub enum A { X, Y {} }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}",
            1,
            "`A::Y` has nothing in it",
        ),
        ("pub enum A { X() }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}", 1, "without brackets"),
        ("pub enum A { X(Vec<A>) }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}", 2, "contains itself"),
        (
            "pub enum A { X { y: &'static str } }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}",
            1,
            "a type of",
        ),
        ("pub async fn f(db: Db<'_>, a: u8, b: u8) -> Result<(), Error> {}", 1, "put them into a struct"),
        ("pub async fn f(db: Db<'_>, a: u128) -> Result<(), Error> {}", 1, "`u128`: a type of"),
        ("pub async fn f(db: Db<'_>, a: bytes) -> Result<(), Error> {}", 1, "`bytes`: a type of"),
        ("pub async fn f(db: Db<'_>) -> u64 { 0 }", 1, "returns a `Result<T, Error>`"),
        ("pub async fn f(db: Db<'_>) {}", 1, "returns a `Result<T, Error>`"),
        (
            "pub struct A { pub x: Vec<A> }\npub async fn f(db: Db<'_>, args: A) -> Result<(), Error> {}",
            2,
            "contains itself",
        ),
        ("pub async fn f(db: Db<'_>, args: std::string::String) -> Result<(), Error> {}", 1, "a type of"),
    ] {
        let found = refused(text);
        assert!(found.iter().any(|(at, said)| *at == line && said.contains(message)), "{text}: {found:?}");
    }
}

#[test]
fn what_is_written_is_rust_and_safe() {
    let (entry, code) = entry_code(&source(SHOP)).expect("code");
    assert_eq!(entry, "typed::run");
    syn::parse_str::<syn::File>(&code).unwrap_or_else(|error| panic!("{error}: {code}"));
    assert!(!code.contains("unsafe {") && code.starts_with("#[deny(unsafe_code)]"), "{code}");
    for part in [
        "r#type: from.option(|from| Ok(read_Kind(from)?))?,",
        "r#notes: from.list(|from| Ok(from.bytes()?))?,",
        "to.list(&value.r#notes, |to, value| to.slice(value));",
        "0 => Ok(tenant::r#Kind::r#Gift),",
        "1 => Ok(tenant::r#Kind::r#Loan { r#years: from.u8()?, r#in: from.option(|from| Ok(read_Line(from)?))? }),",
        "2 => Ok(tenant::r#Kind::r#Split(from.u64()?, from.list(|from| Ok(read_Line(from)?))?)),",
        "tenant::r#Kind::r#Loan { r#years: part0, r#in: part1 } => {\nto.u8(1);\nto.u8(*part0);\n",
        "tenant::r#Kind::r#Other(part0) => {\nto.u8(3);\nto.string(part0);\n}",
        "let reply = tenant::r#transfer(db, args).await?;",
        "let reply = tenant::r#total(db).await?;",
    ] {
        assert!(code.contains(part), "{part} is missing in {code}");
    }
    let plain = source("pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { Ok(()) }");
    assert_eq!(entry_code(&plain).expect("code"), ("tenant::run", String::new()));
}

const INDEX: &str = "
use sandstorm_api::change::{Change as Other, Change, ChangeOp};
use sandstorm_api::prelude::*;
pub async fn one(db: Db<'_>, change: Change<'_>) -> Result<(), Error> { todo!() }
pub async fn many<'a>(db: Db<'a>, changes: Vec<sandstorm_api::change::Change<'a>>) -> Result<u64, Error> { todo!() }
pub async fn plain(db: Db<'_>, kind: u8) -> Result<(), Error> { todo!() }
";

#[test]
fn a_function_may_take_changes_of_a_table() {
    use sandstorm_schema::ChangeArgument;
    let found = schema(INDEX).expect("typed functions");
    let functions: Vec<_> = found.functions.iter().map(|one| (one.name.as_str(), found.change_argument(one))).collect();
    let (one, several) = (Some(ChangeArgument::One), Some(ChangeArgument::Several));
    assert_eq!(functions, [("one", one), ("many", several), ("plain", None)]);
    let (_, code) = entry_code(&source(INDEX)).expect("code");
    syn::parse_str::<syn::File>(&code).unwrap_or_else(|error| panic!("{error}: {code}"));
    assert!(code.contains("let args = from.list(|from| Ok(read_Change(from)?))?;"), "{code}");
    assert!(!code.contains("tenant::r#Change"), "{code}");

    // A type of one's own is one's own, whatever its name.
    let own = "pub struct Change { pub x: u8 }\npub async fn f(db: Db<'_>, args: Change) -> Result<Change, Error> {}";
    let found = schema(own).expect("a typed function");
    assert_eq!((found.types.len(), found.change_argument(&found.functions[0])), (1, None));
    for (text, line, message) in [
        ("pub async fn f(db: Db<'_>, args: Change<'_>) -> Result<(), Error> {}", 1, "a type of arguments"),
        (
            "use sandstorm_api::change::*;\npub async fn f(db: Db<'_>, all: Changes<'_>) -> Result<(), Error> {}",
            2,
            "write `Vec<Change<'_>>`",
        ),
        (
            "use sandstorm_api::change::Change;\npub async fn f<'a>(db: Db<'a>) -> Result<Change<'a>, Error> {}",
            2,
            "is an argument, and no reply",
        ),
        (
            "use sandstorm_api::change::Change;\npub enum ChangeOp { A }\n\
             pub async fn f(db: Db<'_>, change: Change<'_>) -> Result<(), Error> {}",
            3,
            "give your type of that name another one",
        ),
    ] {
        let found = refused(text);
        assert!(found.iter().any(|(at, said)| *at == line && said.contains(message)), "{text}: {found:?}");
    }
}

mod same_types {
    //! Types of [`super::SHOP`] as code that calls it declares them.
    use sandstorm_api::prelude::*;

    pub(super) struct Transfer {
        from: u64,
        r#type: Option<Kind>,
        notes: Vec<Vec<u8>>,
        lines: Vec<Line>,
    }
    pub(super) enum Kind {
        Gift,
        Loan { years: u8, r#in: Option<Line> },
        Split(u64, Vec<Line>),
        Other(String),
    }
    pub(super) struct Line {
        name: String,
        share: f32,
    }
    pub(super) struct Balances {
        from: u64,
        kind: Kind,
    }
    typed!(struct Transfer { from, r#type, notes, lines });
    typed!(enum Kind { Gift, Loan { years, r#in }, Split(amount, lines), Other(text) });
    typed!(struct Line { name, share });
    typed!(struct Balances { from, kind });
}

/// A call from code is found by the fingerprint that the builder has given the function.
#[test]
fn the_types_that_code_declares_have_the_fingerprint_of_the_schema() {
    use sandstorm_api::typed::TypeText;
    let schema = schema(SHOP).expect("typed functions");
    let [transfer, total] = schema.functions.as_slice() else { panic!("{schema:?}") };
    let text = TypeText::of_call::<same_types::Transfer, same_types::Balances>("transfer").unwrap();
    assert_eq!(text, schema.types_text(transfer));
    assert_eq!(sandstorm_schema::fingerprint(&text), transfer.fingerprint);
    assert_eq!(TypeText::of_call::<(), u64>("total").unwrap(), schema.types_text(total));
}
