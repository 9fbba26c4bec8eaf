//! What tenants hand on among each other where there is no room for one each: no tenant finds what another left in it.

use super::*;

/// What words begin with by which a tenant marks what it has used. What follows is its number, which is not 0.
const MARK: u64 = 0x5ec2_e7ed << 32;
const TENANTS: u64 = 7;
const CALLS: u64 = 600;

fn mark(tenant: u64) -> u64 {
    MARK | (tenant + 1)
}

/// Marks its stack, its arena and copies of a record with the word that it is given, once it has looked at all of its
/// memory from the stack to the arena; replies with the words there that were others' marks, and its own.
const MARKS: &str = r#"
#![no_std]
use sandstorm_api::prelude::*;

#[inline(never)]
fn marked_stack(mark: u64) -> usize {
    let words = core::hint::black_box([mark; 400]);
    core::hint::black_box(&words).as_ptr() as usize
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, mark) = args.split_first_chunk::<8>().ok_or(Error::new("a table"))?;
    let mark = mark.first_chunk::<8>().ok_or(Error::new("a mark"))?;
    let (table, mark) = (TableId(u64::from_le_bytes(*table)), u64::from_le_bytes(*mark));
    let mut heap: Vec<u64> = Vec::with_capacity(200);
    let first = marked_stack(0) / 4096 * 4096;
    let end = heap.as_ptr() as usize + 8 * heap.capacity();
    let (mut others, mut own) = (0_u32, 0_u32);
    for at in (first..end).step_by(8) {
        let word = unsafe { (at as *const u64).read_volatile() };
        if word == mark {
            own += 1;
        } else if word >> 32 == mark >> 32 && word as u32 != 0 {
            // Its own allocator writes 0 over the lower half of a block's first word when the block is given back.
            others += 1;
        }
    }
    heap.resize(200, mark);
    core::hint::black_box((&heap, marked_stack(mark)));
    let record = db.get(table, b"marks").await?.ok_or(Error::new("no record"))?;
    core::hint::black_box(record.value());
    db.reply(&[others.to_le_bytes(), own.to_le_bytes()].concat())
}
"#;

/// A world of so many tenants whose records have their marks, and which hand on what they use.
fn crowded_world() -> (World, Vec<Arc<TenantView>>) {
    let mut world = World::new();
    let directory = &world.shared.directory;
    for number in 0..TENANTS {
        let name = format!("tenant-{number}");
        directory.create_tenant(NewTenant::named(&name)).unwrap();
        let table = directory.create_table(&name, NewTable::named("numbers")).unwrap();
        let value = mark(number).to_le_bytes().repeat(20);
        let hash = table.table.hash(b"marks");
        table.table.put(&world.participant, hash, b"marks", &value, &WriteOptions::default(), NOW_MS).unwrap();
    }
    let views = (0..TENANTS).map(|number| world.shared.view(&format!("tenant-{number}"))).collect();
    world.engine.stop_making_stacks();
    world.engine.stop_making_invocations();
    world.engine.memories().make_no_more_than(2);
    (world, views)
}

#[test]
fn no_memory_that_is_handed_on_tells_one_tenant_of_another() {
    let marks = sandboxed_unsafe("marks", MARKS);
    let (mut world, views) = crowded_world();
    let (mut state, mut own_found, mut clean_found) = (3_u64, 0, 0);
    for call in 0..CALLS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 33) % TENANTS;
        world.view = Arc::clone(&views[number as usize]);
        let args = [world.table().id.to_le_bytes(), mark(number).to_le_bytes()].concat();
        let (end, reply, text) = world.run(&marks, &args, long());
        assert_eq!((end, reply.len()), (PollOutcome::Done, 8), "{text}");
        let (others, own) = reply.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_le_bytes(*others), 0, "call {call}: tenant {number} finds others' marks");
        let own = u32::from_le_bytes(own.try_into().unwrap());
        // Its arguments have one.
        *if own > 100 { &mut own_found } else { &mut clean_found } += 1;
    }
    assert!(own_found > 50 && clean_found > 50, "{own_found} found their own, {clean_found} had another's, wiped");
    assert!(world.engine.memories().made <= 3, "they use the same ones");
}

#[test]
fn where_half_of_all_memories_are_taken_tenants_use_those_that_are_there() {
    let marks = sandboxed_unsafe("marks", MARKS);
    let (mut world, views) = crowded_world();
    world.engine.memories().make_no_more_than(usize::MAX);
    world.shared.watchdog.shared().permits.memories.set_limit(8);
    for call in 0..40 {
        let number = call % TENANTS;
        world.view = Arc::clone(&views[number as usize]);
        let args = [world.table().id.to_le_bytes(), mark(number).to_le_bytes()].concat();
        let (end, reply, text) = world.run(&marks, &args, long());
        assert_eq!((end, &reply[..4]), (PollOutcome::Done, &[0; 4][..]), "{text}");
    }
    let made = world.engine.memories().made;
    assert!((3..=5).contains(&made), "{made}: a memory was made for a call, and given up at its end");
}

#[test]
fn where_permits_have_run_out_a_tenant_gets_one_idle_memory_and_the_others_stay() {
    let (mut world, views) = crowded_world();
    let permits = Arc::clone(&world.shared.watchdog.shared().permits.memories);
    let pool = world.engine.memories();
    pool.make_no_more_than(usize::MAX);
    let taken: Vec<_> = views[..3].iter().map(|view| pool.take(view).unwrap().expect("a permit").memory).collect();
    for (mut memory, view) in taken.into_iter().zip(&views) {
        memory.owner = view.tenant.serial;
        pool.keep(memory, 1 << 20, |_| None);
    }
    permits.set_limit(3);
    let first = pool.take(&views[3]).unwrap().expect("an idle memory's permit");
    assert_eq!((first.memory.owner, pool.made, pool.idle_len(), permits.taken()), (0, 3, 2, 3));
    let second = pool.take(&views[3]).unwrap().expect("the same once more");
    assert_eq!((second.memory.owner, pool.made, pool.idle_len(), permits.taken()), (0, 3, 1, 3));
    // It has its share now, so nothing is given up for it.
    assert!(pool.take(&views[3]).unwrap().is_none());
    assert_eq!((pool.idle_len(), permits.taken()), (1, 3));
    let own = pool.take(&views[2]).unwrap().expect("its own");
    assert_eq!(own.memory.owner, views[2].tenant.serial, "it finds what it left");
}
