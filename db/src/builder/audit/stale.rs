//! Places that are used although what was checked of them has changed.
//!
//! `match x { Some(_) if { x = None; … } => …, Some(ref y) => … }` looks at `x` once. That guards do not change it, the compiler
//! checks with a borrow that counts only where the guard can succeed, and that an assignment to `x.1` makes it forget
//! (rust-lang issues 161578, 160599: use of what is not there); the same with `x[0][{ x = …; 0 }]` (161852). Whatever the
//! source says, the intermediate form shows it: a variant, or an element of a slice, is named behind a change of its place, and
//! no discriminant or length was read in between.

use std::collections::{HashMap, HashSet};

use super::Body;
use super::places::{base, block_number, brackets, is_index, is_piece, local, without_text, written_out};

/// What a statement has to do with a place.
#[derive(Clone, Copy, PartialEq)]
enum Event {
    /// Its discriminant or length is read.
    Checked,
    /// A variant or element of it is named.
    Used,
    /// It, or what leads to it, is set or borrowed to be changed.
    Changed,
}

#[derive(Default)]
struct Block {
    events: Vec<(Event, String)>,
    next: Vec<usize>,
}

/// Whether a place is used behind a change and before it is checked again.
pub(super) fn refused(body: &Body<'_>) -> bool {
    let blocks = blocks(body);
    let named = |event: Event| -> HashSet<&str> {
        let events = blocks.values().flat_map(|block| &block.events);
        events.filter(|(found, _)| *found == event).map(|(_, place)| place.as_str()).collect()
    };
    let changed = named(Event::Changed);
    // What is never checked needs no check: the only variant of a type.
    let places: Vec<&str> = named(Event::Checked).intersection(&named(Event::Used)).copied().collect();
    places.into_iter().any(|place| changed.iter().any(|one| leads_to(one, place)) && used_after_change(&blocks, place))
}

fn used_after_change(blocks: &HashMap<usize, Block>, place: &str) -> bool {
    let through = |block: &Block, mut stale: bool| {
        for (event, found) in &block.events {
            match event {
                Event::Checked if found == place => stale = false,
                Event::Used if stale && found == place => return (stale, true),
                Event::Changed if leads_to(found, place) => stale = true,
                _ => {}
            }
        }
        (stale, false)
    };
    let (mut seen, mut waiting) = (HashSet::new(), Vec::new());
    for block in blocks.values() {
        let (stale, wrong) = through(block, false);
        if wrong {
            return true;
        }
        waiting.extend(block.next.iter().copied().filter(|_| stale));
    }
    while let Some(number) = waiting.pop() {
        let Some(block) = blocks.get(&number).filter(|_| seen.insert(number)) else { continue };
        let (stale, wrong) = through(block, true);
        if wrong {
            return true;
        }
        waiting.extend(block.next.iter().copied().filter(|_| stale));
    }
    false
}

/// Whether a change of the one place is one of the other: it is a part of its name.
fn leads_to(changed: &str, place: &str) -> bool {
    let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    place.match_indices(changed).any(|(at, _)| {
        let bytes = place.as_bytes();
        !is_word(at.checked_sub(1).and_then(|before| bytes.get(before))) && !is_word(bytes.get(at + changed.len()))
    })
}

fn blocks(body: &Body<'_>) -> HashMap<usize, Block> {
    let (pointers, lengths) = (pointers(body), of_lengths(body));
    let resumes = body.lines.iter().any(|line| line.contains(" as variant#"));
    let (mut blocks, mut current) = (HashMap::<usize, Block>::new(), None);
    for line in &body.lines {
        if let Some(number) = block_number(line).filter(|_| line.ends_with('{')) {
            current = Some(number);
            blocks.entry(number).or_default();
            continue;
        }
        let Some(block) = current.and_then(|number| blocks.get_mut(&number)) else { continue };
        let line = without_text(line);
        if let Some((_, behind)) = line.rsplit_once(" -> ") {
            block.next.extend(behind.split([' ', ',', ']', '[', ';']).filter_map(block_number));
        }
        // What is put away at an `.await` is found again where the function is entered.
        if line == "return;" && resumes {
            block.next.push(0);
        }
        events(&line, &pointers, &lengths, &mut block.events);
    }
    blocks
}

