//! What sandboxed code may have of the host: copies of records a piece at a time, memory that is charged, memories.

use super::*;

/// Calls the host's functions by themselves, as no safe code does. The arguments are a table and an operation.
const CALLS: &str = r#"
#![no_std]
use sandstorm_api::abi::{RawCursor, RawKey, RawRange, RawRecord, STATUS_OK};
use sandstorm_api::prelude::*;

#[link(wasm_import_module = "sandstorm")]
unsafe extern "C" {
    fn scan(table: u64, cursor: *mut RawCursor, out: *mut RawRecord, limit: usize, filled: *mut usize) -> u32;
    fn range(table: u64, range: *mut RawRange, out: *mut RawRecord, limit: usize, filled: *mut usize) -> u32;
    fn get_many(table: u64, keys: *const RawKey, hashes: *const u64, count: usize, out: *mut RawRecord) -> u32;
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = u64::from_le_bytes(args[..8].try_into().unwrap());
    let mut records: Vec<RawRecord> = (0..256).map(|_| RawRecord::EMPTY).collect();
    let mut filled = 0;
    let status = unsafe {
        match &args[8..] {
            b"scan" => {
                let mut at: RawCursor = core::mem::zeroed();
                scan(table, &mut at, records.as_mut_ptr(), 256, &mut filled)
            }
            b"range" => {
                let mut rest: RawRange = core::mem::zeroed();
                rest.from = &0;
                range(table, &mut rest, records.as_mut_ptr(), 32, &mut filled)
            }
            count => {
                let names: Vec<[u8; 1]> = (0..count[0]).map(|number| [number]).collect();
                let keys: Vec<[u32; 2]> = names.iter().map(|name| [name.as_ptr() as u32, 1]).collect();
                filled = names.len();
                get_many(table, keys.as_ptr().cast(), [0; 32].as_ptr(), names.len(), records.as_mut_ptr())
            }
        }
    };
    if status != STATUS_OK {
        filled = 0;
    }
    // The records are whole.
    for record in &records[..filled] {
        let value = unsafe { core::slice::from_raw_parts(record.value, record.value_len) };
        let key = unsafe { *record.key };
        assert!(value.iter().all(|byte| *byte == key), "{key}");
    }
    db.reply(&[status as u8, filled as u8])
}
"#;

/// A world whose ordered table has so many values of this length, each full of its key.
fn world_of(count: u8, len: usize) -> (World, u64) {
    let world = World::new();
    let sorted = NewTable { quota_bytes: Some(256 << 20), ordered: true, ..NewTable::named("sorted") };
    world.shared.directory.create_table("ada", sorted).unwrap();
    let world = World { view: world.shared.view("ada"), ..world };
    let table = world.view.table_by_name("sorted").unwrap();
    let id = table.id;
    for key in 0..count {
        let hash = table.table.hash(&[key]);
        let value = vec![key; len];
        table.table.put(&world.participant, hash, &[key], &value, &WriteOptions::default(), NOW_MS).unwrap();
    }
    (world, id)
}

fn args_of(table: u64, rest: &[u8]) -> Vec<u8> {
    [&table.to_le_bytes(), rest].concat()
}

#[test]
fn records_of_one_call_are_whole_however_long_they_are_together() {
    let calls = sandboxed_unsafe("calls", CALLS);
    // What is longer than a piece is copied in pieces; slices are short, so that switches come between them.
    for (len, count) in [(100, 32_u8), (8_000, 32), (100_000, 32), (8 << 20, 4)] {
        let (mut world, table) = world_of(count, len);
        for (rest, filled) in [(&b"scan"[..], count), (b"range", count), (&[count], count), (&[1], 1)] {
            let budget = Budget { slice_us: 10, memory_bytes: 1 << 20, ..long() };
            let (end, reply, text) = world.run(&calls, &args_of(table, rest), budget);
            assert_eq!((end, reply), (PollOutcome::Done, vec![0, filled]), "{rest:?} of {len}: {text}");
        }
    }
}

