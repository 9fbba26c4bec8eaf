//! Tests of the verifier, with machine code of which every byte is written down.

mod random;

use super::*;
use crate::layout::PAGE_BYTES;
use crate::{HostFunction, ModuleLayout};

/// The rules, each with code that breaks it and code next to that which does not.
const RULES: &str = include_str!("rules.txt");

/// Where the test images' constants begin, and their length.
const CONSTANTS: std::ops::Range<u32> = PAGE_BYTES as u32..PAGE_BYTES as u32 + 32;

/// An image of this code, which begins with the function that the host enters.
fn image(code: &[u8]) -> SandboxImage {
    SandboxImage {
        layout: ModuleLayout::default(),
        constants_at: CONSTANTS.start,
        constants: vec![7; CONSTANTS.len()],
        code_at: 2 * PAGE_BYTES as u32,
        code: code.to_vec(),
        start: 0,
        poll: 0,
    }
}

/// A line of the rules.
struct RuleCase<'a> {
    code: Vec<u8>,
    text: &'a str,
    /// The beginning of the reason why it is refused; `None`: it passes.
    refused: Option<&'a str>,
}

impl RuleCase<'_> {
    fn read(line: &str) -> RuleCase<'_> {
        let mut parts = line.get(2..).expect("a mark and a space").split(" | ");
        let bytes = parts.next().expect("bytes").split_whitespace();
        let code = bytes.map(|byte| u8::from_str_radix(byte, 16).expect("two digits")).collect();
        let text = parts.next().expect("the text");
        RuleCase { code, text, refused: line.starts_with('-').then(|| parts.next().unwrap_or_default().trim()) }
    }

    fn wrong(&self) -> Option<String> {
        match (verify(&image(&self.code)), self.refused) {
            (Ok(_), None) => None,
            (Err(error), Some(reason)) if error.reason.starts_with(reason) => None,
            (found, expected) => Some(format!("{}: {found:?}, expected {expected:?}", self.text)),
        }
    }
}

#[test]
fn each_rule_refuses_what_breaks_it_and_passes_what_does_not() {
    let (mut wrong, mut refused, mut passed) = (Vec::new(), 0, 0);
    for group in RULES.split("\n\n").skip(1) {
        let lines = group.lines().filter(|line| !line.starts_with('#'));
        let cases: Vec<_> = lines.map(RuleCase::read).collect();
        let refusals = cases.iter().filter(|case| case.refused.is_some()).count();
        assert!(refusals > 0 && refusals < cases.len(), "a rule without a case of either kind: {group}");
        (refused, passed) = (refused + refusals, passed + cases.len() - refusals);
        wrong.extend(cases.iter().filter_map(RuleCase::wrong));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > 300 && passed > 50, "the list of rules has shrunk: {refused} and {passed}");
}

#[test]
fn every_function_of_the_host_is_called_by_its_own_entry() {
    for function in HostFunction::ALL {
        let mut code = vec![0x65, 0xff, 0x14, 0x25];
        code.extend(function.address_at().to_le_bytes());
        code.push(0xc3);
        assert!(verify(&image(&code)).is_ok(), "{function:?}");
    }
}

#[test]
fn both_entries_are_followed_and_lie_in_the_code() {
    // A return; then an instruction that is not allowed.
    let code = [0xc3, 0x0f, 0x05];
    let entered = |start, poll| verify(&SandboxImage { start, poll, ..image(&code) });
    assert!(entered(0, 0).is_ok());
    for (start, poll) in [(0, 1), (1, 0), (0, 3), (3, 0), (u32::MAX, 0), (0, u32::MAX)] {
        assert!(entered(start, poll).is_err(), "{start}, {poll}");
    }
}

#[test]
fn more_instructions_than_are_verified_are_refused() {
    let mut code = vec![0x90; INSTRUCTIONS_MAX];
    code.push(0xc3);
    let error = verify(&image(&code)).expect_err("too many");
    assert_eq!(error.reason, "there are more instructions than are verified");
}
