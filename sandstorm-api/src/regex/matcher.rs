//! Runs the steps of an expression over a text: all ways at once, the preferred ones first.

use alloc::vec;
use alloc::vec::Vec;

use super::parser::Assertion;
use super::program::{Program, Step};

/// Ways that have come to the same character, in the order of preference, with the places that each has noted.
struct WayList {
    /// Steps that take a character, or end.
    steps: Vec<usize>,
    /// Their notes, one after the other.
    notes: Vec<Option<usize>>,
}

/// What is left to do while ways are followed to their next character.
enum Pending {
    Step(usize),
    /// A note has its old value again.
    Restore(usize, Option<usize>),
}

/// Searches from a byte of the text on, and returns the first `noted` places that the match has noted; `None`: there is
/// no match.
pub(super) fn search(program: &Program, text: &str, from: usize, noted: usize) -> Option<Vec<Option<usize>>> {
    let mut machine = Machine { program, text, noted, seen: vec![0; program.steps.len()], round: 0, pending: vec![] };
    let mut now = WayList { steps: vec![], notes: vec![] };
    let mut next = WayList { steps: vec![], notes: vec![] };
    let mut found: Option<Vec<Option<usize>>> = None;
    let mut at = from;
    machine.round = 1;
    loop {
        if found.is_none() {
            // A match may begin here, less preferred than those that have begun before.
            machine.follow(0, &mut vec![None; noted][..], at, &mut now);
        }
        let c = text[at..].chars().next();
        machine.round += 1;
        next.steps.clear();
        next.notes.clear();
        for (way, step) in now.steps.iter().enumerate() {
            let notes = &now.notes[way * noted..(way + 1) * noted];
            match &program.steps[*step] {
                Step::Found => {
                    found = Some(notes.to_vec());
                    // Those behind it are less preferred.
                    break;
                }
                Step::Take(set) => {
                    if let Some(c) = c.filter(|c| set.contains(*c)) {
                        machine.follow(step + 1, &mut notes.to_vec()[..], at + c.len_utf8(), &mut next);
                    }
                }
                Step::Assert(_) | Step::Split(..) | Step::Jump(_) | Step::Note(_) => {}
            }
        }
        let Some(c) = c else { break };
        if next.steps.is_empty() && found.is_some() {
            break;
        }
        at += c.len_utf8();
        core::mem::swap(&mut now, &mut next);
        if noted == 0 && found.is_some() {
            break;
        }
    }
    found
}

struct Machine<'p> {
    program: &'p Program,
    text: &'p str,
    noted: usize,
    /// The round in which each step was met last: a way that comes to it later is less preferred.
    seen: Vec<u32>,
    round: u32,
    pending: Vec<Pending>,
}

impl Machine<'_> {
    /// Follows a way from a step on, at this byte of the text, to all steps that take the next character.
    fn follow(&mut self, from: usize, notes: &mut [Option<usize>], at: usize, to: &mut WayList) {
        self.pending.push(Pending::Step(from));
        while let Some(pending) = self.pending.pop() {
            let step = match pending {
                Pending::Restore(note, old) => {
                    notes[note] = old;
                    continue;
                }
                Pending::Step(step) => step,
            };
            if core::mem::replace(&mut self.seen[step], self.round) == self.round {
                continue;
            }
            match &self.program.steps[step] {
                Step::Take(_) | Step::Found => {
                    to.steps.push(step);
                    to.notes.extend_from_slice(notes);
                }
                Step::Jump(next) => self.pending.push(Pending::Step(*next)),
                Step::Split(first, second) => {
                    self.pending.push(Pending::Step(*second));
                    self.pending.push(Pending::Step(*first));
                }
                Step::Note(note) => {
                    if *note < self.noted {
                        self.pending.push(Pending::Restore(*note, notes[*note]));
                        notes[*note] = Some(at);
                    }
                    self.pending.push(Pending::Step(step + 1));
                }
                Step::Assert(what) => {
                    if self.holds(*what, at) {
                        self.pending.push(Pending::Step(step + 1));
                    }
                }
            }
        }
    }

    fn holds(&self, what: Assertion, at: usize) -> bool {
        let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let bytes = self.text.as_bytes();
        let is_edge = || is_word(at.checked_sub(1).and_then(|before| bytes.get(before))) != is_word(bytes.get(at));
        match what {
            Assertion::Begin => at == 0,
            Assertion::End => at == bytes.len(),
            Assertion::WordEdge => is_edge(),
            Assertion::NoWordEdge => !is_edge(),
        }
    }
}