/// Reads the value under the key 7, by one read or one of many, and replies with it.
const ECHO: &str = r#"
#![no_std]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = TableId(u64::from_le_bytes(args[..8].try_into().unwrap()));
    let records = match &args[8..] {
        [] => vec![db.get(table, &[7]).await?],
        keys => db.get_many(table, &keys.chunks(1).collect::<Vec<_>>()).await?,
    };
    for record in records.into_iter().flatten() {
        if record.key() == [7] {
            db.reply(record.value())?;
        }
    }
    Ok(())
}
"#;

#[test]
fn long_records_and_replies_are_whole_though_switches_come_between_their_pieces() {
    let (mut world, table) = world_of(8, 6 << 20);
    let echo = sandboxed("echo", ECHO);
    for keys in [&[][..], &[1, 7, 2], &[7]] {
        let budget = Budget { slice_us: 10, ..long() };
        let mut invocation = world.begin(&echo, &args_of(table, keys), budget);
        let mut switches = 0;
        let end = loop {
            match world.poll(&mut invocation) {
                PollOutcome::Preempted => switches += 1,
                PollOutcome::Pending => {}
                end => break end,
            }
        };
        let text = String::from_utf8_lossy(invocation.text()).into_owned();
        assert_eq!((end, invocation.reply().len()), (PollOutcome::Done, 6 << 20), "{text}");
        assert!(invocation.reply().iter().all(|byte| *byte == 7), "after {switches} switches");
        world.engine.finish(&world.participant, invocation);
    }
}

#[test]
fn arguments_of_any_length_are_copied_whole() {
    // Copies its arguments to an address of its own, as a module from elsewhere does.
    let copies = sandboxed_unsafe(
        "copies",
        r#"#![no_std]
        use sandstorm_api::prelude::*;
        #[link(wasm_import_module = "sandstorm")]
        unsafe extern "C" { fn args_len() -> u32; fn args_copy(to: *mut u8); }
        pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
            let mut copy = vec![0; unsafe { args_len() } as usize];
            unsafe { args_copy(copy.as_mut_ptr()) };
            db.reply(&copy)
        }"#,
    );
    let mut world = World::new();
    for len in [0, 1, 65_536, 65_537, 1_500_000] {
        let args: Vec<u8> = (0..len).map(|at: usize| (at / 251) as u8).collect();
        let (end, reply, text) = world.run(&copies, &args, Budget { slice_us: 10, ..long() });
        assert_eq!((end, reply == args), (PollOutcome::Done, true), "{len}: {text}");
    }
}

/// Calls itself as deep as its arguments say, with a kilobyte on the stack each time, and yields.
const DEEP: &str = r#"
#![no_std]
use sandstorm_api::prelude::*;

#[inline(never)]
fn down(left: u32) -> u32 {
    let frame = core::hint::black_box([left as u8; 1024]);
    if left == 0 { u32::from(frame[7]) } else { down(left - 1) + u32::from(frame[9]) }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    core::hint::black_box(down(u32::from(args[0])));
    let _absent = db.get(TableId(u64::from_le_bytes(args[1..].try_into().unwrap())), b"absent").await?;
    Ok(())
}
"#;

#[test]
fn a_stack_that_has_grown_is_charged_while_the_invocation_waits() {
    let mut world = World::new();
    let deep = sandboxed("deep", DEEP);
    let usage = Arc::clone(&world.view.tenant.usage);
    let table = world.table().id;
    for (depth, least, most) in [(0, 0, 0), (200, 128 << 10, 256 << 10)] {
        let args = [&[depth][..], &table.to_le_bytes()].concat();
        let mut invocation = world.begin(&deep, &args, long());
        let before = usage.invocation_memory_bytes();
        assert_eq!(world.poll(&mut invocation), PollOutcome::Pending);
        let charged = usage.invocation_memory_bytes() - before;
        assert!((least..=most).contains(&charged), "{charged} bytes at a depth of {depth}");
        assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
        world.engine.finish(&world.participant, invocation);
        // As long as its pages are there.
        while world.engine.tidy() {}
        assert_eq!(usage.invocation_memory_bytes(), 0);
    }
}

