//! The record that an invocation awaits is fetched between its polls, once, and once more where it lies further on. The
//! invocation pays for it where it is polled beside another tenant's.

use super::*;

const GETS: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("numbers")?;
    let record = db.get(table, args).await?.ok_or(Error::new("there is no such record"))?;
    db.reply(record.value())
}
"#;

#[test]
fn what_an_invocation_awaits_is_fetched_once_and_once_more_where_it_lies_further_on() {
    let mut world = World::new();
    let view = Arc::clone(&world.view);
    let table = &view.table_by_name("numbers").unwrap().table;
    (0..10_000_u64).for_each(|number| world.put(&number.to_le_bytes(), &number.to_be_bytes()));
    while table.is_growing(&world.participant.guard()) {
        table.sweep(&world.participant, NOW_MS, 10_000);
    }
    let extension = compiled("gets", GETS);
    let bob = world.shared.view("bob");
    let others = world.engine.begin(&bob, &extension, b"", long()).unwrap();
    let own = world.begin(&extension, b"", long());
    let is_further =
        |number: &u64| table.prefetch_record(&world.participant.guard(), table.hash(&number.to_le_bytes()));
    let (further, near): (Vec<u64>, Vec<u64>) = (0..10_000).partition(is_further);
    let mut kinds = [0; 2];
    for number in near.into_iter().take(100).chain(further.into_iter().take(100)) {
        let key = number.to_le_bytes();
        let mut invocation = world.begin(&extension, &key, long());
        assert_eq!(
            world.engine.prefetch_awaited(&mut invocation, &others, false),
            (0, false),
            "nothing is awaited yet"
        );
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending);
        let beside = if number % 2 == 0 { &others } else { &own };
        let lies_further = table.prefetch_record(&world.participant.guard(), table.hash(&key));
        kinds[usize::from(lies_further)] += 1;
        let before_ns = invocation.cpu_ns();
        let (mut charge_ns, is_further) = world.engine.prefetch_awaited(&mut invocation, beside, false);
        assert_eq!(is_further, lies_further);
        if is_further {
            let (more_ns, is_further) = world.engine.prefetch_awaited(&mut invocation, beside, true);
            assert!(!is_further, "the second look is the last");
            charge_ns += more_ns;
        }
        assert_eq!(invocation.cpu_ns() - before_ns, charge_ns);
        assert!(number % 2 == 0 || charge_ns == 0, "beside its own tenant's it is charged with that poll");
        assert_eq!(world.engine.prefetch_awaited(&mut invocation, beside, false), (0, false), "it is on its way");
        assert_eq!(world.complete(&mut invocation), PollOutcome::Done);
        assert_eq!(invocation.reply(), number.to_be_bytes());
        world.engine.finish(&world.participant, invocation);
    }
    assert_eq!(kinds, [100; 2], "records in both kinds of buckets");
    world.engine.finish(&world.participant, others);
    world.engine.finish(&world.participant, own);
}
