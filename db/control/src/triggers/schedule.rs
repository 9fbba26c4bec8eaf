//! When a trigger is due: every so often, or by the five fields of cron, in UTC.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::{Date, date};
use jiff::tz::Offset;

use crate::limits::{TRIGGER_EVERY_MAX, TRIGGER_EVERY_MIN};

/// Days that a cron expression is looked for ahead: a 29th of February comes again after eight years at most.
const CRON_DAYS: u32 = 9 * 366;

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// So long after the last time.
    Every(Duration),
    /// By the clock.
    Cron(CronFields),
}

/// The last time up to now at which a schedule was due; the one before if there is none.
pub(crate) fn last_due(schedule: &Schedule, last_due_ms: u64, now_ms: u64) -> u64 {
    match schedule {
        Schedule::Every(every) => {
            let every_ms = every.as_millis() as u64;
            last_due_ms + now_ms.saturating_sub(last_due_ms) / every_ms * every_ms
        }
        // The next one is looked for from here.
        Schedule::Cron(_) => now_ms.max(last_due_ms),
    }
}

/// Minutes, hours, days of the month, months and days of the week, each a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CronFields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether days of the month and days of the week are both restricted: then either is enough, as in cron.
    either_day: bool,
}

impl Schedule {
    /// Reads a time such as `500ms`, `5s`, `10m`, `2h`, `1d`.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn every(text: &str) -> Result<Schedule, String> {
        let wrong = || format!("{text:?} is no time: write a number and ms, s, m, h or d, such as 5s");
        let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(at);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let every = number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(wrong)?;
        if !(TRIGGER_EVERY_MIN..=TRIGGER_EVERY_MAX).contains(&every) {
            let (least, most) = (TRIGGER_EVERY_MIN.as_millis(), TRIGGER_EVERY_MAX.as_secs() / 86_400);
            return Err(format!("every {text}: at least {least} ms and at most {most} days"));
        }
        Ok(Schedule::Every(every))
    }

    /// Reads the five fields of cron: minute, hour, day of the month, month, day of the week (0 and 7: Sunday). Each is
    /// `*`, a number, a range `1-5`, with a step `*/10` or `1-30/2`, or a list of these.
    ///
    /// # Errors
    /// What is wrong, for people; also if no day matches.
    pub(crate) fn cron(text: &str) -> Result<Schedule, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(format!(
                "{text:?} has {} fields; cron has five: minute, hour, day, month, weekday",
                fields.len()
            ));
        };
        let week = field("weekday", weekdays, 0, 7)?;
        let fields = CronFields {
            minutes: field("minute", minutes, 0, 59)?,
            hours: field("hour", hours, 0, 23)?,
            days: field("day", days, 1, 31)?,
            months: field("month", months, 1, 12)?,
            // Sunday has two numbers.
            weekdays: (week | week >> 7) & 0x7f,
            either_day: !days.starts_with('*') && !weekdays.starts_with('*'),
        };
        let schedule = Schedule::Cron(fields);
        match schedule.next_after(0) {
            Some(_) => Ok(schedule),
            None => Err(format!("{text:?} never happens: no month has such a day")),
        }
    }

    /// The first time after one, both in milliseconds since 1970; `None`: there is none.
    pub(crate) fn next_after(&self, after_ms: u64) -> Option<u64> {
        match self {
            Schedule::Every(every) => Some(after_ms.saturating_add(every.as_millis() as u64)),
            Schedule::Cron(fields) => fields.next_after(after_ms),
        }
    }
}

/// A field as a set of bits.
fn field(what: &str, text: &str, least: u32, most: u32) -> Result<u64, String> {
    let mut set = 0;
    for part in text.split(',') {
        let wrong = || {
            format!(
                "{what} {part:?}: write *, a number from {least} to {most}, a range, a step such as */5, or a list of these"
            )
        };
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(wrong)?),
            None => (part, 1),
        };
        let number = |text: &str| {
            let number = text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
            number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (least, most),
            Some((from, to)) => (number(from)?, number(to)?),
            // A step needs an end.
            None if step > 1 => (number(range)?, most),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return Err(wrong());
        }
        (from..=to).step_by(step as usize).for_each(|number| set |= 1 << number);
    }
    Ok(set)
}

fn has(set: u64, number: u32) -> bool {
    set >> number & 1 != 0
}

impl CronFields {
    fn has_day(&self, day: Date) -> bool {
        let in_month = has(self.days, u32::from(day.day().unsigned_abs()));
        let in_week = has(self.weekdays, u32::from(day.weekday().to_sunday_zero_offset().unsigned_abs()));
        let is_day = if self.either_day { in_month || in_week } else { in_month && in_week };
        is_day && has(self.months, u32::from(day.month().unsigned_abs()))
    }