#[test]
fn memory_is_charged_until_it_has_gone_back_to_the_kernel() {
    let (mut world, table) = world_of(8, 1 << 20);
    let echo = sandboxed("echo", ECHO);
    let usage = Arc::clone(&world.view.tenant.usage);
    let args = args_of(table, &[1, 2, 3, 4, 7]);
    assert_eq!(world.run(&echo, &args, long()).0, PollOutcome::Done);
    let left = usage.invocation_memory_bytes();
    assert!(left >= 4 << 20, "{left} bytes of the record window wait");
    // The next call runs in it, and takes the charge over; a further one is charged for its own.
    let mut next = world.begin(&echo, &args, long());
    assert_eq!(usage.invocation_memory_bytes(), left);
    assert_eq!(world.complete(&mut next), PollOutcome::Done);
    let with_reply = usage.invocation_memory_bytes();
    assert!((left..left + (2 << 20)).contains(&with_reply), "{with_reply}");
    assert_eq!(world.run(&echo, &args, long()).0, PollOutcome::Done);
    assert_eq!(usage.invocation_memory_bytes(), with_reply + left);
    world.engine.finish(&world.participant, next);
    let mut turns = 0;
    while world.engine.tidy() {
        turns += 1;
    }
    assert_eq!(usage.invocation_memory_bytes(), 0);
    assert!(turns > 16, "it went back in {turns} pieces");
}

#[test]
fn a_tenant_has_its_share_of_the_memories_and_leaves_some_to_others() {
    let mut world = World::new();
    let permits = Arc::clone(&world.shared.watchdog.shared().permits.memories);
    permits.set_limit(30);
    let get = sandboxed("get", include_str!("../../../../ext/get/src/lib.rs"));
    let args = args_of(world.table().id, b"key");
    let (ada, bob) = (world.shared.view("ada"), world.shared.view("bob"));
    let mut held: Vec<InvocationHandle> = (0..20).map(|_| world.begin(&get, &args, long())).collect();
    let refused = world.engine.begin(&ada, &get, &args, long());
    assert!(matches!(refused, Err(BeginError::NoMemoryLeft)), "twice as many as are free");
    for _ in 0..4 {
        held.push(world.engine.begin(&bob, &get, &args, long()).unwrap());
    }
    assert_eq!(permits.taken(), 24);
    // They serve the next ones, of whichever tenant; what is more than half is not kept.
    for ended in held {
        world.engine.finish(&world.participant, ended);
    }
    assert!((1..=16).contains(&permits.taken()), "{} memories are kept", permits.taken());
    for view in [&ada, &bob].into_iter().cycle().take(200) {
        let begun = world.engine.begin(view, &get, &args, long()).unwrap();
        world.engine.finish(&world.participant, begun);
    }
    assert!(permits.taken() <= 16);
    drop(world);
    assert_eq!(permits.taken(), 0);
}

#[test]
fn a_call_that_cannot_begin_costs_no_memory() {
    let mut world = World::new();
    let permits = Arc::clone(&world.shared.watchdog.shared().permits.memories);
    let get = sandboxed("get", include_str!("../../../../ext/get/src/lib.rs"));
    let refused = world.engine.begin(&world.view, &get, &[0; 100_000], Budget { memory_bytes: 1 << 16, ..long() });
    assert!(matches!(refused, Err(BeginError::TooLarge { .. })));
    assert_eq!((permits.taken(), world.view.tenant.usage.invocation_memory_bytes()), (0, 0));
}
