//! Commands on several bits of a value at once: BITOP, BITPOS, BITFIELD.

use super::arguments::{is_word, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandError, CommandResult, NOT_AN_INTEGER, SYNTAX};
use crate::limits::bits::{BITFIELD_OPS, BITOP_BYTES, BITOP_KEYS};
use sandstorm_store::limits::MAX_VALUE_BYTES;
use sandstorm_store::{RecordRef, RecordUpdate, UpdateValue};

/// An operation of BITOP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

impl BitOperation {
    fn named(word: &[u8]) -> Option<BitOperation> {
        match () {
            () if is_word(word, "AND") => Some(BitOperation::And),
            () if is_word(word, "OR") => Some(BitOperation::Or),
            () if is_word(word, "XOR") => Some(BitOperation::Xor),
            () if is_word(word, "NOT") => Some(BitOperation::Not),
            () => None,
        }
    }

    /// Adds one more value; a shorter value counts as padded with zeros.
    fn take(self, result: &mut [u8], value: &[u8]) {
        let pairs = result.iter_mut().zip(value);
        match self {
            BitOperation::And => {
                pairs.for_each(|(byte, other)| *byte &= other);
                if let Some(rest) = result.get_mut(value.len()..) {
                    rest.fill(0);
                }
            }
            BitOperation::Or => pairs.for_each(|(byte, other)| *byte |= other),
            BitOperation::Xor => pairs.for_each(|(byte, other)| *byte ^= other),
            BitOperation::Not => pairs.for_each(|(byte, other)| *byte = !other),
        }
    }
}

pub(super) fn bitop(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let combine = BitOperation::named(call.arg(1)).ok_or(SYNTAX)?;
    let (target, sources) = (call.arg(2), call.rest(3));
    if combine == BitOperation::Not && sources.len() != 1 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    if sources.len() > BITOP_KEYS {
        return Err(format!("ERR BITOP takes {BITOP_KEYS} source keys at most: combine some of them first").into());
    }
    call.admit_keys(sources.len())?;
    let entry = call.table(true)?;
    let found: Vec<Option<RecordRef<'_>>> = sources.iter().map(|key| call.get_in(&entry.table, key)).collect();
    let lens = || found.iter().flatten().map(|record| record.value().len());
    let (len, bytes) = (lens().max().unwrap_or(0), lens().sum::<usize>());
    if bytes > BITOP_BYTES {
        return Err(format!("ERR BITOP takes values of {BITOP_BYTES} bytes together at most").into());
    }
    call.context.bytes(bytes);
    let mut values = found.iter().map(|found| found.as_ref().map_or(&b""[..], |record| record.value()));
    let mut result = vec![0; len];
    if combine != BitOperation::Not
        && let Some(first) = values.next()
    {
        result[..first.len()].copy_from_slice(first);
    }
    values.for_each(|value| combine.take(&mut result, value));
    call.update_in(entry, target, |_| match result.is_empty() {
        true => RecordUpdate::Delete(()),
        false => RecordUpdate::Put { value: UpdateValue::Owned(result), flags: 0, expires_at_ms: 0, answer: () },
    })?;
    call.reply.integer(len as i64);
    Ok(())
}

/// The first bit with this value.
fn first_bit(bytes: &[u8], bit: bool) -> Option<usize> {
    let others = if bit { 0 } else { u64::MAX };
    let words = bytes.chunks_exact(8);
    let skipped = words.take_while(|word| word.iter().all(|byte| *byte == others as u8)).count() * 8;
    let rest = &bytes[skipped..];
    let at = rest.iter().position(|byte| *byte != others as u8)?;
    let found = if bit { rest[at] } else { !rest[at] };
    Some((skipped + at) * 8 + found.leading_zeros() as usize)
}

