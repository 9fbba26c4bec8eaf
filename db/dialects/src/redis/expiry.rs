//! Commands on the expiry of a record.

use super::arguments::{is_word, lossy_text, parse_integer};
use super::command_call::CommandCall;
use super::errors::{CommandError, CommandResult, NOT_AN_INTEGER};
use sandstorm_store::{RecordRef, RecordUpdate, UpdateValue};

/// The unit and base of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryUnit {
    InSeconds,
    InMillis,
    AtSecond,
    AtMillis,
}

/// The option of SET and GETEX for a unit.
pub(super) fn expiry_option(word: &[u8]) -> Option<ExpiryUnit> {
    match () {
        () if is_word(word, "EX") => Some(ExpiryUnit::InSeconds),
        () if is_word(word, "PX") => Some(ExpiryUnit::InMillis),
        () if is_word(word, "EXAT") => Some(ExpiryUnit::AtSecond),
        () if is_word(word, "PXAT") => Some(ExpiryUnit::AtMillis),
        () => None,
    }
}

impl ExpiryUnit {
    /// The moment of a time in this unit, in milliseconds since the Unix epoch, if it is in range.
    fn unix_ms(self, number: i64, now_ms: u64) -> Option<i64> {
        let millis = match self {
            ExpiryUnit::InSeconds | ExpiryUnit::AtSecond => number.checked_mul(1000)?,
            ExpiryUnit::InMillis | ExpiryUnit::AtMillis => number,
        };
        match self {
            ExpiryUnit::InSeconds | ExpiryUnit::InMillis => millis.checked_add(i64::try_from(now_ms).ok()?),
            ExpiryUnit::AtSecond | ExpiryUnit::AtMillis => Some(millis),
        }
    }

    /// The moment of a write's argument, as the store has it: the first millisecond in which the record is absent.
    pub(super) fn at_ms(self, call: &CommandCall<'_, '_>, number: usize, name: &str) -> Result<u64, CommandError> {
        let attributes = parse_integer(call.arg(number)).ok_or(NOT_AN_INTEGER)?;
        let moment = (attributes > 0).then(|| self.unix_ms(attributes, call.clock_ms())).flatten();
        let moment = moment.and_then(|moment| u64::try_from(moment).ok()).map(stored_ms);
        moment.ok_or_else(|| format!("ERR invalid expire time in '{name}' command").into())
    }
}

/// Redis names the last millisecond in which a key exists, the store the first in which it does not. So a relative
/// time, which counts from the beginning of a millisecond, is never too short.
fn stored_ms(moment: u64) -> u64 {
    moment.saturating_add(1)
}

/// The expiry of a record, as Redis names it.
fn redis_expiry_ms(record: &RecordRef<'_>) -> Option<u64> {
    record.expires_at_ms().checked_sub(1)
}

/// The conditions for setting an expiry.
#[derive(Default)]
struct ExpiryConditions {
    none: bool,
    some: bool,
    gt: bool,
    lt: bool,
}

fn parse_conditions(call: &CommandCall<'_, '_>) -> Result<ExpiryConditions, CommandError> {
    let mut when = ExpiryConditions::default();
    for word in call.rest(3) {
        match () {
            () if is_word(word, "NX") => when.none = true,
            () if is_word(word, "XX") => when.some = true,
            () if is_word(word, "GT") => when.gt = true,
            () if is_word(word, "LT") => when.lt = true,
            () => return Err(format!("ERR Unsupported option {}", lossy_text(word)).into()),
        }
    }
    if when.none && (when.some || when.gt || when.lt) {
        return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if when.gt && when.lt {
        return Err("ERR GT and LT options at the same time are not compatible".into());
    }
    Ok(when)
}

fn expire_as(call: &mut CommandCall<'_, '_>, kind: ExpiryUnit, name: &str) -> CommandResult {
    let when = parse_conditions(call)?;
    let attributes = call.integer(2)?;
    let now_ms = call.clock_ms();
    let Some(moment) = kind.unix_ms(attributes, now_ms) else {
        return Err(format!("ERR invalid expire time in '{name}' command").into());
    };
    let at_ms = u64::try_from(moment).unwrap_or(0);
    let done = call.update(call.arg(1), |old| {
        let Some(record) = old else { return RecordUpdate::Keep(false) };
        // A record that never expires counts as the latest.
        let before = redis_expiry_ms(&record).unwrap_or(u64::MAX);
        let refused = when.none && before != u64::MAX
            || when.some && before == u64::MAX
            || when.gt && at_ms <= before
            || when.lt && at_ms >= before;
        match refused {
            true => RecordUpdate::Keep(false),
            false if at_ms <= now_ms => RecordUpdate::Delete(true),
            false => {
                let expires_at_ms = stored_ms(at_ms);
                let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
                RecordUpdate::Put { value, flags, expires_at_ms, answer: true }
            }
        }
    })?;
    call.reply.integer(done.into());
    Ok(())
}

pub(super) fn expire(call: &mut CommandCall<'_, '_>) -> CommandResult {
    expire_as(call, ExpiryUnit::InSeconds, "expire")
}

pub(super) fn pexpire(call: &mut CommandCall<'_, '_>) -> CommandResult {
    expire_as(call, ExpiryUnit::InMillis, "pexpire")
}

pub(super) fn expireat(call: &mut CommandCall<'_, '_>) -> CommandResult {
    expire_as(call, ExpiryUnit::AtSecond, "expireat")
}

pub(super) fn pexpireat(call: &mut CommandCall<'_, '_>) -> CommandResult {
    expire_as(call, ExpiryUnit::AtMillis, "pexpireat")
}

pub(super) fn persist(call: &mut CommandCall<'_, '_>) -> CommandResult {
    let done = call.update(call.arg(1), |old| match old {
        Some(record) if record.expires_at_ms() != 0 => {
            let (value, flags) = (UpdateValue::unchanged(&record), record.flags());
            RecordUpdate::Put { value, flags, expires_at_ms: 0, answer: true }
        }
        _ => RecordUpdate::Keep(false),
    })?;
    call.reply.integer(done.into());
    Ok(())
}

/// Answers with the value that `f` computes from the record's expiry; -1: it never expires; -2: there is no record.
fn reply_expiry(call: &mut CommandCall<'_, '_>, f: impl FnOnce(u64, u64) -> u64) -> CommandResult {
    // By the clock that set it: no more is left than was given.
    let now_ms = call.clock_ms();
    let answer = match call.get(call.arg(1))?.as_ref().map(redis_expiry_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(at_ms)) => f(at_ms, now_ms) as i64,
    };
    call.reply.integer(answer);
    Ok(())
}

pub(super) fn ttl(call: &mut CommandCall<'_, '_>) -> CommandResult {
    reply_expiry(call, |at_ms, now_ms| (at_ms.saturating_sub(now_ms) + 500) / 1000)
}

pub(super) fn pttl(call: &mut CommandCall<'_, '_>) -> CommandResult {
    reply_expiry(call, u64::saturating_sub)
}

pub(super) fn expiretime(call: &mut CommandCall<'_, '_>) -> CommandResult {
    reply_expiry(call, |at_ms, _| (at_ms + 500) / 1000)
}

pub(super) fn pexpiretime(call: &mut CommandCall<'_, '_>) -> CommandResult {
    reply_expiry(call, |at_ms, _| at_ms)
}
