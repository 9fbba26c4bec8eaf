//! Commands on counters and on single bits.

use arrayvec::ArrayVec;
use sandstorm_net::resp::push_decimal;

use super::arguments::{is_word, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandError, CommandResult, NOT_AN_INTEGER, SYNTAX};
use super::float;
use super::strings::{ZEROS, byte_range};
use sandstorm_store::limits::MAX_VALUE_BYTES;
use sandstorm_store::{RecordRef, RecordUpdate, UpdateValue};

/// A new value for a record, which keeps its other properties.
fn rewrite<'v, R>(old: Option<RecordRef<'_>>, value: UpdateValue<'v>, answer: R) -> RecordUpdate<'v, R> {
    let flags = old.map_or(0, |record| record.flags());
    RecordUpdate::Put { value, flags, expires_at_ms: old.map_or(0, |record| record.expires_at_ms()), answer }
}

fn add_integer(call: &mut CommandCall<'_, '_>, delta: i64) -> CommandResult {
    let sum = call.update(call.arg(1), |old| {
        let Some(number) = old.map_or(Some(0), |record| parse_integer(record.value())) else {
            return RecordUpdate::Keep(Err(NOT_AN_INTEGER));
        };
        let Some(sum) = number.checked_add(delta) else {
            return RecordUpdate::Keep(Err("ERR increment or decrement would overflow"));
        };
        let mut digits = Vec::with_capacity(20);
        push_decimal(sum, &mut digits);
        let short = ArrayVec::try_from(digits.as_slice());
        rewrite(old, short.map_or_else(|_| UpdateValue::Owned(digits), UpdateValue::Short), Ok(sum))
    })??;
    call.reply.integer(sum);
    Ok(())
}

impl From<std::convert::Infallible> for CommandError {
    fn from(never: std::convert::Infallible) -> CommandError {
        match never {}
    }
}

pub(super) fn incr(call: &mut CommandCall<'_, '_>) -> CommandResult {
    add_integer(call, 1)
}

pub(super) fn decr(call: &mut CommandCall<'_, '_>) -> CommandResult {
    add_integer(call, -1)
}

pub(super) fn incrby(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let delta = call.integer(2)?;
    add_integer(call, delta)
}

