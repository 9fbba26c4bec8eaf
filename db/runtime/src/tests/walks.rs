//! A look at where code is ends with some places or none, whatever is on the stack and in the registers.

use proptest::prelude::*;
use sandstorm_extension::LibraryCode;
use sandstorm_sandbox::code_map::{CallerRule, CodeMapWriter, SourceFrame};

use crate::guest_registers::GuestRegisters;
use crate::guest_walk::OpenStack;
use crate::limits::WALK_FRAMES;

/// Code with calls in every form at known places, and a map with rules of both kinds.
fn code() -> &'static (usize, LibraryCode) {
    static CODE: std::sync::OnceLock<(usize, LibraryCode)> = std::sync::OnceLock::new();
    CODE.get_or_init(|| {
        let mut bytes = vec![0x90_u8; 4096];
        for at in (0..4000).step_by(100) {
            bytes[at] = 0xe8;
            bytes[at + 50..at + 52].copy_from_slice(&[0xff, 0xd0]);
        }
        let mut writer = CodeMapWriter::default();
        for at in (0..4000_u32).step_by(40) {
            writer.add_line(at, &[SourceFrame { function: "f", file: "src/lib.rs", line: at }]);
            let rule = CallerRule { by_rbp: at % 3 == 0, frame_bytes: at % 7 * 8, rbp_words: (at % 5) as u8 };
            writer.add_caller(at, rule);
        }
        let bytes: &'static [u8] = Box::leak(bytes.into_boxed_slice());
        (bytes.as_ptr().addr(), LibraryCode::of_memory(bytes, &writer.finish()))
    })
}

/// A number that may be an address of the code, of the stack, or anything.
fn word() -> impl Strategy<Value = (u8, usize)> {
    (0..4_u8, any::<usize>())
}

proptest! {
    #[test]
    fn any_stack_and_registers_are_walked_to_an_end(
        words in proptest::collection::vec(word(), 0..200),
        registers in [word(), word(), word()],
    ) {
        let (base, code) = code();
        let mut stack = vec![0_usize; words.len()];
        let first = stack.as_ptr().addr();
        let bytes = stack.len() * 8;
        let value = |(kind, number): (u8, usize)| match kind {
            0 => number,
            1 => base + number % 4200,
            2 => base + number % 40 * 100 + 5,
            _ => first.wrapping_sub(64).wrapping_add(number % (bytes + 128)),
        };
        words.iter().zip(&mut stack).for_each(|(word, slot)| *slot = value(*word));
        let [instruction, pointer, frame] = registers.map(value);
        let copied: Vec<u8> = stack.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let open = OpenStack::new(first, &copied);
        let mut seen = Vec::new();
        open.walk(code, GuestRegisters { instruction, stack: pointer, frame }, |offset| seen.push(offset));
        prop_assert!(seen.len() <= WALK_FRAMES);
        prop_assert!(seen.iter().all(|offset| *offset < 4096));
    }
}

#[test]
fn callers_are_found_by_the_map_and_behind_what_is_not_the_librarys() {
    let (base, code) = code();
    // Rules: at 40 eight words of frame less the return address; see `code`.
    let frame_words = |at: u32| (at % 7) as usize;
    let (inner, outer) = (80_u32, 205_usize);
    assert!(inner % 3 != 0 && frame_words(inner) > 0);
    let mut stack = vec![0; 16];
    stack[frame_words(inner) - 1] = base + outer;
    stack.push(0);
    let first = stack.as_ptr().addr();
    let copied: Vec<u8> = stack.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let open = OpenStack::new(first, &copied);
    let places = |instruction| {
        let mut seen = Vec::new();
        open.walk(code, GuestRegisters { instruction, stack: first, frame: 0 }, |offset| seen.push(offset));
        seen
    };
    assert_eq!(places(base + inner as usize)[..2], [inner, outer as u32 - 1]);
    assert_eq!(places(0)[0], outer as u32 - 1, "from the host's code the library's call is searched");
    assert_eq!(places(0x1234), places(0), "and from nowhere, too");
}
