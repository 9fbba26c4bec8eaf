use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn frame_of(number: u32) -> Vec<(String, String, u32)> {
    let one = |depth: u32| (format!("f{}", number % 7 + depth), format!("src/{}.rs", number % 3), number * 3 + depth);
    (0..number % 4).map(one).collect()
}

fn borrowed(frames: &[(String, String, u32)]) -> Vec<SourceFrame<'_>> {
    frames.iter().map(|(function, file, line)| SourceFrame { function, file, line: *line }).collect()
}

proptest! {
    #[test]
    fn a_map_answers_as_a_sorted_map_does(
        lines in proptest::collection::btree_map(0..5_000_u32, 0..90_u32, 0..300),
        callers in proptest::collection::btree_map(0..5_000_u32, (any::<bool>(), 0..(1_u32 << 24), 0..128_u8), 0..300),
        asked in proptest::collection::vec(0..6_000_u32, 50),
    ) {
        let mut writer = CodeMapWriter::default();
        for (address, number) in &lines {
            writer.add_line(*address, &borrowed(&frame_of(*number)));
        }
        let rule = |(by_rbp, frame_bytes, rbp_words): (bool, u32, u8)| CallerRule { by_rbp, frame_bytes, rbp_words };
        for (address, of) in &callers {
            writer.add_caller(*address, rule(*of));
        }
        let map = CodeMap::read(&writer.finish()).expect("a map");
        fn last<T: Copy>(of: &BTreeMap<u32, T>, address: u32) -> Option<T> {
            of.range(..=address).next_back().map(|(_, value)| *value)
        }
        for address in asked.into_iter().chain(lines.keys().copied()).chain(callers.keys().copied()) {
            let expected = last(&lines, address).map(frame_of).unwrap_or_default();
            prop_assert_eq!(map.frames_at(address).collect::<Vec<_>>(), borrowed(&expected));
            let expected = last(&callers, address).map(rule).filter(|rule| rule.frame_bytes != 0);
            prop_assert_eq!(map.caller_rule(address), expected);
        }
    }

    #[test]
    fn bytes_that_are_no_map_are_read_to_an_end(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        cut in any::<prop::sample::Index>(),
        changed in any::<u8>(),
        address in any::<u32>(),
    ) {
        let mut writer = CodeMapWriter::default();
        for number in 0..60 {
            writer.add_line(number * 5, &borrowed(&frame_of(number)));
            writer.add_caller(number * 9, CallerRule { frame_bytes: number * 8, ..CallerRule::default() });
        }
        let mut spoilt = writer.finish();
        let at = cut.index(spoilt.len());
        spoilt[at] = changed;
        for bytes in [bytes, spoilt] {
            if let Some(map) = CodeMap::read(&bytes) {
                for address in [address, address % 600, 0, u32::MAX] {
                    prop_assert!(map.frames_at(address).count() <= INLINED_FRAMES_MAX);
                    map.caller_rule(address);
                }
            }
        }
    }
}

#[test]
fn a_library_is_found_before_its_map_and_without_one() {
    let mut writer = CodeMapWriter::default();
    writer.add_line(7, &[SourceFrame { function: "ext::run", file: "src/lib.rs", line: 3 }]);
    let map = writer.finish();
    let file = with_code_map(b"library".to_vec(), &map);
    assert_eq!(split_code_map(&file), (&b"library"[..], Some(&map[..])));
    for plain in [&b"library"[..], b"", b"sandmap\x01", &[&[255; 8], &MAGIC[..]].concat()] {
        assert_eq!(split_code_map(plain), (plain, None), "nothing is cut off that is no map");
    }
    assert_eq!(with_code_map(b"library".to_vec(), &vec![0; CODE_MAP_MAX_BYTES + 1]), b"library", "too long");
}

#[test]
fn names_are_cut_between_characters() {
    let mut writer = CodeMapWriter::default();
    let name = format!("{}é", "x".repeat(NAME_MAX_BYTES - 1));
    writer.add_line(0, &[SourceFrame { function: &name, file: "", line: 0 }]);
    let map = CodeMap::read(&writer.finish()).expect("a map");
    assert_eq!(map.frames_at(0).next().map(|frame| frame.function.len()), Some(NAME_MAX_BYTES - 1));
}
