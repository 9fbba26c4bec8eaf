//! Commands on when a record expires.

use super::call::{Call, Fail, NOT_AN_INTEGER, Outcome, integer, is, text};
use sandstorm_store::{Change, RecordRef};

/// How a time is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    InSeconds,
    InMillis,
    AtSecond,
    AtMillis,
}

/// The word that says so, in SET and GETEX.
pub(super) fn expiry_option(word: &[u8]) -> Option<Expiry> {
    match () {
        () if is(word, "EX") => Some(Expiry::InSeconds),
        () if is(word, "PX") => Some(Expiry::InMillis),
        () if is(word, "EXAT") => Some(Expiry::AtSecond),
        () if is(word, "PXAT") => Some(Expiry::AtMillis),
        () => None,
    }
}

impl Expiry {
    /// The moment that is meant, in milliseconds since the Unix epoch, if there is such a moment.
    fn moment(self, number: i64, now_ms: u64) -> Option<i64> {
        let millis = match self {
            Expiry::InSeconds | Expiry::AtSecond => number.checked_mul(1000)?,
            Expiry::InMillis | Expiry::AtMillis => number,
        };
        match self {
            Expiry::InSeconds | Expiry::InMillis => millis.checked_add(i64::try_from(now_ms).ok()?),
            Expiry::AtSecond | Expiry::AtMillis => Some(millis),
        }
    }

    /// The moment that an argument of a write names, as the store has it: the first millisecond in which the record is absent.
    pub(super) fn at_ms(self, call: &Call<'_, '_>, number: usize, name: &str) -> Result<u64, Fail> {
        let said = integer(call.arg(number)).ok_or(NOT_AN_INTEGER)?;
        let moment = (said > 0).then(|| self.moment(said, call.clock_ms())).flatten();
        let moment = moment.and_then(|moment| u64::try_from(moment).ok()).map(stored_ms);
        moment.ok_or_else(|| format!("ERR invalid expire time in '{name}' command").into())
    }
}

/// Redis names the last millisecond in which a key is there, the store the first in which it is not. So a time from now, which is counted
/// from the beginning of a millisecond, is never too short.
fn stored_ms(moment: u64) -> u64 {
    moment.saturating_add(1)
}

/// When a record expires, as Redis names it.
fn moment_of(record: &RecordRef<'_>) -> Option<u64> {
    record.expires_at_ms().checked_sub(1)
}

/// On which conditions an expiry is to be set.
#[derive(Default)]
struct When {
    none: bool,
    some: bool,
    later: bool,
    sooner: bool,
}

fn when(call: &Call<'_, '_>) -> Result<When, Fail> {
    let mut when = When::default();
    for word in call.rest(3) {
        match () {
            () if is(word, "NX") => when.none = true,
            () if is(word, "XX") => when.some = true,
            () if is(word, "GT") => when.later = true,
            () if is(word, "LT") => when.sooner = true,
            () => return Err(format!("ERR Unsupported option {}", text(word)).into()),
        }
    }
    if when.none && (when.some || when.later || when.sooner) {
        return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if when.later && when.sooner {
        return Err("ERR GT and LT options at the same time are not compatible".into());
    }
    Ok(when)
}

fn expire_as(call: &mut Call<'_, '_>, kind: Expiry, name: &str) -> Outcome {
    let when = when(call)?;
    let said = call.integer(2)?;
    let now_ms = call.clock_ms();
    let Some(moment) = kind.moment(said, now_ms) else {
        return Err(format!("ERR invalid expire time in '{name}' command").into());
    };
    let at_ms = u64::try_from(moment).unwrap_or(0);
    let done = call.update(call.arg(1), |old| {
        let Some(record) = old else { return Change::Keep(false) };
        // What never expires does so later than everything.
        let before = moment_of(&record).unwrap_or(u64::MAX);
        let refused = when.none && before != u64::MAX
            || when.some && before == u64::MAX
            || when.later && at_ms <= before
            || when.sooner && at_ms >= before;
        match refused {
            true => Change::Keep(false),
            false if at_ms <= now_ms => Change::Delete(true),
            false => {
                let expires_at_ms = stored_ms(at_ms);
                Change::Put { value: record.value().into(), flags: record.flags(), expires_at_ms, answer: true }
            }
        }
    })?;
    call.reply.integer(done.into());
    Ok(())
}

pub(super) fn expire(call: &mut Call<'_, '_>) -> Outcome {
    expire_as(call, Expiry::InSeconds, "expire")
}

pub(super) fn pexpire(call: &mut Call<'_, '_>) -> Outcome {
    expire_as(call, Expiry::InMillis, "pexpire")
}

pub(super) fn expireat(call: &mut Call<'_, '_>) -> Outcome {
    expire_as(call, Expiry::AtSecond, "expireat")
}

pub(super) fn pexpireat(call: &mut Call<'_, '_>) -> Outcome {
    expire_as(call, Expiry::AtMillis, "pexpireat")
}

pub(super) fn persist(call: &mut Call<'_, '_>) -> Outcome {
    let done = call.update(call.arg(1), |old| match old {
        Some(record) if record.expires_at_ms() != 0 => {
            Change::Put { value: record.value().into(), flags: record.flags(), expires_at_ms: 0, answer: true }
        }
        _ => Change::Keep(false),
    })?;
    call.reply.integer(done.into());
    Ok(())
}

/// Answers what a function makes of the moment at which a record expires; -1: never; -2: there is none.
fn tell(call: &mut Call<'_, '_>, f: impl FnOnce(u64, u64) -> u64) -> Outcome {
    // By the clock by which it was set: never more is left than was given.
    let now_ms = call.clock_ms();
    let answer = match call.get(call.arg(1))?.as_ref().map(moment_of) {
        None => -2,
        Some(None) => -1,
        Some(Some(at_ms)) => f(at_ms, now_ms) as i64,
    };
    call.reply.integer(answer);
    Ok(())
}

pub(super) fn ttl(call: &mut Call<'_, '_>) -> Outcome {
    tell(call, |at_ms, now_ms| (at_ms.saturating_sub(now_ms) + 500) / 1000)
}

pub(super) fn pttl(call: &mut Call<'_, '_>) -> Outcome {
    tell(call, u64::saturating_sub)
}

pub(super) fn expiretime(call: &mut Call<'_, '_>) -> Outcome {
    tell(call, |at_ms, _| (at_ms + 500) / 1000)
}

pub(super) fn pexpiretime(call: &mut Call<'_, '_>) -> Outcome {
    tell(call, |at_ms, _| at_ms)
}