/// Names that the compiler gives to pointers on the way to a place, and where it got them. Not the source's own
/// variables.
fn pointers<'b>(body: &'b Body<'_>) -> HashMap<&'b str, &'b str> {
    let mut pointers: HashMap<&str, Option<&str>> = HashMap::new();
    let own: HashSet<&str> = body
        .lines
        .iter()
        .filter(|line| line.starts_with("debug "))
        .filter_map(|line| line.rsplit_once(" => ").map(|(_, place)| place.trim_end_matches(';')))
        .collect();
    for line in &body.lines {
        let Some((name, from)) = line.split_once(" = ") else { continue };
        if local(name).is_none_or(|found| found.len() != name.len()) || own.contains(name) {
            continue;
        }
        let from = from.strip_prefix("copy ").or_else(|| from.strip_prefix("&raw const (fake) "));
        let from = from.map(|from| from.split_once(" as *").map_or(from.trim_end_matches(';'), |(from, _)| from));
        let met = pointers.contains_key(name);
        pointers.insert(name, from.filter(|_| !met));
    }
    let pointer = |name: &str| {
        let kind = body.locals.get(name).copied().unwrap_or_default();
        ["*const ", "*mut ", "&", "std::boxed::Box<", "Box<", "alloc::boxed::Box<"]
            .iter()
            .any(|start| kind.starts_with(start))
    };
    pointers.into_iter().filter_map(|(name, from)| Some((name, from?))).filter(|(name, _)| pointer(name)).collect()
}

/// Pointers that are made only to read a slice's length.
fn of_lengths<'b>(body: &'b Body<'_>) -> HashSet<&'b str> {
    body.lines.iter().filter_map(|line| Some(line.split_once(" = &raw const (fake) ")?.0)).collect()
}

fn events(line: &str, pointers: &HashMap<&str, &str>, lengths: &HashSet<&str>, events: &mut Vec<(Event, String)>) {
    if line.starts_with("debug ") || line.starts_with("let ") || line.starts_with("scope ") {
        return;
    }
    let place = |text: &str| plain(&written_out(text, pointers));
    if let Some(found) = between(line, " = discriminant(", ");") {
        events.push((Event::Checked, place(found)));
    }
    for start in [" = PtrMetadata(copy ", " = PtrMetadata(move "] {
        if let Some(found) = between(line, start, ");") {
            // Of a pointer that the compiler made, or of one that is a place.
            let slice = if lengths.contains(found) { found.to_owned() } else { format!("(*{found})") };
            events.push((Event::Checked, place(&slice)));
        }
    }
    used(&written_out(line, pointers), events);
    for start in ["&mut ", "&raw mut "] {
        for (at, _) in line.match_indices(start) {
            let rest = line.get(at + start.len()..).unwrap_or_default();
            let first = place_at(rest);
            if !first.is_empty() && line.get(..at).is_some_and(|before| before.ends_with("= ")) {
                events.push((Event::Changed, place(first)));
            }
        }
    }
    if let Some((left, _)) = line.split_once(" = ").filter(|(left, _)| !left.starts_with("discriminant(")) {
        let changed =
            if local(left).is_some_and(|found| found.len() == left.len()) { left.to_owned() } else { place(left) };
        events.push((Event::Changed, plain(&changed)));
    }
}

/// The places whose variants or elements a line names.
fn used(line: &str, events: &mut Vec<(Event, String)>) {
    for (at, _) in line.match_indices(" as ") {
        let variant = line.get(at + 4..).unwrap_or_default();
        let end = variant.find(|one: char| !one.is_ascii_alphanumeric() && one != '_').unwrap_or(variant.len());
        let named = variant.starts_with(|first: char| first.is_ascii_uppercase());
        if named && variant.get(end..).is_some_and(|behind| behind.starts_with(')')) {
            events.extend(before(line, at).map(|found| (Event::Used, plain(found))));
        }
    }
    for (at, _) in brackets(line, |inside| is_index(inside) || is_piece(inside)) {
        events.extend(base(line, at).map(|found| (Event::Used, plain(found))));
    }
}

/// The place that ends at this byte, inside the parenthesis that opened before it.
fn before(line: &str, end: usize) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, byte) in line.get(..end)?.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' if depth == 0 => return line.get(at + 1..end),
            b'(' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The place that a text starts with.
fn place_at(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' if depth > 0 => depth -= 1,
            b')' | b']' | b';' | b',' | b' ' if depth == 0 => return text.get(..at).unwrap_or_default(),
            _ => {}
        }
    }
    text
}

fn between<'t>(text: &'t str, start: &str, end: &str) -> Option<&'t str> {
    text.split_once(start)?.1.strip_suffix(end)
}

/// A place with every index the same: two may be equal.
fn plain(place: &str) -> String {
    let mut out = String::with_capacity(place.len());
    let mut rest = place;
    while let Some((before, behind)) = rest.split_once('[') {
        out.push_str(before);
        match behind.split_once(']') {
            Some((inside, behind)) if is_index(inside) || is_piece(inside) => {
                out.push_str("[*]");
                rest = behind;
            }
            _ => {
                out.push('[');
                rest = behind;
            }
        }
    }
    out + rest
}
