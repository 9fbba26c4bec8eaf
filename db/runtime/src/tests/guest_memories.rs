//! Memories of sandboxed code: what one tenant's code may have written, no other finds.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sandstorm_api::abi;
use sandstorm_sandbox::{DataSegment, ModuleLayout};

use crate::guest_memory::GuestMemory;
use crate::limits::WIPE_BY_WRITING_BYTES;

const SEEDS: u64 = 40;
/// Invocations of one seed's memory.
const INVOCATIONS: usize = 60;
const MIB: usize = 1 << 20;

/// Modules of the server's builder with stacks of several lengths, and the last one, which was made elsewhere. That
/// builder makes stacks of one length alone; an image may have another.
fn layouts() -> Vec<ModuleLayout> {
    let layout = |heap_base: u32, stack: u64, data: u32, memory_bytes: u32| ModuleLayout {
        memory_bytes,
        memory_max_bytes: 64 << 20,
        heap_base,
        zeroed: data + 100..data + 5_000,
        future_size: 200,
        future_align: 8,
        api_fingerprint: u64::from(heap_base > 0),
        variables: vec![stack, 7],
        segments: vec![
            DataSegment { address: data, writable: false, bytes: vec![0xaa; 40] },
            DataSegment { address: data + 40, writable: true, bytes: vec![0xbb; 60] },
        ],
    };
    vec![
        layout(0x10_4000, 0x10_0000, 0x10_0000, 0x20_0000),
        layout(0x4_8000, 0x4_0000, 0x4_0010, 0x10_0000),
        layout(0x4_d800, 0x4_b000, 0x4_b000, 0x10_0000),
        layout(0x9_8000, 0x8000, 0x8000, 0x10_0000),
        layout(0xa_000, 0x8000, 0x8000, 0x10_0000),
        layout(0, 0, 0x400, 0x2_0000),
        layout(0, 0, 0x400, 0x1_0000),
    ]
}

/// What a module's memory has at an address when it begins.
fn at_start(layout: &ModuleLayout, address: usize) -> u8 {
    let here = |segment: &&DataSegment| (segment.address as usize..).contains(&address);
    let segment = layout.segments.iter().rev().find(here);
    segment.and_then(|one| one.bytes.get(address - one.address as usize)).copied().unwrap_or(0)
}

fn assert_clean(memory: &GuestMemory, layout: &ModuleLayout, what: &str) {
    for part in memory.granted_parts() {
        // SAFETY: no code runs in it.
        let bytes = unsafe { memory.bytes(part.start as u32, part.len() as u32) }.expect("it is granted");
        let other = bytes.iter().enumerate().find(|(at, byte)| **byte != at_start(layout, part.start + at));
        assert_eq!(other, None, "{what}: of the part at {:#x}", part.start);
    }
}

/// Does what code and host may do in a memory: reaches and fills whatever is there.
fn use_memory(memory: &mut GuestMemory, random: &mut StdRng) {
    for _ in 0..random.random_range(0..4) {
        let address = random.random_range(0..memory.memory_len());
        assert!(memory.grow(memory.base() + address) || memory.is_granted(address as u32, 1).is_ok(), "{address:#x}");
    }
    for _ in 0..random.random_range(0..3) {
        let bytes = vec![0xee; 1 << random.random_range(0..18)];
        memory.reserve_records(bytes.len()).expect("room");
    }
    if random.random_bool(0.3) {
        let longer = memory.memory_len() + random.random_range(0..MIB);
        memory.set_memory_len(longer).expect("room");
        assert!(memory.is_granted((longer - 1) as u32, 1).is_ok());
    }
    for part in memory.granted_parts() {
        memory.fill(part.start as u32, 0xee, part.len() as u32).expect("it is granted");
    }
}

#[test]
fn what_a_tenant_wrote_is_gone_before_another_one_runs_there() {
    let layouts = layouts();
    for seed in 0..SEEDS {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut memory = GuestMemory::new(|number| number).expect("addresses");
        let mut owner = 0;
        for invocation in 0..INVOCATIONS {
            let (tenant, module) = (random.random_range(1..4), random.random_range(0..layouts.len()));
            let layout = &layouts[module];
            let is_foreign = !layout.is_ours();
            let first = if is_foreign { layout.memory_bytes as usize } else { layout.heap_base as usize + 300 };
            let len = first + random.random_range(0..3) * random.random_range(0..200_000);
            let len = if is_foreign { len.next_multiple_of(1 << 16) } else { len };
            memory.prepare(tenant, module as u64 + 1, layout, len, 8 * MIB).expect("room");
            let what = format!("seed {seed}, invocation {invocation}, module {module}");
            if tenant != owner || is_foreign {
                assert_clean(&memory, layout, &what);
            }
            if is_foreign {
                let [own, _] = memory.granted_parts();
                assert!(own.end <= len, "{what}: a fault comes where a foreign module's memory ends");
            }
            use_memory(&mut memory, random);
            memory.ended_well = false;
            owner = tenant;
            let hot = first + 65_536;
            while random.random_bool(0.8) && memory.unreclaimed_bytes(hot) > 0 {
                memory.reclaim(hot, 1 << random.random_range(12..18)).expect("the kernel takes it");
            }
        }
    }
}

#[test]
fn a_memory_that_the_kernel_has_wiped_begins_as_small_as_a_new_one() {
    let layout = &layouts()[0];
    let len = layout.heap_base as usize + 4 * WIPE_BY_WRITING_BYTES;
    let mut memory = GuestMemory::new(|number| number).expect("addresses");
    let mut begun = |tenant| {
        memory.prepare(tenant, 1, layout, len, 8 * MIB).expect("room");
        let granted = memory.granted_parts();
        assert!(memory.grow(memory.base() + len - 1) && memory.grow(memory.base()), "all of it is used");
        granted
    };
    let [first, second] = [begun(1), begun(2)];
    assert_eq!(first, second);
    assert!(first[0].len() < WIPE_BY_WRITING_BYTES, "{first:?}");
}

#[test]
fn an_empty_record_has_an_address_wherever_records_are_copied() {
    for layout in layouts() {
        let mut memory = GuestMemory::new(|number| number).expect("addresses");
        let len = (layout.heap_base as usize + 20_000).max(layout.memory_bytes as usize);
        memory.prepare(1, 1, &layout, len, 8 * MIB).expect("room");
        memory.reserve_records(100).expect("room");
        let near = layout.heap_base + 300;
        let parts = if layout.is_ours() { [(near, near + 40), (near, near), (0, 0)] } else { [(0, 0); 3] };
        for part in parts {
            memory.set_near_records(part).expect("room");
            for bytes in [0, 5, 0, 40, 0] {
                memory.align_records();
                while !memory.has_record_bytes(bytes) {
                    memory.grow_records(memory.record_growth(bytes).expect("room")).expect("room");
                }
                assert_ne!(memory.take_records(bytes), 0, "address 0 says that there is no record");
            }
        }
    }
}

#[test]
fn a_list_that_is_longer_than_any_memory_is_refused() {
    let layout = &layouts()[0];
    let mut memory = GuestMemory::new(|number| number).expect("addresses");
    memory.prepare(1, 1, layout, layout.heap_base as usize + 20_000, 8 * MIB).expect("room");
    assert!(memory.list::<u64>(layout.heap_base, 100).is_ok());
    // Some of these wrap around to a length that is there.
    for len in [1 << 28, 1 << 29, (1 << 61) + 1, usize::MAX / 8, usize::MAX] {
        assert_eq!(memory.list::<u64>(layout.heap_base, len).err(), Some(abi::STATUS_INVALID), "{len}");
    }
}
