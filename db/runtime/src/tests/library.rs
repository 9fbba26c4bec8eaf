//! Real compiled extensions: they load, run, misbehave and unload; any other file is refused before it is mapped.

use std::os::unix::fs::MetadataExt;

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use sandstorm_api::abi;

use super::*;
use sandstorm_extension::check_elf as check;

const GET: &str = include_str!("../../../../ext/get/src/lib.rs");
const BAD: &str = include_str!("../../../../ext/bad/src/lib.rs");

fn table_args(world: &World, rest: &[u8]) -> Vec<u8> {
    [&world.table().id.to_le_bytes(), rest].concat()
}

#[test]
fn a_compiled_extension_yields_and_answers() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let get = compiled("get", GET);
    let args = table_args(&world, b"one");
    let mut invocation = world.begin(&get, &args, long());
    assert_eq!(world.poll(&mut invocation), PollOutcome::Pending, "the bucket is prefetched");
    assert_eq!(world.poll(&mut invocation), PollOutcome::Done);
    assert_eq!(invocation.reply(), b"first");
    world.engine.finish(&world.participant, invocation);
    let mut alone = world.begin(&get, &args, long());
    assert_eq!(world.engine.poll(&world.participant, &mut alone, NOW_MS, false), PollOutcome::Done);
    world.engine.finish(&world.participant, alone);
    let absent = table_args(&world, b"two");
    let (end, _, text) = world.run(&get, &absent, long());
    assert_eq!((end, text.as_str()), (PollOutcome::Failed { code: 1 }, "no record under the key"));
}

#[test]
fn a_compiled_bad_extension_ends_in_each_way() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let (get, bad) = (compiled("get", GET), compiled("bad", BAD));
    let good_args = table_args(&world, b"one");
    let kinds = [
        ("loop", KillCause::TotalBudget),
        ("loop-scans", KillCause::TotalBudget),
        ("memcpy", KillCause::TotalBudget),
        ("slow-drop", KillCause::TotalBudget),
        ("yields", KillCause::TotalBudget),
        ("loop-gets", KillCause::TotalBudget),
        ("recursion", KillCause::StackOverflow),
        ("frame", KillCause::StackOverflow),
        ("allocation", KillCause::OutOfMemory),
        ("one-allocation", KillCause::OutOfMemory),
        ("panic", KillCause::Panic),
        ("division", KillCause::Panic),
        ("bounds", KillCause::Panic),
        ("unwrap", KillCause::Panic),
        ("overflow", KillCause::Panic),
    ];
    for _ in 0..5 {
        for (kind, cause) in kinds {
            let budget = match cause {
                KillCause::TotalBudget => short(),
                _ => long(),
            };
            let args = table_args(&world, kind.as_bytes());
            let (end, reply, text) = world.run(&bad, &args, budget);
            assert_eq!((end, reply.as_slice()), (PollOutcome::Killed(cause), b"".as_slice()), "{kind}: {text}");
            if kind == "panic" {
                assert!(text.starts_with("panicked as asked at src/lib.rs:"), "{text}");
            }
            let (end, reply, _) = world.run(&get, &good_args, long());
            assert_eq!((end, reply.as_slice()), (PollOutcome::Done, b"first".as_slice()), "after {kind}");
        }
    }
    let args = table_args(&world, b"reply");
    assert_eq!(world.run(&bad, &args, Budget { reply_bytes: 1 << 16, ..long() }).0, PollOutcome::Failed { code: 5 });
}

const ODD: &str = r#"
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

#[derive(Clone, Copy)]
#[repr(align(256))]
struct Wide([u8; 256]);

struct Loud;
impl core::fmt::Display for Loud {
    fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        panic!("panicked while it panicked")
    }
}

