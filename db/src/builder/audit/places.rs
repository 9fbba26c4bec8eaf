//! Places with an index in them, which the compiler gets wrong in two ways.
//!
//! In `rows[0][{ … }]` the inner index is worked out after the outer one and before the place is used. What happens there to the
//! place itself goes unnoticed: a pattern can take a piece of the array away (rust-lang issue 160525: use after free), and
//! an `.await` forgets the outer index after it was checked, so that the place is anywhere. So does one in a guard of
//! `match rows[0] { … }`. Both show in the intermediate form: a run-time index into an array from which a piece was moved, and an index that nothing ever sets.

use std::collections::{HashMap, HashSet};

use super::Body;

/// How often names of pointers are written out: a box in a box in a future takes one step each.
const STEPS: usize = 6;
/// Longest text that comes of it, bytes.
const TEXT: usize = 4_096;

/// What is wrong with a function's indexed places.
pub(super) fn refused(body: &Body<'_>) -> Option<&'static str> {
    if forgets_an_index(body) {
        return Some(
            "an index is worked out before an `.await` and used behind it, where the compiler has forgotten it",
        );
    }
    uses_what_was_taken(body).then_some("an index takes a piece of the very array that it is an index of")
}

/// A line without what stands in quotes.
pub(super) fn without_text(line: &str) -> String {
    match (line.find('"'), line.rfind('"')) {
        (Some(start), Some(end)) if start < end => {
            [line.get(..start).unwrap_or_default(), line.get(end..).unwrap_or_default()].concat()
        }
        _ => line.to_owned(),
    }
}

/// The local that a text starts with: `_12`.
pub(super) fn local(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('_')?;
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    (length > 0).then(|| text.get(..=length)).flatten()
}

/// Where `[…]` stands whose inside passes, and that inside; only the first of several in a row.
pub(super) fn brackets(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<(usize, &str)> {
    let inside = |at: usize| {
        let inside = text.get(at + 1..)?.split_once(']')?.0;
        let first = !text.get(..at)?.ends_with(']');
        (first && wanted(inside)).then_some((at, inside))
    };
    text.match_indices('[').filter_map(|(at, _)| inside(at)).collect()
}

/// `[_5]`: an index that is known when the program runs.
pub(super) fn is_index(inside: &str) -> bool {
    local(inside).is_some_and(|found| found.len() == inside.len())
}

/// `[0 of 2]`, `[-1 of 2]`, `[1..3]`, `[1:]`, `[:-1]`, `[1:-1]`: a piece that a pattern names.
pub(super) fn is_piece(inside: &str) -> bool {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let parts = [" of ", "..", ":"].iter().find_map(|between| inside.split_once(between));
    parts.is_some_and(|(from, to)| plain(from) && plain(to) && !(from.is_empty() && to.is_empty()))
}

/// The place that a bracket at this byte belongs to: a local, or what stands in parentheses before it.
pub(super) fn base(text: &str, bracket: usize) -> Option<&str> {
    let before = text.get(..bracket)?;
    if !before.ends_with(')') {
        let start = before.rfind('_')?;
        return local(before.get(start..)?).filter(|found| start + found.len() == bracket);
    }
    let mut depth = 0_usize;
    for (at, byte) in before.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return before.get(at..);
        }
    }
    None
}

/// Whether an index stands in a place that the function never sets: its value was put away at an `.await`.
fn forgets_an_index(body: &Body<'_>) -> bool {
    let lines = || body.lines.iter().filter(|line| !line.starts_with("debug "));
    let set: HashSet<&str> = lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let known = |index: &str| set.contains(index) || body.head.contains(&format!("{index}: "));
    lines().filter(|line| line.contains("[_")).any(|line| {
        let line = without_text(line);
        // Not only the first of several in a row.
        line.match_indices("[_").any(|(at, _)| {
            let inside = line.get(at + 1..).and_then(|rest| rest.split_once(']')).map_or("", |(inside, _)| inside);
            is_index(inside) && !known(inside)
        })
    })
}

/// What a statement does to an array.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    /// A piece of it is moved away.
    Taken,
    /// It is set as a whole.
    Set,
    /// An element is named by a run-time index.
    Indexed,
}

struct Block {
    number: usize,
    /// In the order of the statements; the text names the array.
    events: Vec<(Event, String)>,
    next: Vec<usize>,
}

/// Whether an element is named by a run-time index after a piece of the array was moved away: everywhere else the
/// compiler refuses that itself.
fn uses_what_was_taken(body: &Body<'_>) -> bool {
    if !body.lines.iter().any(|line| line.contains("[_")) || !body.lines.iter().any(|line| takes_a_piece(line)) {
        return false;
    }
    let blocks = blocks(body);
    let named = |event: Event| -> HashSet<&str> {
        let events = blocks.iter().flat_map(|block| &block.events);
        events.filter(|(found, _)| *found == event).map(|(_, array)| array.as_str()).collect()
    };
    let (taken, indexed) = (named(Event::Taken), named(Event::Indexed));
    taken.intersection(&indexed).any(|array| indexed_after(&blocks, array))
}

fn takes_a_piece(line: &str) -> bool {
    line.contains("move ") && !brackets(line, is_piece).is_empty()
}