/// The same between two bits, both included.
fn first_bit_between(value: &[u8], bit: bool, from: usize, to: usize) -> Option<usize> {
    let bytes = value.get(from / 8..=to / 8)?;
    // Bits before and behind count as the other value.
    let masked = |byte: u8, mask: u8| if bit { byte & mask } else { byte | !mask };
    let (first_mask, last_mask) = (0xff >> (from % 8), 0xff << (7 - to % 8));
    let found = match bytes {
        [] => None,
        [one] => first_bit(&[masked(*one, first_mask & last_mask)], bit),
        [first, middle @ .., last] => {
            let ends = |byte, mask, at: usize| first_bit(&[masked(byte, mask)], bit).map(|found| at * 8 + found);
            ends(*first, first_mask, 0)
                .or_else(|| first_bit(middle, bit).map(|found| found + 8))
                .or_else(|| ends(*last, last_mask, bytes.len() - 1))
        }
    };
    found.map(|found| from / 8 * 8 + found)
}

/// The bits that BITPOS scans in a value of `len` bytes; `None`: none.
fn bit_span(call: &CommandCall<'_, '_>, len: usize) -> Result<Option<(usize, usize)>, CommandError> {
    let count = call.args.len();
    if count > 6 {
        return Err(SYNTAX.into());
    }
    let start = if count > 3 { call.integer(3)? } else { 0 };
    let bits = match call.args.get(5) {
        None => false,
        Some(unit) if is_word(unit, "BIT") => true,
        Some(unit) if is_word(unit, "BYTE") => false,
        Some(_) => return Err(SYNTAX.into()),
    };
    let units = (len * if bits { 8 } else { 1 }) as i64;
    let end = if count > 4 { call.integer(4)? } else { units - 1 };
    let from_end = |index: i64| if index < 0 { (index + units).max(0) } else { index };
    let (start, end) = (from_end(start), if end < 0 && count <= 4 { end } else { from_end(end).min(units - 1) });
    if start > end {
        return Ok(None);
    }
    let (start, end) = (start as usize, end as usize);
    Ok(Some(if bits { (start, end) } else { (start * 8, end * 8 + 7) }))
}

pub(super) fn bitpos(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let bit = match call.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    // As Redis, it looks up the key before it checks the other arguments.
    let Some(record) = call.get(call.arg(1))? else {
        call.reply.integer(if bit { -1 } else { 0 });
        return Ok(());
    };
    let value = record.value();
    let span = bit_span(call, value.len())?;
    call.context.bytes(value.len());
    let position = match span {
        None => -1,
        Some((from, to)) => match first_bit_between(value, bit, from, to) {
            Some(found) => found as i64,
            // Behind a value there are only zeros, unless the command names an end.
            None if !bit && call.args.len() <= 4 => to as i64 + 1,
            None => -1,
        },
    };
    call.reply.integer(position);
    Ok(())
}

/// The treatment of a number that does not fit into its field.
#[derive(Clone, Copy)]
enum OverflowMode {
    Wrap,
    Saturate,
    Fail,
}

/// The verb of an operation on a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BitfieldVerb {
    Get,
    Set,
    Add,
}

/// A field of a value.
#[derive(Clone, Copy)]
struct IntegerField {
    signed: bool,
    bits: u32,
    /// In bits.
    offset: usize,
}

/// One operation of BITFIELD.
struct BitfieldOp {
    verb: BitfieldVerb,
    field: IntegerField,
    number: i64,
    overflow: OverflowMode,
}

const BAD_FIELD: &str =
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";

impl IntegerField {
    fn read(kind: &[u8], offset: &[u8]) -> Result<IntegerField, CommandError> {
        let signed = match kind.first() {
            Some(b'i') => true,
            Some(b'u') => false,
            _ => return Err(BAD_FIELD.into()),
        };
        let most = if signed { 64 } else { 63 };
        let bits = parse_integer(&kind[1..]).filter(|bits| (1..=most).contains(bits)).ok_or(BAD_FIELD)?;
        // `#3`: three fields further.
        let (digits, unit) = match offset.strip_prefix(b"#") {
            Some(digits) => (digits, bits),
            None => (offset, 1),
        };
        let offset = parse_integer(digits).and_then(|offset| usize::try_from(offset.checked_mul(unit)?).ok());
        let offset = offset.filter(|offset| offset / 8 < MAX_VALUE_BYTES);
        let offset = offset.ok_or("ERR bit offset is not an integer or out of range")?;
        Ok(IntegerField { signed, bits: bits as u32, offset })
    }