async fn wide(fill: u8) -> usize {
    let wide = core::hint::black_box(Wide([fill; 256]));
    yield_now().await;
    wide.0.iter().filter(|byte| **byte != fill).count()
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    match args {
        b"reserve" => {
            let mut bytes: Vec<u8> = Vec::new();
            if bytes.try_reserve(1 << 30).is_ok() {
                return Err(Error::new("a gigabyte out of four megabytes"));
            }
            bytes.try_reserve(3 << 20).map_err(|_| Error::new("three megabytes out of four"))?;
            bytes.resize(3 << 20, 7);
            db.reply(&bytes[bytes.len() - 2..])
        }
        b"churn" => {
            let mut sum = 0u64;
            for round in 0..2000usize {
                let bytes = vec![round as u8; 1 << (round % 20)];
                sum += core::hint::black_box(&bytes).len() as u64;
            }
            db.reply(&sum.to_le_bytes())
        }
        b"wide" => db.reply(&[wide(3).await as u8]),
        b"loud" => panic!("{}", Loud),
        b"nothing" => Ok(()),
        _ => Err(Error::from(format!("{} bytes", args.len()))),
    }
}
"#;

#[test]
fn memory_alignment_and_nested_panics_of_compiled_code() {
    let mut world = World::new();
    let odd = compiled("odd", ODD);
    for _ in 0..3 {
        assert_eq!(world.run(&odd, b"reserve", long()), (PollOutcome::Done, vec![7, 7], String::new()));
        assert_eq!(world.run(&odd, b"wide", long()), (PollOutcome::Done, vec![0], String::new()));
        assert_eq!(world.run(&odd, b"churn", long()).0, PollOutcome::Done);
        assert!(matches!(world.run(&odd, b"loud", long()).0, PollOutcome::Killed(_)));
        assert_eq!(world.run(&odd, b"nothing", long()), (PollOutcome::Done, vec![], String::new()));
        assert_eq!(world.run(&odd, b"12345", long()).2, "5 bytes");
    }
}

#[test]
fn code_that_asks_for_static_data_does_not_compile() {
    let greedy = [
        "pub async fn run(db: Db<'static>, args: &[u8]) -> Result<(), Error> { db.reply(args) }",
        "pub async fn run(db: Db<'_>, args: &'static [u8]) -> Result<(), Error> { db.reply(args) }",
        "pub fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { db.reply(args) }",
    ];
    for run in greedy {
        let text = format!("#![no_std]\nuse sandstorm_api::prelude::*;\n{run}\n");
        let built = try_compile("greedy", &text);
        assert!(matches!(built, Err(builder::BuildError::Compile(_))), "{run}");
    }
}

#[test]
fn an_unloaded_library_leaves_no_mapping_and_no_descriptor() {
    let mut world = World::new();
    world.put(b"one", b"first");
    let file = compile("get", GET);
    let args = table_args(&world, b"one");
    for _ in 0..20 {
        let library = ExtensionLibrary::load(&file, builder::api_fingerprint()).unwrap();
        let inode = library.file().unwrap().metadata().unwrap().ino();
        assert!(mappings(inode) > 0 && descriptors(inode) == 1);
        let extension = Arc::new(LoadedExtension::new("get", 1, library, BudgetOverride::default()));
        let mut pending = world.begin(&extension, &args, long());
        assert_eq!(world.poll(&mut pending), PollOutcome::Pending);
        drop(extension);
        assert!(mappings(inode) > 0, "an invocation keeps its library");
        assert_eq!(world.complete(&mut pending), PollOutcome::Done);
        assert_eq!(pending.reply(), b"first");
        world.engine.finish(&world.participant, pending);
        assert_eq!((mappings(inode), descriptors(inode)), (0, 0));
    }
}

#[test]
fn an_abandoned_invocation_is_forgotten_and_counted() {
    let mut world = World::new();
    let get = compiled("get", GET);
    let args = table_args(&world, b"one");
    let fresh = world.begin(&get, &args, long());
    world.engine.finish(&world.participant, fresh);
    let mut pending = world.begin(&get, &args, long());
    assert_eq!(world.poll(&mut pending), PollOutcome::Pending);
    assert_eq!(get.stats.read().live(), 1);
    world.engine.finish(&world.participant, pending);
    let counts = get.stats.read();
    assert_eq!((counts.live(), counts.killed[sandstorm_metrics::cause_index(KillCause::Unloaded)]), (0, 2));
}

