//! The promise of the test store: it answers an extension as the server would.

use sandstorm_api::prelude::*;
use sandstorm_api::testing::TestStore;

fn store() -> (TestStore, TableId) {
    let mut store = TestStore::new();
    let table = store.table("t");
    (store, table)
}

#[test]
fn tables_are_found_by_name_and_unknown_ones_refused() {
    let (mut store, table) = store();
    assert_eq!(store.table("t"), table);
    assert_ne!(store.table("other"), table);
    let by_name = async |db: Db<'_>, args: &[u8]| {
        let id = db.table(core::str::from_utf8(args)?)?;
        db.reply(&id.0.to_le_bytes())
    };
    assert_eq!(store.invoke(by_name, b"t"), Ok(table.0.to_le_bytes().to_vec()));
    assert_eq!(store.invoke(by_name, b"nope").unwrap_err().kind(), ErrorKind::UnknownTable);
    assert_eq!(store.invoke(by_name, b"\xff").unwrap_err().kind(), ErrorKind::Invalid);
    let by_id = async |db: Db<'_>, _: &[u8]| db.get(TableId(99), b"k").await.map(|_| ());
    for interleave in [true, false] {
        assert_eq!(store.interleave(interleave).invoke(by_id, b"").unwrap_err().kind(), ErrorKind::UnknownTable);
    }
}

#[test]
fn a_record_read_stays_as_it_was_until_the_invocation_ends() {
    let (mut store, table) = store();
    store.put(table, b"k", b"old");
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let old = db.get(table, b"k").await?.ok_or("gone")?;
        for round in 0..100u32 {
            db.put(table, b"k", &round.to_le_bytes()).await?;
        }
        db.delete(table, b"k").await?;
        yield_now().await;
        db.reply(old.key())?;
        db.reply(old.value())
    };
    assert_eq!(store.invoke(run, b""), Ok(b"kold".to_vec()));
    assert!(store.is_empty(table));
    assert_eq!(store.bytes(), 0);
}

#[test]
fn awaited_reads_yield_only_while_interleaving() {
    let (mut store, table) = store();
    store.put(table, b"a", b"1");
    store.put(table, b"b", b"2");
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let many = db.get_many(table, &[b"a", b"b", b"c"]).await?;
        let one = db.get(table, b"a").await?.ok_or("gone")?;
        yield_now().await;
        for record in many.into_iter().flatten().chain([one]) {
            db.reply(record.value())?;
        }
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(b"121".to_vec()));
    assert_eq!((store.polls(), store.reads()), (5, 4));
    assert_eq!(store.interleave(false).invoke(run, b""), Ok(b"121".to_vec()));
    assert_eq!((store.polls(), store.reads()), (2, 4));
}

#[test]
fn conditions_versions_and_flags() {
    let (mut store, table) = store();
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        assert_eq!(db.put(table, b"k", b"x").if_present().await.unwrap_err().kind(), ErrorKind::Conflict);
        let first = db.put(table, b"k", b"1").if_absent().flags(7).await?;
        assert_eq!(db.put(table, b"k", b"x").if_absent().await.unwrap_err().kind(), ErrorKind::Conflict);
        let second = db.put(table, b"k", b"2").if_version(first).await?;
        assert!(second > first);
        assert_eq!(db.put(table, b"k", b"x").if_version(first).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(db.delete(table, b"k").if_version(first).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert!(db.delete(table, b"k").if_version(second).await?);
        assert!(!db.delete(table, b"k").await?);
        let third = db.put(table, b"k", b"3").flags(9).await?;
        assert!(third > second, "versions grow across a delete");
        Ok(())
    };
    assert_eq!(store.invoke(run, b""), Ok(Vec::new()));
    let record = store.record(table, b"k").unwrap();
    assert_eq!((record.value(), record.flags(), record.expires_at_ms()), (&b"3"[..], 9, 0));
}

#[test]
fn records_expire_by_the_clock() {
    let (mut store, table) = store();
    let write = async |db: Db<'_>, _: &[u8]| {
        db.put(db.table("t")?, b"k", b"v").expires_in_ms(1000).await?;
        db.reply(&db.now_ms().to_le_bytes())
    };
    let read = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let found = db.get(table, b"k").await?.is_some();
        let scanned = db.scan(table, Default::default(), 10)?.records.len();
        db.reply(&[u8::from(found), scanned as u8])
    };
    let start = store.now_ms();
    assert_eq!(store.invoke(write, b""), Ok(start.to_le_bytes().to_vec()));
    store.set_now_ms(start + 999);
    assert_eq!(store.invoke(read, b""), Ok(vec![1, 1]));
    store.set_now_ms(start + 1000);
    assert_eq!(store.invoke(read, b""), Ok(vec![0, 0]));
    assert_eq!((store.len(table), store.get(table, b"k")), (0, None));
}

