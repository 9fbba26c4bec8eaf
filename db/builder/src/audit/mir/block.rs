//! Parses lines of a body: declarations, blocks, statements and terminators.

use std::collections::HashMap;

use super::place::place;
use super::rvalue::{self, RvalueKind};
use super::text::MirCursor;
use super::{BasicBlock, MirEdge, MirPlace, MirStatement, PlaceAccess, UnknownMir};

/// Parses `bb3: {`, `bb3 (cleanup): {`: the blocks come in the order of their numbers.
pub(super) fn start(line: &str, expected: usize) -> Result<bool, UnknownMir> {
    let mut text = MirCursor::new(line);
    text.expect("bb")?;
    if usize::try_from(text.number()?) != Ok(expected) {
        return Err(UnknownMir::of(line));
    }
    let cleanup = text.eat(" (cleanup)");
    text.expect(": {")?;
    if text.rest().is_empty() { Ok(cleanup) } else { Err(text.unknown()) }
}

/// Parses `mut _3: Type; // …`: a local and its type.
pub(super) fn declaration(line: &str) -> Result<(u32, &str), UnknownMir> {
    let mut text = MirCursor::new(line);
    text.eat("mut ");
    text.expect("_")?;
    let local = text.number()?;
    text.expect(": ")?;
    let kind = text.until(b";")?;
    statement_end(&mut text)?;
    Ok((local, kind))
}

/// Parses the semicolon, and the source location after it.
fn statement_end<'a>(text: &mut MirCursor<'a>) -> Result<&'a str, UnknownMir> {
    text.expect(";")?;
    let rest = text.rest().trim_start();
    if !rest.is_empty() && !rest.starts_with("//") {
        return Err(text.unknown());
    }
    Ok(rest.split_once(" at ").map(|(_, from)| from).unwrap_or_default())
}

/// Parses one statement into a block; returns whether it ends the block.
pub(super) fn statement(line: &str, block: &mut BasicBlock, locals: &HashMap<u32, String>) -> Result<bool, UnknownMir> {
    let mut text = MirCursor::new(line);
    let mut accesses = Vec::new();
    let mut ended = simple_statement(&mut text, &mut accesses)?;
    if ended == StatementOutcome::Unrecognized {
        ended = terminator(&mut text, &mut accesses, block)?;
    }
    if ended == StatementOutcome::Unrecognized {
        let target = place(&mut text)?;
        text.expect(" = ")?;
        let done = rvalue::rvalue(&mut text, &mut accesses, &target, locals)?;
        ended = match done {
            RvalueKind::Value => StatementOutcome::Continues,
            RvalueKind::Call | RvalueKind::Yield => {
                let returns = targets(&mut text, block, &["return", "resume"])?;
                block.diverges = !returns;
                block.yields = done == RvalueKind::Yield;
                StatementOutcome::EndsBlock
            }
        };
        accesses.push((PlaceAccess::Assigned, target));
    }
    let from = statement_end(&mut text)?.to_owned();
    block.statements.push(MirStatement { accesses, from });
    Ok(ended == StatementOutcome::EndsBlock)
}

#[derive(Clone, Copy, PartialEq)]
enum StatementOutcome {
    Unrecognized,
    Continues,
    EndsBlock,
}

/// Parses a statement that is no assignment and ends no block.
fn simple_statement(
    text: &mut MirCursor<'_>,
    accesses: &mut Vec<(PlaceAccess, MirPlace)>,
) -> Result<StatementOutcome, UnknownMir> {
    let named = [
        ("StorageLive(", PlaceAccess::StorageLive),
        ("StorageDead(", PlaceAccess::StorageDead),
        ("PlaceMention(", PlaceAccess::Mentioned),
        ("BackwardIncompatibleDropHint(", PlaceAccess::Mentioned),
    ];
    for (start, access) in named {
        if text.eat(start) {
            accesses.push((access, place(text)?));
            text.expect(")")?;
            return Ok(StatementOutcome::Continues);
        }
    }
    if text.eat("FakeRead(") {
        let covers = ["ForMatchGuard, ", "ForIndex, "].iter().any(|cause| text.eat(cause));
        if !covers {
            let cause = text.until(b",")?;
            let known = ["ForMatchedPlace(", "ForLet("].iter().any(|start| cause.starts_with(start));
            if !known && cause != "ForGuardBinding" {
                return Err(UnknownMir::of(cause));
            }
            text.expect(", ")?;
        }
        accesses.push((if covers { PlaceAccess::FakeRead } else { PlaceAccess::Mentioned }, place(text)?));
        text.expect(")")?;
        return Ok(StatementOutcome::Continues);
    }
    if text.eat("AscribeUserType(") {
        accesses.push((PlaceAccess::Mentioned, place(text)?));
        text.expect(", ")?;
        text.until(b")")?;
        text.expect(")")?;
        return Ok(StatementOutcome::Continues);
    }
    if text.starts("nop;") {
        text.expect("nop")?;
        return Ok(StatementOutcome::Continues);
    }
    Ok(StatementOutcome::Unrecognized)
}