fn mappings(inode: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inode = inode.to_string();
    maps.lines()
        .filter(|line| line.contains("sandstorm-extension") && line.split(' ').any(|word| word == inode))
        .count()
}

fn descriptors(inode: u64) -> usize {
    let ours = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        let same = std::fs::metadata(&path).ok()?.ino() == inode;
        (same && target.to_string_lossy().contains("sandstorm-extension")).then_some(())
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(ours).count()
}

/// Returns the offset of the program header of that type.
fn header_at(file: &[u8], kind: elf::ProgramType) -> usize {
    let header = elf::FileHeader64::<LE>::parse(file).unwrap();
    let headers = header.program_headers(LE, file).unwrap();
    let index = headers.iter().position(|header| header.p_type(LE) == kind).unwrap();
    64 + 56 * index
}

/// Returns the offset of the dynamic table's entry of that tag.
fn dynamic_at(file: &[u8], tag: u64) -> usize {
    let header = header_at(file, elf::PT_DYNAMIC);
    let table = u64::from_le_bytes(file[header + 8..header + 16].try_into().unwrap()) as usize;
    (table..file.len()).step_by(16).find(|at| file[*at..*at + 8] == tag.to_le_bytes()).unwrap()
}

/// Returns the address of that tag in the dynamic table; the first segment lies at 0, as it does in the file.
fn dynamic_value(file: &[u8], tag: u64) -> usize {
    number_at(file, dynamic_at(file, tag) + 8, 8)
}

/// Returns the little-endian number of so many bytes.
fn number_at(file: &[u8], at: usize, bytes: usize) -> usize {
    file[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn refusal(file: &[u8]) -> String {
    ExtensionLibrary::load(file, builder::api_fingerprint()).unwrap_err().to_string()
}

#[test]
fn files_that_would_reach_outside_are_refused_each_with_its_reason() {
    // Without the map of its lines, which lies behind it.
    let good = sandstorm_sandbox::code_map::split_code_map(&compile("get", GET)).0.to_vec();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = good.clone();
        change(&mut file);
        refusal(&file)
    };
    let stack = header_at(&good, elf::PT_GNU_STACK);
    let load = header_at(&good, elf::PT_LOAD);
    let count = dynamic_at(&good, 0x6fff_fff9);
    let name = good.windows(7).position(|bytes| bytes == b"memcpy\0").unwrap();
    let vtable = good.windows(18).position(|bytes| bytes == b"SANDSTORM_EXTENSIO").unwrap();
    let tag = |file: &mut Vec<u8>, tag: u64| file[count..count + 8].copy_from_slice(&tag.to_le_bytes());
    let reasons = [
        (with(&|file| file[stack..stack + 4].copy_from_slice(&7_u32.to_le_bytes())), "PT_TLS"),
        (with(&|file| file[stack..stack + 4].copy_from_slice(&3_u32.to_le_bytes())), "PT_INTERP"),
        (with(&|file| file[stack + 4] = 7), "executable stack"),
        (with(&|file| file[load + 4] = 7), "writable and executable"),
        (with(&|file| tag(file, 1)), "DT_NEEDED"),
        (with(&|file| tag(file, 12)), "init"),
        (with(&|file| tag(file, 25)), "init"),
        (with(&|file| tag(file, 26)), "fini"),
        (with(&|file| tag(file, 0x7fff_fffd)), "dynamic table has an entry"),
        (with(&|file| file[name..name + 6].copy_from_slice(b"malloc")), "imports `malloc`"),
        (with(&|file| file[vtable] = b'X'), "does not export"),
        (with(&|file| file.truncate(file.len() / 2)), "outside the file"),
        (with(&|file| file.truncate(20)), "not a 64-bit"),
        (with(&|file| file[0] = 0), "not a 64-bit"),
        (with(&|file| file[18] = 40), "not a shared library for x86_64"),
        (with(&|file| file.resize(17 << 20, 0)), "more than the limit"),
    ];
    for (found, expected) in reasons {
        assert!(found.contains(expected), "{found:?} should say {expected:?}");
    }
    assert!(ExtensionLibrary::load(&good, builder::api_fingerprint()).is_ok());
}

#[test]
fn a_loader_led_elsewhere_than_the_check_is_noticed() {
    let good = compile("get", GET);
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&file)
    };
    // An absolute symbol's address does not count from the library's base.
    let symbols = dynamic_value(&good, 6);
    let size = size_of::<abi::ExtensionVtable>();
    let vtable = (symbols..).step_by(24).find(|at| number_at(&good, at + 16, 8) == size).unwrap();
    let found = with(vtable + 6, &elf::SHN_ABS.0.to_le_bytes());
    assert!(found.contains("refused") && found.contains("elsewhere than the check"), "{found}");
    let hash = dynamic_value(&good, 0x6fff_fef5);
    let heads = hash + 16 + 8 * number_at(&good, hash + 8, 4);
    let head = (heads..).step_by(4).find(|at| number_at(&good, *at, 4) > 0).unwrap();
    let chains = heads + 4 * number_at(&good, hash, 4);
    let last = (chains..).step_by(4).find(|at| good[*at] & 1 == 1).unwrap();
    let found = [
        with(hash, &[0; 4]),
        with(hash + 8, &3_u32.to_le_bytes()),
        with(hash + 4, &[0xff; 4]),
        with(head, &0x00ff_ffff_u32.to_le_bytes()),
        with(last, &[good[last] & 0xfe]),
    ];
    assert!(found.iter().all(|found| found.contains("refused") && found.contains("DT_GNU_HASH")), "{found:#?}");
}

