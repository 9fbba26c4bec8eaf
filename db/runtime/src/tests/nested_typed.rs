//! Code that calls typed functions of other extensions: in both tiers, with the types of the callee or others.

use super::*;
use sandstorm_api::abi::{STATUS_INVALID, STATUS_NOT_FOUND};

const BANK: &str = r#"#![no_std]
use sandstorm_api::prelude::*;

pub struct Transfer {
    pub from: String,
    pub amount: u64,
    pub purpose: Option<Purpose>,
}
pub enum Purpose { Gift, Loan { years: u8 }, Split(Vec<String>, f64) }
pub struct Balances { pub from: i64, pub purpose: Option<Purpose> }

pub async fn transfer(db: Db<'_>, args: Transfer) -> Result<Balances, Error> {
    let table = db.table("numbers")?;
    let from = db.transaction().increment(table, args.from.as_bytes(), -i64::try_from(args.amount)?).await?;
    if from < 0 { return Err(Error::not_found("not enough")) }
    Ok(Balances { from, purpose: args.purpose })
}
pub async fn total(db: Db<'_>) -> Result<u64, Error> {
    assert!(db.now_ms() > 0);
    Ok(7)
}
"#;

/// Calls `bank`, and keeps what it gets as a record of a type of its own.
const SHOP: &str = r#"#![no_std]
use sandstorm_api::prelude::*;

pub struct Transfer { pub from: String, pub amount: u64, pub purpose: Option<Purpose> }
pub enum Purpose { Gift, Loan { years: u8 }, Split(Vec<String>, f64) }
pub struct Balances { pub from: i64, pub purpose: Option<Purpose> }
typed!(struct Transfer { from, amount, purpose });
typed!(enum Purpose { Gift, Loan { years }, Split(names, share) });
typed!(struct Balances { from, purpose });

mod other {
    use sandstorm_api::prelude::*;
    pub struct Transfer { pub from: String, pub amount: u32 }
    typed!(struct Transfer { from, amount });
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (from, table) = (String::from("one"), db.table("numbers")?);
    match args {
        b"pay" => {
            let purpose = Some(Purpose::Split(vec!["a".into(), "b".into()], 0.5));
            db.transaction().put(table, b"paid", b"")?;
            let paid: Balances = db.call_typed("bank.transfer", &Transfer { from, amount: 4, purpose }).await?;
            db.transaction().put(table, b"kept", &paid.to_record())
        }
        b"kept" => {
            let record = db.get(table, b"kept").await?.ok_or(Error::not_found("nothing"))?;
            let Balances { from, purpose } = record.typed()?;
            let names = match purpose {
                Some(Purpose::Split(names, share)) => format!("{} {share}", names.join("+")),
                Some(Purpose::Loan { years }) => years.to_string(),
                Some(Purpose::Gift) | None => String::new(),
            };
            db.reply(format!("{from} {names}").as_bytes())
        }
        b"broken" => db.get(table, b"one").await?.map_or(Ok(()), |record| record.typed::<Balances>().map(|_| ())),
        b"total" => db.reply(&[u8::try_from(db.call_typed::<(), u64>("bank.total", &()).await?)?]),
        b"other" => {
            let args = other::Transfer { from, amount: 4 };
            db.call_typed::<_, Balances>("bank.transfer", &args).await.map(|_| ())
        }
        b"unknown" => db.call_typed::<(), ()>("bank.nothing", &()).await,
        b"bytes" => db.call("bank.total", b"").await.map(|_| ()),
        b"whole" => db.call("bank", b"abcd").await.map(|_| ()),
        _ => Err(Error::invalid("what?")),
    }
}
"#;

type Libraries = [Arc<ExtensionLibrary>; 2];

/// Bank and shop in both tiers.
fn libraries() -> &'static [Libraries; 2] {
    static BUILT: OnceLock<[Libraries; 2]> = OnceLock::new();
    let built = |name: &str, text: &str| {
        let native = ExtensionLibrary::load(&compile(name, text), builder::api_fingerprint()).unwrap();
        let both = [native, Arc::clone(&sandboxed(name, text).library)];
        if let Some(schema) = builder::schema_of(&source(name, text)).unwrap() {
            let schema = Arc::new(schema);
            both.iter().for_each(|library| library.set_schema(Arc::clone(&schema)));
        }
        both
    };
    BUILT.get_or_init(|| [built("bank", BANK), built("shop", SHOP)])
}

#[test]
fn a_typed_function_is_called_from_code_by_its_types() {
    for (caller, callee) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        let mut world = World::new();
        let load = |name: &str, library: &Arc<ExtensionLibrary>| {
            Arc::new(LoadedExtension::new(name, 7, Arc::clone(library), BudgetOverride::default()))
        };
        let [bank, shop] = libraries();
        let shop = load("shop", &shop[caller]);
        let mut view = (*world.view).clone();
        view.extensions.insert("bank".into(), load("bank", &bank[callee]));
        world.view = Arc::new(view);
        world.put(b"one", b"5");
        let said = |world: &mut World, args: &[u8]| match world.run(&shop, args, long()) {
            (PollOutcome::Done, reply, _) => (0, String::from_utf8(reply).unwrap()),
            (PollOutcome::Failed { code }, _, text) => (code, text),
            other => panic!("{other:?}"),
        };
        assert_eq!(said(&mut world, b"pay"), (0, String::new()));
        assert_eq!(said(&mut world, b"kept"), (0, "1 a+b 0.5".to_owned()));
        assert_eq!(said(&mut world, b"total"), (0, "\u{7}".to_owned()));
        // Its own error, by its name; nothing of the call is written.
        let has_paid = |world: &World| {
            let (table, guard) = (&world.table().table, world.participant.guard());
            table.get(&guard, table.hash(b"kept"), b"kept", NOW_MS).map(|record| record.version())
        };
        let before = has_paid(&world);
        assert_eq!(said(&mut world, b"pay"), (STATUS_NOT_FOUND, "bank.transfer: not enough".to_owned()));
        assert_eq!(has_paid(&world), before);
        for (args, code, part) in [
            (&b"other"[..], STATUS_INVALID, "`struct Transfer { from: String, amount: u32 }` in the caller"),
            (b"other", STATUS_INVALID, "`sandstorm ext show bank` prints them"),
            (b"unknown", STATUS_NOT_FOUND, "it has no function \"nothing\": there are transfer, total"),
            (b"bytes", STATUS_INVALID, "`db.call_typed(\"bank.total\", &argument)`"),
            (b"whole", STATUS_INVALID, "`db.call_typed(\"bank.transfer\", &argument)`"),
            (b"broken", STATUS_INVALID, "the record \"one\": the bytes are no Balances: they end too early"),
        ] {
            let (found, text) = said(&mut world, args);
            assert!(found == code && text.contains(part), "{found} {text}");
        }
    }
}