    /// Length in bytes of a value that ends with the field.
    fn end(self) -> usize {
        (self.offset + self.bits as usize).div_ceil(8)
    }

    /// The nine bytes around the field, and its distance from their end.
    fn window(self, value: &[u8]) -> (u128, u32) {
        let byte = |at: usize| value.get(self.offset / 8 + at).copied().unwrap_or(0);
        let window = (0..9).fold(0, |window, at| window << 8 | u128::from(byte(at)));
        (window, 72 - (self.offset % 8) as u32 - self.bits)
    }

    fn mask(self) -> u128 {
        (1 << self.bits) - 1
    }

    fn get(self, value: &[u8]) -> i128 {
        let (window, shift) = self.window(value);
        self.of_bits(window >> shift)
    }

    /// The number that its lowest bits represent.
    fn of_bits(self, bits: u128) -> i128 {
        let bits = (bits & self.mask()) as i128;
        let negative = self.signed && bits >> (self.bits - 1) & 1 == 1;
        if negative { bits - (1 << self.bits) } else { bits }
    }

    fn set(self, value: &mut [u8], number: i128) {
        let (window, shift) = self.window(value);
        let window = window & !(self.mask() << shift) | (number as u128 & self.mask()) << shift;
        for at in 0..9 {
            if let Some(byte) = value.get_mut(self.offset / 8 + at) {
                *byte = (window >> (64 - 8 * at)) as u8;
            }
        }
    }

    /// The number as it is stored; `None`: it overflows, and is not stored.
    fn fit(self, number: i128, overflow: OverflowMode) -> Option<i128> {
        let (least, most) = match self.signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        match overflow {
            _ if (least..=most).contains(&number) => Some(number),
            OverflowMode::Wrap => Some(self.of_bits(number as u128)),
            OverflowMode::Saturate => Some(number.clamp(least, most)),
            OverflowMode::Fail => None,
        }
    }
}

fn parse_bitfield_ops(call: &CommandCall<'_, '_>) -> Result<Vec<BitfieldOp>, CommandError> {
    let (mut steps, mut overflow, mut at) = (Vec::new(), OverflowMode::Wrap, 2);
    while at < call.args.len() {
        let (word, left) = (call.arg(at), call.args.len() - at - 1);
        let verb = match () {
            () if is_word(word, "GET") && left >= 2 => BitfieldVerb::Get,
            () if is_word(word, "SET") && left >= 3 => BitfieldVerb::Set,
            () if is_word(word, "INCRBY") && left >= 3 => BitfieldVerb::Add,
            () if is_word(word, "OVERFLOW") && left >= 1 => {
                let kind = call.arg(at + 1);
                overflow = match () {
                    () if is_word(kind, "WRAP") => OverflowMode::Wrap,
                    () if is_word(kind, "SAT") => OverflowMode::Saturate,
                    () if is_word(kind, "FAIL") => OverflowMode::Fail,
                    () => return Err("ERR Invalid OVERFLOW type specified".into()),
                };
                at += 2;
                continue;
            }
            () => return Err(SYNTAX.into()),
        };
        let field = IntegerField::read(call.arg(at + 1), call.arg(at + 2))?;
        let number =
            if verb == BitfieldVerb::Get { 0 } else { parse_integer(call.arg(at + 3)).ok_or(NOT_AN_INTEGER)? };
        if steps.len() == BITFIELD_OPS {
            return Err(format!("ERR BITFIELD takes {BITFIELD_OPS} operations at most").into());
        }
        steps.push(BitfieldOp { verb, field, number, overflow });
        at += if verb == BitfieldVerb::Get { 3 } else { 4 };
    }
    Ok(steps)
}

