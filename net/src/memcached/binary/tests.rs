//! The reading of frames against the slow one, whole and in pieces, and answers.

use super::reference::{self, assert_agrees};
use super::*;
use proptest::prelude::*;

/// A frame whose lengths fit its command more often than random ones.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let lengths = (
        prop_oneof![Just(0u8), Just(4), Just(8), Just(20), any::<u8>()],
        prop_oneof![Just(0u16), 1..6u16, Just(32), Just(33), Just(250), Just(251), any::<u16>()],
        prop_oneof![Just(0i64), 1..40i64, Just(300), Just(301), Just(1024), Just(1025), -30..1i64, Just(1 << 30)],
    );
    let numbers = (prop_oneof![0..0x26u8, any::<u8>()], any::<u32>(), prop_oneof![Just(0), any::<u64>()]);
    (numbers, lengths, any::<u8>()).prop_map(|((opcode, opaque, cas), (extras, key, value), fill)| {
        let body = (i64::from(extras) + i64::from(key) + value).max(0) as u32;
        let mut frame = vec![MAGIC, opcode];
        frame.extend_from_slice(&key.to_be_bytes());
        frame.extend_from_slice(&[extras, 0, 0, 0]);
        frame.extend_from_slice(&body.to_be_bytes());
        frame.extend_from_slice(&opaque.to_be_bytes());
        frame.extend_from_slice(&cas.to_be_bytes());
        frame.extend((0..body.min(2000)).map(|at| fill.wrapping_add(at as u8)));
        frame
    })
}

proptest! {
    #[test]
    fn both_readings_agree_on_frames_cut_anywhere(frame in frame(), cut in any::<prop::sample::Index>()) {
        assert_agrees(&frame);
        assert_agrees(&frame[..cut.index(frame.len())]);
        assert_agrees(&frame[..cut.index(25).min(frame.len())]);
    }

    #[test]
    fn both_readings_agree_on_streams_and_junk(
        frames in prop::collection::vec(frame(), 0..6),
        junk in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        reference::fuzz(&[frames.concat(), junk.clone()].concat());
        reference::fuzz(&[&[MAGIC][..], &junk].concat());
    }
}

/// The header of a frame.
fn header(opcode: u8, key: u16, extras: u8, body: u32) -> Vec<u8> {
    let mut frame = vec![MAGIC, opcode];
    frame.extend_from_slice(&key.to_be_bytes());
    frame.extend_from_slice(&[extras, 0, 0, 0]);
    frame.extend_from_slice(&body.to_be_bytes());
    frame.extend_from_slice(&[0; 12]);
    frame
}

#[test]
fn no_more_is_waited_for_than_a_permitted_command_can_need() {
    for opcode in 0..=255 {
        for (key, extras, body) in [(0, 0, u32::MAX), (u16::MAX, 255, u32::MAX), (3, 8, 1 << 30), (250, 20, 2000)] {
            if let BinaryParse::Incomplete(needed) = parse(&header(opcode, key, extras, body), 300) {
                assert!(needed <= HEADER_LEN + 20 + MAX_KEY_LEN + 300, "{opcode:#x} waits for {needed} bytes");
            }
        }
    }
}

#[test]
fn an_answer_has_its_parts_in_order() {
    let mut out = Vec::new();
    let (status, extras, key) = (BinaryStatus::NotFound, &b"ex"[..], &b"key"[..]);
    BinaryResponseHeader { opcode: 0x0c, opaque: 0x0102_0304, status, cas: 5, extras, key }.push(b"value", &mut out);
    let head = b"\x81\x0c\0\x03\x02\0\0\x01\0\0\0\x0a\x01\x02\x03\x04\0\0\0\0\0\0\0\x05";
    assert_eq!(out, [&head[..], b"exkeyvalue"].concat());
}

#[test]
fn each_quiet_command_is_another_one_and_no_number_is_used_twice() {
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::of(*opcode as u8), Some(*opcode));
        assert_eq!(opcode.plain().plain(), opcode.plain());
    }
    assert_eq!(Opcode::ALL.len(), 36);
}
