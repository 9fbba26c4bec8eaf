//! Increments and decrements of numbers.

use arrayvec::ArrayVec;
use sandstorm_net::memcached::text::{parse_u64, push_number};

use super::answers::{EXISTS, NOT_FOUND, NOT_NUMERIC};
use super::context::MemcachedContext;
use super::expiry::expires_at_ms;
use sandstorm_store::{RecordMarks, RecordRef, RecordTable, RecordUpdate, UpdateValue};

/// An addition or a subtraction.
pub(super) struct ArithmeticRequest {
    pub(super) delta: u64,
    pub(super) up: bool,
    /// The CAS number that the record must have; 0: any.
    pub(super) cas: u64,
    /// The value of a missing record, and its time of expiry.
    pub(super) initial: Option<(u64, i64)>,
}

impl ArithmeticRequest {
    /// An increment or decrement of an existing record.
    pub(super) fn plain(delta: u64, up: bool) -> ArithmeticRequest {
        ArithmeticRequest { delta, up, cas: 0, initial: None }
    }
}

impl MemcachedContext<'_> {
    /// Increments or decrements a record. Returns the sum, and the record's CAS number.
    pub(super) fn arithmetic(&self, key: &[u8], hash: u64, by: &ArithmeticRequest) -> Result<(u64, u64), &'static str> {
        let entry = self.reach(true)?;
        self.count_write();
        let context = self.context;
        let changed = entry.table.update_marked(context.participant, hash, key, context.now_ms, |found| {
            let plain = RecordMarks::default();
            match (found, by.initial) {
                (None, None) => (RecordUpdate::Keep(Err(NOT_FOUND)), plain),
                (None, Some((initial, exptime))) => {
                    let mut digits = ArrayVec::new();
                    write_number(initial, &mut digits);
                    let expires_at_ms = expires_at_ms(exptime, context.now_ms);
                    (
                        RecordUpdate::Put {
                            value: UpdateValue::Short(digits),
                            flags: 0,
                            expires_at_ms,
                            answer: Ok((initial, true)),
                        },
                        plain,
                    )
                }
                (Some(record), _) if by.cas != 0 && by.cas != RecordTable::number_of(hash, record.version()) => {
                    (RecordUpdate::Keep(Err(EXISTS)), record.marks())
                }
                (Some(record), _) => {
                    let Some((sum, value)) = add_to_value(record.value(), by.delta, by.up) else {
                        return (RecordUpdate::Keep(Err(NOT_NUMERIC)), record.marks());
                    };
                    self.rewrites(record.value().len());
                    let (marks, flags) = (marks_of_sum(&record, &value), record.flags());
                    let expires_at_ms = record.expires_at_ms();
                    (RecordUpdate::Put { value, flags, expires_at_ms, answer: Ok((sum, false)) }, marks)
                }
            }
        });
        let (result, version) = changed.map_err(|error| self.refused(error))?;
        self.count_arithmetic(by.up, result.map(|(_, made)| made));
        result.map(|(sum, _)| (sum, RecordTable::number_of(hash, version)))
    }
}

/// Returns the sum, and the new value. It is not shorter than the old one, but padded with blanks, as memcached writes
/// it.
pub(super) fn add_to_value(old: &[u8], delta: u64, up: bool) -> Option<(u64, UpdateValue<'static>)> {
    let number = if old.is_empty() { None } else { parse_u64(old) }?;
    let sum = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
    let mut digits = Vec::new();
    let mut short = ArrayVec::<u8, 32>::new();
    if old.len() <= short.capacity() {
        write_number(sum, &mut short);
        while short.len() < old.len() {
            short.push(b' ');
        }
        return Some((sum, UpdateValue::Short(short)));
    }
    push_number(sum, &mut digits);
    digits.resize(old.len().max(digits.len()), b' ');
    Some((sum, UpdateValue::Owned(digits)))
}

/// The marks that stay after an increment. memcached overwrites an old value if the new one is not longer, else it
/// makes a new item.
pub(super) fn marks_of_sum(record: &RecordRef<'_>, value: &UpdateValue<'_>) -> RecordMarks {
    let len: usize = value.parts().iter().map(|part| part.len()).sum();
    if len <= record.value().len() { record.marks() } else { RecordMarks::default() }
}

/// Writes a number in decimal; its 20 digits at most fit.
pub(super) fn write_number(mut number: u64, into: &mut ArrayVec<u8, 32>) {
    let mut digits = ArrayVec::<u8, 20>::new();
    loop {
        digits.push(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    into.extend(digits.into_iter().rev());
}