impl BitfieldOp {
    /// Runs the operation. Returns the answer, and whether anything was stored.
    fn run(&self, value: &mut [u8]) -> (Option<i128>, bool) {
        let old = self.field.get(value);
        let number = match self.verb {
            BitfieldVerb::Get => return (Some(old), false),
            BitfieldVerb::Add => old + i128::from(self.number),
            BitfieldVerb::Set if self.field.signed => self.number.into(),
            // As in Redis, a negative number is a very large one.
            BitfieldVerb::Set => i128::from(self.number as u64),
        };
        let Some(new) = self.field.fit(number, self.overflow) else { return (None, false) };
        self.field.set(value, new);
        (Some(if self.verb == BitfieldVerb::Set { old } else { new }), true)
    }
}

pub(super) fn bitfield(call: &mut CommandCall<'_, '_>) -> CommandResult {
    run_bitfield(call, false)
}

pub(super) fn bitfield_ro(call: &mut CommandCall<'_, '_>) -> CommandResult {
    run_bitfield(call, true)
}

fn run_bitfield(call: &mut CommandCall<'_, '_>, read_only: bool) -> CommandResult {
    let steps = parse_bitfield_ops(call)?;
    let writes = || steps.iter().filter(|step| step.verb != BitfieldVerb::Get);
    let answers: Vec<Option<i128>> = match writes().map(|step| step.field.end()).max() {
        None => {
            let found = call.get(call.arg(1))?;
            let value = found.as_ref().map_or(&b""[..], |record| record.value());
            steps.iter().map(|step| Some(step.field.get(value))).collect()
        }
        Some(_) if read_only => return Err("ERR BITFIELD_RO only supports the GET subcommand".into()),
        Some(end) => call.update(call.arg(1), |old| {
            let mut value = old.map_or_else(Vec::new, |record| record.value().to_vec());
            let mut changed = value.len() < end;
            value.resize(value.len().max(end), 0);
            let run = |step: &BitfieldOp| {
                let (answer, stored) = step.run(&mut value);
                changed |= stored;
                answer
            };
            let answers = steps.iter().map(run).collect();
            if !changed {
                return RecordUpdate::Keep(answers);
            }
            RecordUpdate::Put {
                value: UpdateValue::Owned(value),
                flags: old.map_or(0, |record| record.flags()),
                expires_at_ms: old.map_or(0, |record| record.expires_at_ms()),
                answer: answers,
            }
        })?,
    };
    call.reply.array(answers.len());
    for answer in answers {
        match answer {
            // Unsigned ones have 63 bits at most.
            Some(number) => call.reply.integer(number as i64),
            None => call.reply.null(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bit_is_that_which_is_found_one_by_one() {
        let values: [&[u8]; 6] =
            [b"", &[0], &[0xff; 3], &[0, 0, 0x10, 0], &[0xff, 0xff, 0xef, 0xff], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]];
        for value in values {
            for from in 0..value.len() * 8 {
                for to in from..value.len() * 8 {
                    for bit in [false, true] {
                        let is = |at: &usize| (value[at / 8] >> (7 - at % 8) & 1 == 1) == bit;
                        assert_eq!(
                            first_bit_between(value, bit, from, to),
                            (from..=to).find(is),
                            "{value:?} {from} {to}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_field_holds_what_was_put_there_and_leaves_what_is_around_it() {
        for signed in [false, true] {
            for bits in 1..=63 + u32::from(signed) {
                for offset in 0..18 {
                    let field = IntegerField { signed, bits, offset };
                    for number in [0, 1, -1, i128::from(i64::MAX), i128::from(i64::MIN), 0x5555_5555_5555_5555] {
                        let Some(number) = field.fit(number, OverflowMode::Wrap) else { panic!("it wraps") };
                        for around in [0, 0xff] {
                            let mut value = [around; 11];
                            field.set(&mut value, number);
                            assert_eq!(field.get(&value), number, "{signed} {bits} {offset}");
                            field.set(&mut value, if around == 0 { 0 } else { -1 });
                            assert_eq!(value, [around; 11], "{signed} {bits} {offset}");
                        }
                    }
                }
            }
        }
    }
}