#[test]
fn nothing_but_a_librarys_own_data_is_made_read_only() {
    let good = compile("get", GET);
    let relro = header_at(&good, elf::PT_GNU_RELRO);
    let (start, size) = (number_at(&good, relro + 16, 8), number_at(&good, relro + 40, 8));
    assert!(size > 0);
    let with = |start: usize, size: usize| {
        let mut file = good.clone();
        file[relro + 16..relro + 24].copy_from_slice(&start.to_le_bytes());
        file[relro + 40..relro + 48].copy_from_slice(&size.to_le_bytes());
        refusal(&file)
    };
    let code = header_at(&good, elf::PT_LOAD);
    let found = [
        with(start, size + (1 << 20)),
        with(start, usize::MAX),
        with(start + (1 << 30), size),
        with(start.wrapping_sub(1 << 30), size),
        with(number_at(&good, code + 16, 8), 0x1000),
    ];
    assert!(found.iter().all(|found| found.contains("refused") && found.contains("PT_GNU_RELRO")), "{found:#?}");
}

#[test]
fn other_interfaces_are_refused_apart() {
    let good = compile("get", GET);
    let found = ExtensionLibrary::load(&good, 1).unwrap_err();
    assert!(matches!(found, LoadError::OtherApi { server: 1, .. }), "{found}");
    let fingerprint = builder::api_fingerprint().to_le_bytes();
    let at = good.windows(8).position(|bytes| bytes == fingerprint).unwrap();
    let mut other = good;
    other[at - 8..at - 4].copy_from_slice(&9_u32.to_le_bytes());
    let found = ExtensionLibrary::load(&other, builder::api_fingerprint()).unwrap_err();
    assert!(matches!(found, LoadError::OtherAbi { library: 9, .. }), "{found}");
}

#[test]
fn damaged_files_never_upset_the_check() {
    let good = compile("get", GET);
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let mut file = good.clone();
        for _ in 0..1 + random(4) {
            // Mostly in the headers and tables.
            let at = if random(4) == 0 { random(file.len()) } else { random(0x800.min(file.len())) };
            file[at] = [0, 1, 0xff, 0x80, random(256) as u8][random(5)];
        }
        if random(8) == 0 {
            file.truncate(random(good.len()));
        }
        let _refused_or_not = check(&file);
    }
}