pub(super) fn decrby(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let delta = call.integer(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    add_integer(call, delta)
}

const NOT_A_FLOAT: &str = "ERR value is not a valid float";

pub(super) fn incrbyfloat(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let delta = call.arg(2);
    let sum = call.update(call.arg(1), |old| {
        let before = old.map_or(&b"0"[..], |record| record.value());
        match float::add_decimals(before, delta) {
            Ok(sum) => rewrite(old, UpdateValue::Owned(sum.clone().into_bytes()), Ok(sum)),
            Err(float::FloatSumError::NotANumber) => RecordUpdate::Keep(Err(NOT_A_FLOAT)),
            Err(float::FloatSumError::Infinite) => {
                RecordUpdate::Keep(Err("ERR increment would produce NaN or Infinity"))
            }
        }
    })??;
    call.reply.bulk(sum.as_bytes());
    Ok(())
}

fn bit_offset(call: &CommandCall<'_, '_>) -> Result<usize, CommandError> {
    let offset = parse_integer(call.arg(2)).and_then(|offset| usize::try_from(offset).ok());
    let offset = offset.filter(|offset| offset / 8 < MAX_VALUE_BYTES);
    offset.ok_or_else(|| "ERR bit offset is not an integer or out of range".into())
}

pub(super) fn getbit(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let offset = bit_offset(call)?;
    let found = call.get(call.arg(1))?;
    let byte = found.as_ref().and_then(|record| record.value().get(offset / 8)).copied().unwrap_or(0);
    call.reply.integer(i64::from(byte >> (7 - offset % 8) & 1));
    Ok(())
}

/// Each byte, as a part of a value.
static SINGLE_BYTES: [[u8; 1]; 256] = {
    let mut bytes = [[0]; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = [byte as u8];
        byte += 1;
    }
    bytes
};

pub(super) fn setbit(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let offset = bit_offset(call)?;
    let bit = match call.arg(3) {
        b"0" => 0,
        b"1" => 1u8,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let before = call.update(call.arg(1), |old| {
        let value = old.map_or(&b""[..], |record| record.value());
        let (byte, mask) = (value.get(offset / 8).copied().unwrap_or(0), 0x80 >> (offset % 8));
        let new = &SINGLE_BYTES[usize::from(byte & !mask | (mask * bit))];
        // Copied once, into the record.
        let parts = match value.get(..offset / 8) {
            Some(head) => [head, new, value.get(offset / 8 + 1..).unwrap_or_default()],
            None => [value, ZEROS.get(..offset / 8 - value.len()).unwrap_or_default(), new],
        };
        rewrite(old, UpdateValue::Parts(parts), byte & mask != 0)
    })?;
    call.reply.integer(before.into());
    Ok(())
}

pub(super) fn bitcount(call: &mut CommandCall<'_, '_>) -> CommandResult {
    // As Redis 7.0, it looks up the key before it checks the other arguments.
    let Some(record) = call.get(call.arg(1))? else {
        call.reply.integer(0);
        return Ok(());
    };
    let range = match call.args.len() {
        2 => None,
        4 | 5 => Some((call.integer(2)?, call.integer(3)?)),
        _ => return Err(SYNTAX.into()),
    };
    // And it checks both ends before the unit.
    if range.is_some_and(|(start, end)| start < 0 && end < 0 && start > end) {
        call.reply.integer(0);
        return Ok(());
    }
    let bits = match call.args.get(4) {
        None => false,
        Some(unit) if is_word(unit, "BYTE") => false,
        Some(unit) if is_word(unit, "BIT") => true,
        Some(_) => return Err(SYNTAX.into()),
    };
    let value = record.value();
    call.context.bytes(value.len());
    let count = match range {
        None => count_ones(value),
        Some((start, end)) if bits => count_bits(value, start, end),
        Some((start, end)) => count_ones(byte_range(value, start, end)),
    };
    call.reply.integer(count);
    Ok(())
}

/// The number of set bits; eight bytes at a time, since values may be long.
fn count_ones(bytes: &[u8]) -> i64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| i64::from(u64::from_ne_bytes(*word).count_ones())).sum::<i64>();
    words + rest.iter().map(|byte| i64::from(byte.count_ones())).sum::<i64>()
}

fn count_bits(value: &[u8], start: i64, end: i64) -> i64 {
    let len = value.len() as i64 * 8;
    if start < 0 && end < 0 && start > end {
        return 0;
    }
    let from_end = |index: i64| if index < 0 { index.saturating_add(len).max(0) } else { index };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end {
        return 0;
    }
    // Whole bytes, less the bits before and behind.
    let bytes = value.get((start / 8) as usize..=(end / 8) as usize).unwrap_or_default();
    let all = count_ones(bytes);
    let before = bytes.first().map_or(0, |byte| (u32::from(*byte) >> (8 - start % 8)).count_ones());
    let behind = bytes.last().map_or(0, |byte| (byte & ((1u16 << (7 - end % 8)) - 1) as u8).count_ones());
    all - i64::from(before) - i64::from(behind)
}

#[cfg(test)]
mod tests {
    use super::count_bits;

    #[test]
    fn bits_are_counted_as_one_by_one() {
        let value = [0b1010_0110, 0xff, 0x00, 0b0001_1000, 0x81];
        let len = value.len() as i64 * 8;
        for start in -len - 3..len + 3 {
            for end in -len - 3..len + 3 {
                let at = |index: i64| if index < 0 { (index + len).max(0) } else { index };
                let swapped = start < 0 && end < 0 && start > end;
                let (from, to) = if swapped { (1, 0) } else { (at(start), at(end).min(len - 1)) };
                let one = |bit: &i64| value[(bit / 8) as usize] >> (7 - bit % 8) & 1 == 1;
                assert_eq!(count_bits(&value, start, end), (from..=to).filter(one).count() as i64, "{start} {end}");
            }
        }
        assert_eq!(count_bits(b"", 0, -1), 0);
    }
}
