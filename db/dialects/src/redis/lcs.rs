//! LCS: the longest common subsequence of two values. Its time and memory are the product of both lengths, which is
//! bounded.

use super::arguments::{is_word, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandResult, NOT_AN_INTEGER, SYNTAX};
use crate::limits::bits::LCS_CELLS;

/// The options of the command.
#[derive(Default)]
struct LcsOptions {
    len: bool,
    matches: bool,
    least: i64,
    with_len: bool,
}

/// A common part of both values: its beginning and end in each, both included.
struct LcsMatch {
    a: (usize, usize),
    b: (usize, usize),
}

/// Lengths of the longest common subsequences of all beginnings.
struct LcsTable {
    /// A row for each beginning of the first value. One of the lengths is at most the root of [`LCS_CELLS`], so they
    /// fit.
    cells: Vec<u16>,
    row: usize,
}

const _: () = assert!(LCS_CELLS <= 1 << 32, "a length has 16 bits");

impl LcsTable {
    fn of(a: &[u8], b: &[u8]) -> LcsTable {
        let row = b.len() + 1;
        let mut cells = vec![0; (a.len() + 1) * row];
        for (i, x) in a.iter().enumerate() {
            let (above, below) = cells.split_at_mut((i + 1) * row);
            let above = &above[i * row..];
            let mut left = 0;
            for (j, y) in b.iter().enumerate() {
                left = if x == y { above[j] + 1 } else { left.max(above[j + 1]) };
                below[j + 1] = left;
            }
        }
        LcsTable { cells, row }
    }

    fn at(&self, i: usize, j: usize) -> usize {
        self.cells.get(i * self.row + j).copied().unwrap_or(0).into()
    }
}

/// Traces the lengths backwards. Returns the subsequence, and its parts from the last to the first.
fn trace(a: &[u8], b: &[u8], lengths: &LcsTable) -> (Vec<u8>, Vec<LcsMatch>) {
    let (mut i, mut j) = (a.len(), b.len());
    let (mut common, mut matches) = (Vec::with_capacity(lengths.at(i, j)), Vec::new());
    let mut open: Option<LcsMatch> = None;
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            common.push(a[i - 1]);
            (i, j) = (i - 1, j - 1);
            match &mut open {
                Some(one) => (one.a.0, one.b.0) = (i, j),
                None => open = Some(LcsMatch { a: (i, i), b: (j, j) }),
            }
            continue;
        }
        // As Redis chooses if both directions are equally long.
        if lengths.at(i - 1, j) > lengths.at(i, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
        matches.extend(open.take());
    }
    matches.extend(open);
    common.reverse();
    (common, matches)
}

fn parse_options(call: &CommandCall<'_, '_>) -> Result<LcsOptions, super::errors::CommandError> {
    let (mut options, mut at) = (LcsOptions::default(), 3);
    while at < call.args.len() {
        let word = call.arg(at);
        if is_word(word, "IDX") {
            options.matches = true;
        } else if is_word(word, "LEN") {
            options.len = true;
        } else if is_word(word, "WITHMATCHLEN") {
            options.with_len = true;
        } else if is_word(word, "MINMATCHLEN") && at + 1 < call.args.len() {
            at += 1;
            options.least = parse_integer(call.arg(at)).ok_or(NOT_AN_INTEGER)?;
        } else {
            return Err(SYNTAX.into());
        }
        at += 1;
    }
    if options.matches && options.len {
        return Err("ERR If you want both the length and indexes, please just use IDX.".into());
    }
    Ok(options)
}

pub(super) fn lcs(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let found = (call.get(call.arg(1))?, call.get(call.arg(2))?);
    let options = parse_options(call)?;
    let a = found.0.as_ref().map_or(&b""[..], |record| record.value());
    let b = found.1.as_ref().map_or(&b""[..], |record| record.value());
    let cells = (a.len() + 1).saturating_mul(b.len() + 1);
    if cells > LCS_CELLS {
        return Err(format!(
            "ERR LCS takes the product of both lengths, which may be {LCS_CELLS} at most; here it is {cells}"
        )
        .into());
    }
    call.context.bytes(2 * cells);
    let lengths = LcsTable::of(a, b);
    let len = lengths.at(a.len(), b.len());
    if options.len {
        call.reply.integer(len as i64);
        return Ok(());
    }
    let (common, mut matches) = trace(a, b, &lengths);
    let reply = &mut call.reply;
    if !options.matches {
        reply.bulk(&common);
        return Ok(());
    }
    let len_of = |one: &LcsMatch| (one.a.1 - one.a.0 + 1) as i64;
    matches.retain(|one| len_of(one) >= options.least);
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(matches.len());
    for one in &matches {
        reply.array(if options.with_len { 3 } else { 2 });
        for (from, to) in [one.a, one.b] {
            reply.array(2);
            reply.integer(from as i64);
            reply.integer(to as i64);
        }
        if options.with_len {
            reply.integer(len_of(one));
        }
    }
    reply.bulk(b"len");
    reply.integer(len as i64);
    Ok(())
}