/// Parses a terminator that is no assignment.
fn terminator(
    text: &mut MirCursor<'_>,
    accesses: &mut Vec<(PlaceAccess, MirPlace)>,
    block: &mut BasicBlock,
) -> Result<StatementOutcome, UnknownMir> {
    for word in ["return", "unreachable", "resume", "coroutine_drop"] {
        if text.rest().strip_prefix(word).is_some_and(|rest| rest.starts_with(';')) {
            text.expect(word)?;
            return Ok(StatementOutcome::EndsBlock);
        }
    }
    if text.eat("terminate(") {
        text.until(b")")?;
        text.expect(")")?;
        return Ok(StatementOutcome::EndsBlock);
    }
    if text.starts("goto -> ") || text.starts("falseEdge -> ") || text.starts("falseUnwind -> ") {
        text.until(b" ")?;
        return continue_at_targets(text, block, &["", "real"]);
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
            block.next.push((MirEdge::Real, block_name(text)?));
            if text.eat("]") {
                return Ok(StatementOutcome::EndsBlock);
            }
            text.expect(", ")?;
        }
    }
    if text.eat("drop(") {
        accesses.push((PlaceAccess::Dropped, place(text)?));
        text.expect(")")?;
        return continue_at_targets(text, block, &["return", ""]);
    }
    if text.eat("assert(") {
        text.eat("!");
        rvalue::operands(text, accesses, b')')?;
        return continue_at_targets(text, block, &["success", ""]);
    }
    Ok(StatementOutcome::Unrecognized)
}

fn continue_at_targets(
    text: &mut MirCursor<'_>,
    block: &mut BasicBlock,
    on: &[&str],
) -> Result<StatementOutcome, UnknownMir> {
    if targets(text, block, on)? { Ok(StatementOutcome::EndsBlock) } else { Err(text.unknown()) }
}

fn block_name(text: &mut MirCursor<'_>) -> Result<usize, UnknownMir> {
    text.expect("bb")?;
    usize::try_from(text.number()?).map_err(|_| text.unknown())
}

/// Parses ` -> [return: bb1, unwind: bb2]`, ` -> bb1`, ` -> unwind continue`. Returns whether one of them continues: a
/// call with a single unnamed successor goes to cleanup.
fn targets(text: &mut MirCursor<'_>, block: &mut BasicBlock, on: &[&str]) -> Result<bool, UnknownMir> {
    text.expect(" -> ")?;
    if text.starts("unwind") {
        unwinding(text)?;
        return Ok(false);
    }
    if !text.eat("[") {
        block.next.push((MirEdge::Real, block_name(text)?));
        return Ok(on.contains(&""));
    }
    let mut leads_on = false;
    loop {
        if text.starts("unwind ") {
            unwinding(text)?;
        } else {
            let kind = text.until(b":")?;
            text.expect(": ")?;
            let edge = if kind == "imaginary" { MirEdge::Imaginary } else { MirEdge::Real };
            if !on.contains(&kind) && !["imaginary", "unwind", "drop"].contains(&kind) {
                return Err(UnknownMir::of(kind));
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

/// Parses `unwind continue`, `unwind unreachable`, `unwind terminate(cleanup)`.
fn unwinding(text: &mut MirCursor<'_>) -> Result<(), UnknownMir> {
    text.expect("unwind ")?;
    let known = ["continue", "unreachable", "terminate(cleanup)", "terminate(abi)"];
    if known.iter().any(|how| text.eat(how)) { Ok(()) } else { Err(text.unknown()) }
}