    fn next_after(&self, after_ms: u64) -> Option<u64> {
        const DAY_MINUTES: u64 = 24 * 60;
        // The next whole minute.
        let minute = after_ms / 60_000 + 1;
        let (first_day, mut in_day) = (minute / DAY_MINUTES, (minute % DAY_MINUTES) as u32);
        let day = Timestamp::from_second(i64::try_from(first_day * DAY_MINUTES * 60).ok()?).ok()?;
        let mut day = Offset::UTC.to_datetime(day).date();
        for passed in 0..CRON_DAYS {
            if self.has_day(day) {
                let found = (in_day..DAY_MINUTES as u32)
                    .find(|minute| has(self.hours, minute / 60) && has(self.minutes, minute % 60));
                if let Some(found) = found {
                    return Some(((first_day + u64::from(passed)) * DAY_MINUTES + u64::from(found)) * 60_000);
                }
            }
            in_day = 0;
            day = day.tomorrow().ok().filter(|day| *day < date(9999, 1, 1))?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_millisecond() as u64
    }

    fn next(cron: &str, after: &str) -> String {
        let next = Schedule::cron(cron).unwrap().next_after(at(after)).unwrap();
        Timestamp::from_millisecond(next as i64).unwrap().to_string()
    }

    #[test]
    fn cron_is_due_when_cron_would_be() {
        for (cron, after, due) in [
            ("* * * * *", "2026-01-31T23:59:00Z", "2026-02-01T00:00:00Z"),
            ("* * * * *", "2026-01-31T23:58:59.999Z", "2026-01-31T23:59:00Z"),
            ("*/15 * * * *", "2026-03-01T10:15:00Z", "2026-03-01T10:30:00Z"),
            ("5/20 3 * * *", "2026-03-01T03:26:00Z", "2026-03-01T03:45:00Z"),
            ("0 0 29 2 *", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
            ("30 6 * * 1-5", "2026-11-27T06:30:00Z", "2026-11-30T06:30:00Z"),
            ("0 12 * * 7", "2026-11-26T00:00:00Z", "2026-11-29T12:00:00Z"),
            ("0 12 * * 0", "2026-11-26T00:00:00Z", "2026-11-29T12:00:00Z"),
            // Either the 13th or a Friday.
            ("0 0 13 * 5", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"),
            ("0 0 13 * 5", "2026-12-12T00:00:00Z", "2026-12-13T00:00:00Z"),
            // A star with a step does not make it either of them.
            ("0 0 */2 * 5", "2026-11-26T00:00:00Z", "2026-11-27T00:00:00Z"),
            ("0,30 8-9,20 1 1,7 *", "2026-01-01T09:30:00Z", "2026-01-01T20:00:00Z"),
        ] {
            assert_eq!(next(cron, after), due, "{cron} after {after}");
        }
    }

    #[test]
    fn each_minute_of_a_month_is_due_as_its_fields_say() {
        // Each minute is looked at by itself, without the jumps.
        let Schedule::Cron(fields) = Schedule::cron("7-50/9 */5 10-20 * 1,3").unwrap() else { panic!("cron") };
        let (begin, end) = (at("2026-02-01T00:00:00Z"), at("2026-03-04T00:00:00Z"));
        let is_due = |ms: u64| {
            let when = Offset::UTC.to_datetime(Timestamp::from_millisecond(ms as i64).unwrap());
            let (minute, hour) = (when.minute() as u32, when.hour() as u32);
            (7..=50).contains(&minute)
                && (minute - 7).is_multiple_of(9)
                && hour.is_multiple_of(5)
                && ((10..=20).contains(&when.day()) || [1, 3].contains(&when.weekday().to_sunday_zero_offset()))
        };
        let (mut found, mut now) = (Vec::new(), begin - 1);
        while let Some(due) = fields.next_after(now).filter(|due| *due < end) {
            found.push(due);
            now = due;
        }
        let expected: Vec<u64> = (begin..end).step_by(60_000).filter(|ms| is_due(*ms)).collect();
        assert!(found == expected && found.len() > 100, "{} and {}", found.len(), expected.len());
    }

    #[test]
    fn what_is_no_schedule_is_refused_and_named() {
        for (cron, word) in [
            ("* * * *", "4 fields"),
            ("60 * * * *", "minute"),
            ("* 24 * * *", "hour"),
            ("* * 0 * *", "day"),
            ("* * * 13 *", "month"),
            ("* * * * 8", "weekday"),
            ("*/0 * * * *", "minute"),
            ("5-1 * * * *", "minute"),
            ("+5 * * * *", "minute"),
            (", * * * *", "minute"),
            ("0 0 31 2 *", "never"),
            ("0 0 30 2 *", "never"),
        ] {
            let why = Schedule::cron(cron).unwrap_err();
            assert!(why.contains(word), "{cron}: {why}");
        }
        for text in ["", "5", "s", "-5s", "5 s", "99ms", "0s", "31d", "99999999999999999999d", "1.5s"] {
            assert!(Schedule::every(text).is_err(), "{text}");
        }
        assert_eq!(Schedule::every("2m"), Ok(Schedule::Every(Duration::from_secs(120))));
        assert_eq!(Schedule::every("500ms").unwrap().next_after(7), Some(507));
    }
}