#[test]
fn increments_count_from_zero_and_refuse_what_is_no_number() {
    let (mut store, table) = store();
    let run = async |db: Db<'_>, key: &[u8]| {
        let sum = db.increment(db.table("t")?, key, -3).await?;
        db.reply(&sum.to_le_bytes())
    };
    assert_eq!(store.invoke(run, b"n"), Ok((-3i64).to_le_bytes().to_vec()));
    assert_eq!(store.invoke(run, b"n"), Ok((-6i64).to_le_bytes().to_vec()));
    assert_eq!(store.get(table, b"n"), Some(&b"-6"[..]));
    store.put(table, b"text", b"six");
    store.put(table, b"low", i64::MIN.to_string().as_bytes());
    for key in [&b"text"[..], b"low"] {
        let refused = store.invoke(run, key).unwrap_err();
        let named = format!("the value under {:?} is not", core::str::from_utf8(key).expect("a text"));
        assert!(refused.kind() == ErrorKind::NotANumber && refused.text().starts_with(&named), "{refused}");
    }
}

#[test]
fn limits_answer_with_their_errors() {
    let (mut store, table) = store();
    let reply = async |db: Db<'_>, args: &[u8]| {
        db.reply(args)?;
        db.reply(args)
    };
    assert_eq!(store.limit_reply(8).invoke(reply, b"1234"), Ok(b"12341234".to_vec()));
    assert_eq!(store.invoke(reply, b"12345").unwrap_err().kind(), ErrorKind::TooLarge);
    let put = async |db: Db<'_>, value: &[u8]| db.put(db.table("t")?, b"k", value).await.map(|_| ());
    assert_eq!(store.limit_bytes(5).invoke(put, b"1234"), Ok(Vec::new()));
    assert_eq!(store.invoke(put, b"4321"), Ok(Vec::new()), "an overwrite frees what it replaces");
    assert_eq!(store.invoke(put, b"12345").unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(store.get(table, b"k"), Some(&b"4321"[..]));
    let long_key = async |db: Db<'_>, _: &[u8]| db.put(db.table("t")?, &[0; (64 << 10) + 1], b"").await.map(|_| ());
    assert_eq!(store.invoke(long_key, b"").unwrap_err().kind(), ErrorKind::TooLarge);
    let forever = async |_: Db<'_>, _: &[u8]| {
        loop {
            yield_now().await;
        }
    };
    assert!(store.limit_polls(10).invoke(forever, b"").unwrap_err().text().contains("polled more often"));
    assert_eq!(store.polls(), 10);
}

#[test]
fn a_scan_sees_every_unchanged_record_while_others_write() {
    let (mut store, table) = store();
    let count = if cfg!(miri) { 80u32 } else { 500 };
    for number in 0..count {
        store.put(table, &number.to_le_bytes(), b"x");
    }
    let mut turn = 0u32;
    store.between_polls(move |store| {
        turn += 1;
        store.put(table, format!("new {turn}").as_bytes(), b"y");
        store.delete(table, format!("new {}", turn / 2).as_bytes());
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let mut next = Some(Default::default());
        while let Some(cursor) = next {
            let page = db.scan(table, cursor, 7)?;
            assert!(page.records.len() <= 7);
            page.records.iter().filter(|record| record.value() == b"x").try_for_each(|one| db.reply(one.key()))?;
            next = page.next;
            yield_now().await;
        }
        assert_eq!(db.scan(table, Default::default(), 0).unwrap_err().kind(), ErrorKind::Invalid);
        Ok(())
    };
    let reply = store.invoke(run, b"").unwrap();
    let mut seen: Vec<u32> = reply.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(seen.len() as u32, count);
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..count));
}

#[test]
fn what_others_write_between_polls_is_seen_by_conditions() {
    let (mut store, table) = store();
    store.put(table, b"balance", b"10");
    let mut others = 3;
    store.between_polls(move |store| {
        if others > 0 {
            others -= 1;
            store.put(table, b"balance", b"20");
        }
    });
    let run = async |db: Db<'_>, _: &[u8]| {
        let table = db.table("t")?;
        let old = db.get(table, b"balance").await?.ok_or("gone")?;
        db.put(table, b"balance", b"0").if_version(old.version()).await.map(|_| ())
    };
    assert_eq!(store.invoke(run, b"").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(store.invoke(run, b""), Ok(Vec::new()));
}

#[test]
fn a_panic_leaves_the_store_as_it_is() {
    let (mut store, table) = store();
    let run = async |db: Db<'_>, _: &[u8]| {
        db.put(db.table("t")?, b"k", b"v").await?;
        panic!("on purpose")
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.invoke(run, b"")));
    assert!(panicked.is_err());
    assert_eq!(store.get(table, b"k"), Some(&b"v"[..]));
}
