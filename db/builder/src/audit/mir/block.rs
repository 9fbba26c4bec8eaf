//! Lines of a body: declarations, blocks, statements and what ends a block.

use std::collections::HashMap;

use super::place::place;
use super::rvalue::{self, Done};
use super::text::Text;
use super::{Access, Block, Edge, Place, Statement, Unknown};

/// `bb3: {`, `bb3 (cleanup): {`: the blocks come in the order of their numbers.
pub(super) fn start(line: &str, expected: usize) -> Result<bool, Unknown> {
    let mut text = Text::new(line);
    text.expect("bb")?;
    if usize::try_from(text.number()?) != Ok(expected) {
        return Err(Unknown::of(line));
    }
    let cleanup = text.eat(" (cleanup)");
    text.expect(": {")?;
    if text.rest().is_empty() { Ok(cleanup) } else { Err(text.unknown()) }
}

/// `mut _3: Type; // …`: a local and its type.
pub(super) fn declaration(line: &str) -> Result<(u32, &str), Unknown> {
    let mut text = Text::new(line);
    text.eat("mut ");
    text.expect("_")?;
    let local = text.number()?;
    text.expect(": ")?;
    let kind = text.until(b";")?;
    end(&mut text)?;
    Ok((local, kind))
}

/// The semicolon, and where the line comes from.
fn end<'a>(text: &mut Text<'a>) -> Result<&'a str, Unknown> {
    text.expect(";")?;
    let rest = text.rest().trim_start();
    if !rest.is_empty() && !rest.starts_with("//") {
        return Err(text.unknown());
    }
    Ok(rest.split_once(" at ").map(|(_, from)| from).unwrap_or_default())
}

/// Reads one statement into a block. Whether it ends the block.
pub(super) fn statement(line: &str, block: &mut Block, locals: &HashMap<u32, String>) -> Result<bool, Unknown> {
    let mut text = Text::new(line);
    let mut accesses = Vec::new();
    let mut ended = plain(&mut text, &mut accesses)?;
    if ended == Ended::NotKnown {
        ended = terminator(&mut text, &mut accesses, block)?;
    }
    if ended == Ended::NotKnown {
        let target = place(&mut text)?;
        text.expect(" = ")?;
        let done = rvalue::rvalue(&mut text, &mut accesses, &target, locals)?;
        ended = match done {
            Done::Value => Ended::No,
            Done::Call | Done::Yield => {
                let returns = targets(&mut text, block, &["return", "resume"])?;
                block.diverges = !returns;
                block.yields = done == Done::Yield;
                Ended::Yes
            }
        };
        accesses.push((Access::Set, target));
    }
    let from = end(&mut text)?.to_owned();
    block.statements.push(Statement { accesses, from });
    Ok(ended == Ended::Yes)
}

#[derive(Clone, Copy, PartialEq)]
enum Ended {
    NotKnown,
    No,
    Yes,
}

/// Statements that are no assignment and end no block.
fn plain(text: &mut Text<'_>, accesses: &mut Vec<(Access, Place)>) -> Result<Ended, Unknown> {
    let named = [
        ("StorageLive(", Access::Live),
        ("StorageDead(", Access::Dead),
        ("PlaceMention(", Access::Mentioned),
        ("BackwardIncompatibleDropHint(", Access::Mentioned),
    ];
    for (start, access) in named {
        if text.eat(start) {
            accesses.push((access, place(text)?));
            text.expect(")")?;
            return Ok(Ended::No);
        }
    }
    if text.eat("FakeRead(") {
        let covers = ["ForMatchGuard, ", "ForIndex, "].iter().any(|cause| text.eat(cause));
        if !covers {
            let cause = text.until(b",")?;
            let known = ["ForMatchedPlace(", "ForLet("].iter().any(|start| cause.starts_with(start));
            if !known && cause != "ForGuardBinding" {
                return Err(Unknown::of(cause));
            }
            text.expect(", ")?;
        }
        accesses.push((if covers { Access::FakeRead } else { Access::Mentioned }, place(text)?));
        text.expect(")")?;
        return Ok(Ended::No);
    }
    if text.eat("AscribeUserType(") {
        accesses.push((Access::Mentioned, place(text)?));
        text.expect(", ")?;
        text.until(b")")?;
        text.expect(")")?;
        return Ok(Ended::No);
    }
    if text.starts("nop;") {
        text.expect("nop")?;
        return Ok(Ended::No);
    }
    Ok(Ended::NotKnown)
}