/// Whether control comes from where a piece was taken to an index, without the array being set in between.
fn indexed_after(blocks: &[Block], array: &str) -> bool {
    let numbers: HashMap<usize, &Block> = blocks.iter().map(|block| (block.number, block)).collect();
    let (mut seen, mut waiting) = (HashSet::new(), Vec::new());
    // The state behind a block, and whether an index was met in the state of being taken.
    let through = |block: &Block, mut gone: bool| {
        for (event, _) in block.events.iter().filter(|(_, found)| found == array) {
            match event {
                Event::Taken => gone = true,
                Event::Set => gone = false,
                Event::Indexed if gone => return (gone, true),
                Event::Indexed => {}
            }
        }
        (gone, false)
    };
    for block in blocks {
        let (gone, wrong) = through(block, false);
        if wrong {
            return true;
        }
        waiting.extend(block.next.iter().copied().filter(|_| gone));
    }
    while let Some(number) = waiting.pop() {
        let Some(block) = numbers.get(&number).filter(|_| seen.insert(number)) else { continue };
        let (gone, wrong) = through(block, true);
        if wrong {
            return true;
        }
        waiting.extend(block.next.iter().copied().filter(|_| gone));
    }
    false
}

fn blocks(body: &Body<'_>) -> Vec<Block> {
    let pointers = pointers(body);
    let mut blocks: Vec<Block> = Vec::new();
    for line in &body.lines {
        if let Some(number) = block_number(line).filter(|_| line.ends_with('{')) {
            blocks.push(Block { number, events: Vec::new(), next: Vec::new() });
            continue;
        }
        let Some(block) = blocks.last_mut() else { continue };
        let line = without_text(line);
        if let Some((_, behind)) = line.rsplit_once(" -> ") {
            block.next.extend(behind.split([' ', ',', ']', '[', ';']).filter_map(block_number));
        }
        if line.contains('[') || line.contains(" = ") {
            events(&written_out(&line, &pointers), &mut block.events);
        }
    }
    blocks
}

/// `bb12`, `bb12:`, `bb3 (cleanup): {`.
pub(super) fn block_number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix("bb")?;
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    digits.get(..length)?.parse().ok()
}

fn events(line: &str, events: &mut Vec<(Event, String)>) {
    let (left, _) = line.split_once(" = ").unwrap_or_default();
    for (at, _) in brackets(line, is_index) {
        events.extend(base(line, at).map(|array| (Event::Indexed, array.to_owned())));
    }
    for (at, _) in brackets(line, is_piece) {
        let Some(array) = base(line, at) else { continue };
        let before = line.get(..at - array.len()).unwrap_or_default().trim_end_matches(['(', '*']);
        if before.ends_with("move ") {
            events.push((Event::Taken, array.to_owned()));
        }
    }
    if !left.is_empty() {
        events.push((Event::Set, left.to_owned()));
    }
}

/// Pointers that the compiler makes to get at what is in a box or a future, and where it got them.
fn pointers<'b>(body: &'b Body<'_>) -> HashMap<&'b str, &'b str> {
    let mut pointers: HashMap<&str, Option<&str>> = HashMap::new();
    for line in &body.lines {
        let Some((name, from)) = line.split_once(" = copy ") else { continue };
        let kind = body.locals.get(name).copied().unwrap_or_default();
        let pointer = ["*const ", "*mut ", "&", "std::boxed::Box<", "Box<", "alloc::boxed::Box<"];
        if pointer.iter().any(|start| kind.starts_with(start)) {
            let from = from.split_once(" as *").map_or(from.trim_end_matches(';'), |(from, _)| from);
            let met = pointers.contains_key(name);
            pointers.insert(name, Some(from).filter(|_| !met));
        }
    }
    pointers.into_iter().filter_map(|(name, from)| Some((name, from?))).collect()
}

/// A line with pointers replaced by where they came from.
pub(super) fn written_out(line: &str, pointers: &HashMap<&str, &str>) -> String {
    let mut text = line.to_owned();
    for _ in 0..STEPS {
        let mut out = String::with_capacity(text.len());
        let (mut rest, mut changed) = (text.as_str(), false);
        while let Some(at) = rest.find('_') {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let found =
                local(from).filter(|_| !out.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_'));
            let name = found.unwrap_or("_");
            // What is set is no use of what it was.
            let set = out.is_empty() && from.get(name.len()..).is_some_and(|behind| behind.starts_with(" = "));
            match pointers.get(name).filter(|_| !set) {
                Some(origin) => {
                    out.push_str(origin);
                    changed = true;
                }
                None => out.push_str(name),
            }
            rest = from.get(name.len()..).unwrap_or_default();
        }
        out.push_str(rest);
        if !changed || out.len() > TEXT {
            return text;
        }
        text = out;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let text = "_6 = move ((_1.0: [(u8, [String; 1]); 2])[1 of 2].1: [String; 1])[0 of 1];";
        let found: Vec<&str> = brackets(text, is_piece).into_iter().filter_map(|(at, _)| base(text, at)).collect();
        assert_eq!(found[0], "(_1.0: [(u8, [String; 1]); 2])");
        assert!(is_piece("1..3") && is_piece("-1 of 2") && is_piece("1:") && is_piece(":-1") && is_piece("1:-1"));
        assert!(!is_piece("u8; 4") && !is_piece("..") && !is_piece("_1") && !is_piece("std::x"));
        assert!(is_index("_12") && !is_index("_") && !is_index("_1x") && !is_index("u8"));
        let pointers = HashMap::from([("_19", "((_1.0: Unique<T>).0: NonNull<T>)")]);
        assert_eq!(
            written_out("_9 = move (*_19)[0 of 1];", &pointers),
            "_9 = move (*((_1.0: Unique<T>).0: NonNull<T>))[0 of 1];"
        );
        assert_eq!(written_out("_19 = copy _20;", &pointers), "_19 = copy _20;");
    }
}
