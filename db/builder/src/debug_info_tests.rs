//! Maps of real extensions.

use std::collections::BTreeSet;

use sandstorm_sandbox::SandboxImage;
use sandstorm_sandbox::code_map::{CodeMap, split_code_map};

use super::tests::{job, source, toolchain};
use super::{build_library, build_sandboxed};

/// One function that is inlined, one that is not, and a closure.
const SOURCE: &str = "#![no_std]
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let sum = args.iter().map(|byte| weight(*byte)).sum::<u64>();
    db.reply(&outer(sum).to_le_bytes())
}
#[inline(always)] fn weight(byte: u8) -> u64 {
    u64::from(byte) * 7
}
#[inline(never)]
fn outer(mut value: u64) -> u64 {
    while value % 3 != 1 {
        value = value / 2 + 5;
    }
    value
}
";

#[test]
fn each_tier_has_a_map_of_the_lines_and_no_debug_information() {
    let (toolchain, source) = (toolchain(), source(SOURCE));
    for (tier, built) in [
        ("native", build_library(toolchain, &source, &job())),
        ("sandboxed", build_sandboxed(toolchain, &source, &job())),
    ] {
        let file = built.unwrap_or_else(|error| panic!("{tier}: {error}")).elf;
        let (library, bytes) = split_code_map(&file);
        let bytes = bytes.unwrap_or_else(|| panic!("{tier}: no map"));
        let map = CodeMap::read(bytes).unwrap_or_else(|| panic!("{tier}: an unreadable map"));
        println!("{tier}: a library of {} bytes, a map of {}", library.len(), bytes.len());
        let (mut lines, mut inlined, mut rules) = (BTreeSet::new(), false, 0);
        for address in 0..library.len() as u32 {
            let frames: Vec<_> = map.frames_at(address).collect();
            let own = |name: &str| frames.iter().position(|frame| frame.function.ends_with(name));
            lines.extend(frames.iter().filter(|frame| frame.file == "src/lib.rs").map(|frame| frame.line));
            inlined |=
                own("::weight").is_some_and(|at| frames[at + 1..].iter().any(|frame| frame.function.contains("run")));
            rules += usize::from(map.caller_rule(address).is_some());
            for frame in &frames {
                assert!(!frame.file.starts_with('/') && !frame.file.contains("build-"), "{tier}: {frame:?}");
                assert!(!frame.function.contains("tenant"), "{tier}: its own name: {frame:?}");
            }
        }
        assert!([4, 5, 8, 12, 13].iter().all(|line| lines.contains(line)), "{tier}: {lines:?}");
        assert!(inlined, "{tier}: what was inlined where");
        assert!(rules > library.len() / 8, "{tier}: {rules} addresses of {} have a caller", library.len());
        let has = |text: &[u8]| library.windows(text.len()).any(|window| window == text);
        assert!(!has(b".debug_info") && !has(b".symtab"), "{tier}: nothing but what is mapped is left");
        assert!(bytes.len() < 200_000, "{tier}: {} bytes", bytes.len());
    }
}

/// A loop whose last instruction, a jump, has no line in the machine code.
const ENDLESS: &str = "#![no_std]
use core::hint::black_box;
use sandstorm_api::prelude::*;
pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    spin()
}
#[inline(never)]
fn spin() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}
";

#[test]
fn each_instruction_of_a_loop_has_a_place() {
    /// What the linker fills the room between functions with.
    const PADDING: u8 = 0xcc;
    const SHORT_JUMP: u8 = 0xeb;
    let file = build_sandboxed(toolchain(), &source(ENDLESS), &job()).expect("it compiles").elf;
    let (library, bytes) = split_code_map(&file);
    let map = CodeMap::read(bytes.expect("a map")).expect("a readable map");
    let image = SandboxImage::decode(library).expect("an image");
    let is_in_loop = |address: u32| map.frames_at(address).any(|frame| frame.function.ends_with("::spin"));
    let end = image.code_at + image.code.len() as u32;
    let first = (image.code_at..end).find(|address| is_in_loop(*address)).expect("the loop is there");
    let code: Vec<u8> = image.code[(first - image.code_at) as usize..].to_vec();
    let length = code.iter().position(|byte| *byte == PADDING).expect("it ends");
    assert_eq!(code[length - 2], SHORT_JUMP, "it ends with its jump: {:x?}", &code[..length]);
    let without: Vec<u32> = (first..first + length as u32).filter(|address| !is_in_loop(*address)).collect();
    assert!(without.is_empty(), "{without:x?} of {first:x} to {:x} have no place", first + length as u32);
}