/// What ends a block and is no assignment.
fn terminator(text: &mut Text<'_>, accesses: &mut Vec<(Access, Place)>, block: &mut Block) -> Result<Ended, Unknown> {
    for word in ["return", "unreachable", "resume", "coroutine_drop"] {
        if text.rest().strip_prefix(word).is_some_and(|rest| rest.starts_with(';')) {
            text.expect(word)?;
            return Ok(Ended::Yes);
        }
    }
    if text.eat("terminate(") {
        text.until(b")")?;
        text.expect(")")?;
        return Ok(Ended::Yes);
    }
    if text.starts("goto -> ") || text.starts("falseEdge -> ") || text.starts("falseUnwind -> ") {
        text.until(b" ")?;
        return leads_on(text, block, &["", "real"]);
    }
    if text.eat("switchInt(") {
        rvalue::operand(text, accesses, b")")?;
        text.expect(")")?;
        text.expect(" -> [")?;
        loop {
            if !text.eat("otherwise") {
                text.eat("-");
                // Up to 39 digits.
                text.until(b":")?;
            }
            text.expect(": ")?;
            block.next.push((Edge::Real, block_name(text)?));
            if text.eat("]") {
                return Ok(Ended::Yes);
            }
            text.expect(", ")?;
        }
    }
    if text.eat("drop(") {
        accesses.push((Access::Dropped, place(text)?));
        text.expect(")")?;
        return leads_on(text, block, &["return", ""]);
    }
    if text.eat("assert(") {
        text.eat("!");
        rvalue::operands(text, accesses, b')')?;
        return leads_on(text, block, &["success", ""]);
    }
    Ok(Ended::NotKnown)
}

fn leads_on(text: &mut Text<'_>, block: &mut Block, on: &[&str]) -> Result<Ended, Unknown> {
    if targets(text, block, on)? { Ok(Ended::Yes) } else { Err(text.unknown()) }
}

fn block_name(text: &mut Text<'_>) -> Result<usize, Unknown> {
    text.expect("bb")?;
    usize::try_from(text.number()?).map_err(|_| text.unknown())
}

/// ` -> [return: bb1, unwind: bb2]`, ` -> bb1`, ` -> unwind continue`. Whether one of them leads on: where a call has one way
/// out and no name for it, that is cleanup.
fn targets(text: &mut Text<'_>, block: &mut Block, on: &[&str]) -> Result<bool, Unknown> {
    text.expect(" -> ")?;
    if text.starts("unwind") {
        unwinding(text)?;
        return Ok(false);
    }
    if !text.eat("[") {
        block.next.push((Edge::Real, block_name(text)?));
        return Ok(on.contains(&""));
    }
    let mut leads_on = false;
    loop {
        if text.starts("unwind ") {
            unwinding(text)?;
        } else {
            let kind = text.until(b":")?;
            text.expect(": ")?;
            let edge = if kind == "imaginary" { Edge::Imaginary } else { Edge::Real };
            if !on.contains(&kind) && !["imaginary", "unwind", "drop"].contains(&kind) {
                return Err(Unknown::of(kind));
            }
            leads_on |= on.contains(&kind);
            block.next.push((edge, block_name(text)?));
        }
        if text.eat("]") {
            return Ok(leads_on);
        }
        text.expect(", ")?;
    }
}

/// `unwind continue`, `unwind unreachable`, `unwind terminate(cleanup)`.
fn unwinding(text: &mut Text<'_>) -> Result<(), Unknown> {
    text.expect("unwind ")?;
    let known = ["continue", "unreachable", "terminate(cleanup)", "terminate(abi)"];
    if known.iter().any(|how| text.eat(how)) { Ok(()) } else { Err(text.unknown()) }
}
