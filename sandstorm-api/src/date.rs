//! Dates of the Gregorian calendar and times of the day, in UTC: no database of time zones.
//!
//! ```
//! use sandstorm_api::date::DateTime;
//! use sandstorm_api::prelude::*;
//!
//! /// Counts calls by day.
//! async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
//!     let today = DateTime::from_unix_ms(db.now_ms() as i64).ok_or("the clock is wrong")?;
//!     let day = format!("{}", today.date);
//!     let count = db.increment(db.table("days")?, day.as_bytes(), 1).await?;
//!     db.reply(format!("call {count} of {day}, a {:?}", today.date.weekday()).as_bytes())
//! }
//!
//! let mut store = sandstorm_api::testing::TestStore::new();
//! store.table("days");
//! assert_eq!(store.invoke(run, b"").unwrap(), b"call 1 of 2023-11-14, a Tuesday");
//! let lunch = DateTime::parse_rfc3339("2024-02-29T12:30:00.5+02:00").unwrap();
//! assert_eq!(lunch.to_string(), "2024-02-29T10:30:00.500000Z");
//! ```

use core::fmt::{Display, Formatter};

use crate::Error;

const DAY_US: i64 = 86_400_000_000;

/// A day of the Gregorian calendar, in the years 0 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "days have known names")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// A moment in UTC, to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DateTime {
    /// The day.
    pub date: Date,
    /// Microseconds since its beginning, below 86,400,000,000.
    pub us_of_day: u64,
}

impl Date {
    /// The day of a year (0 to 9999), a month (from 1) and a day (from 1); `None`: there is none.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// assert!(Date::new(2024, 2, 29).is_some() && Date::new(2023, 2, 29).is_none());
    /// ```
    pub fn new(year: u16, month: u8, day: u8) -> Option<Date> {
        let exists = year <= 9_999 && (1..=12).contains(&month) && (1..=days_of_month(year, month)).contains(&day);
        exists.then_some(Date { year, month, day })
    }

    /// The day so many days after 1 January 1970, or before it; `None`: its year is not 0 to 9999.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// assert_eq!(Date::from_unix_days(0), Date::new(1970, 1, 1));
    /// ```
    pub fn from_unix_days(days: i64) -> Option<Date> {
        // Years begin in March here, so that the day that leap years have more is the last one. An era has 400 years.
        let from_march_0 = days.checked_add(719_468)?;
        let (era, day) = (from_march_0.div_euclid(146_097), from_march_0.rem_euclid(146_097));
        let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Date::new(u16::try_from(year).ok()?, u8::try_from(month).ok()?, u8::try_from(day_of_month).ok()?)
    }

    /// Days since 1 January 1970; below 0 before it.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// assert_eq!(Date::new(1970, 1, 2).unwrap().unix_days(), 1);
    /// ```
    pub fn unix_days(self) -> i64 {
        let (month, day) = (i64::from(self.month), i64::from(self.day));
        let year = i64::from(self.year) - i64::from(month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let march_month = if month > 2 { month - 3 } else { month + 9 };
        let day_of_year = (153 * march_month + 2) / 5 + day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * 146_097 + day_of_era - 719_468
    }

    /// The day so many days later, or earlier; `None`: its year is not 0 to 9999.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.plus_days(1), Date::new(2024, 3, 1));
    /// ```
    pub fn plus_days(self, days: i64) -> Option<Date> {
        Date::from_unix_days(self.unix_days().checked_add(days)?)
    }

    /// The year.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.year(), 2024);
    /// ```
    pub fn year(self) -> u16 {
        self.year
    }

    /// The month, from 1.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.month(), 2);
    /// ```
    pub fn month(self) -> u8 {
        self.month
    }

    /// The day of the month, from 1.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.day(), 29);
    /// ```
    pub fn day(self) -> u8 {
        self.day
    }

    /// The day of the year, from 1.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.day_of_year(), 60);
    /// ```
    pub fn day_of_year(self) -> u16 {
        (1..self.month).map(|month| u16::from(days_of_month(self.year, month))).sum::<u16>() + u16::from(self.day)
    }

    /// The day of the week.
    ///
    /// ```
    /// use sandstorm_api::date::{Date, Weekday};
    /// let day = Date::new(2024, 2, 29).unwrap();
    /// assert_eq!(day.weekday(), Weekday::Thursday);
    /// ```
    pub fn weekday(self) -> Weekday {
        use Weekday::{Friday, Monday, Saturday, Sunday, Thursday, Tuesday, Wednesday};
        // 1 January 1970 was a Thursday.
        match (self.unix_days() + 3).rem_euclid(7) {
            0 => Monday,
            1 => Tuesday,
            2 => Wednesday,
            3 => Thursday,
            4 => Friday,
            5 => Saturday,
            _ => Sunday,
        }
    }

    /// Reads `2024-02-29`.
    ///
    /// ```
    /// use sandstorm_api::date::Date;
    /// assert_eq!(Date::parse("2024-02-29").ok(), Date::new(2024, 2, 29));
    /// ```
    ///
    /// # Errors
    /// `Invalid`: it has another form, or there is no such day.
    pub fn parse(text: &str) -> Result<Date, Error> {
        let wrong = || Error::invalid("no date such as 2024-02-29");
        let (date, rest) = parse_date(text.as_bytes()).ok_or_else(wrong)?;
        if rest.is_empty() { Ok(date) } else { Err(wrong()) }
    }
}

/// Days of a month, from 1 to 12.
fn days_of_month(year: u16, month: u8) -> u8 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl Display for Date {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl DateTime {
    /// The moment so many microseconds after the beginning of 1970, or before it; `None`: its year is not 0 to 9999.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// assert_eq!(DateTime::from_unix_us(0).unwrap().to_string(), "1970-01-01T00:00:00Z");
    /// ```
    pub fn from_unix_us(us: i64) -> Option<DateTime> {
        let date = Date::from_unix_days(us.div_euclid(DAY_US))?;
        Some(DateTime { date, us_of_day: us.rem_euclid(DAY_US) as u64 })
    }

    /// The same in milliseconds, as [`Db::now_ms`](crate::Db::now_ms) has them.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// assert_eq!(DateTime::from_unix_ms(60_000).unwrap().minute(), 1);
    /// ```
    pub fn from_unix_ms(ms: i64) -> Option<DateTime> {
        DateTime::from_unix_us(ms.checked_mul(1_000)?)
    }

    /// Microseconds since the beginning of 1970; below 0 before it.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// assert_eq!(DateTime::parse_rfc3339("1970-01-01T00:00:01Z").unwrap().unix_us(), 1_000_000);
    /// ```
    pub fn unix_us(self) -> i64 {
        self.date.unix_days() * DAY_US + self.us_of_day as i64
    }

    /// The hour of the day, from 0.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// let time = DateTime::parse_rfc3339("2024-02-29T12:30:45Z").unwrap();
    /// assert_eq!(time.hour(), 12);
    /// ```
    pub fn hour(self) -> u8 {
        (self.us_of_day / 3_600_000_000) as u8
    }

    /// The minute of the hour, from 0.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// let time = DateTime::parse_rfc3339("2024-02-29T12:30:45Z").unwrap();
    /// assert_eq!(time.minute(), 30);
    /// ```
    pub fn minute(self) -> u8 {
        (self.us_of_day / 60_000_000 % 60) as u8
    }

    /// The second of the minute, from 0.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// let time = DateTime::parse_rfc3339("2024-02-29T12:30:45Z").unwrap();
    /// assert_eq!(time.second(), 45);
    /// ```
    pub fn second(self) -> u8 {
        (self.us_of_day / 1_000_000 % 60) as u8
    }

    /// Reads a moment as RFC 3339 writes it, and ISO 8601 mostly: `2024-02-29T12:30:00Z`, with a fraction of the second
    /// (digits behind microseconds are cut off) and any distance to UTC. A leap second (`:60`) is the second after it.
    ///
    /// ```
    /// use sandstorm_api::date::DateTime;
    /// let time = DateTime::parse_rfc3339("2024-02-29T12:30:00+02:00").unwrap();
    /// assert_eq!(time.hour(), 10, "in UTC");
    /// ```
    ///
    /// # Errors
    /// `Invalid`: it has another form, or there is no such moment.
    pub fn parse_rfc3339(text: &str) -> Result<DateTime, Error> {
        parse_moment(text.as_bytes()).ok_or_else(|| Error::invalid("no time such as 2024-02-29T12:30:00Z"))
    }
}

impl Display for DateTime {
    /// As RFC 3339 has it, in UTC: `2024-02-29T12:30:00Z`, with six digits of a fraction unless that is 0.
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}T{:02}:{:02}:{:02}", self.date, self.hour(), self.minute(), self.second())?;
        match self.us_of_day % 1_000_000 {
            0 => f.write_str("Z"),
            fraction => write!(f, ".{fraction:06}Z"),
        }
    }
}

/// A number of so many digits at the beginning, and what follows.
fn digits(text: &[u8], count: usize) -> Option<(u32, &[u8])> {
    let (number, rest) = text.split_at_checked(count)?;
    let value = number
        .iter()
        .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u32::from(digit - b'0')))?;
    Some((value, rest))
}

fn parse_date(text: &[u8]) -> Option<(Date, &[u8])> {
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let (day, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    Some((Date::new(year as u16, month as u8, day as u8)?, rest))
}

fn parse_moment(text: &[u8]) -> Option<DateTime> {
    let (date, rest) = parse_date(text)?;
    let (b'T' | b't' | b' ', rest) = rest.split_first()? else { return None };
    let (hour, rest) = digits(rest, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (second, mut rest) = digits(rest.strip_prefix(b":")?, 2)?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut fraction_us = 0;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let len = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (numbers, after) = fraction.split_at(len);
        let mut unit = 100_000;
        for number in numbers {
            fraction_us += i64::from(number - b'0') * unit;
            unit /= 10;
        }
        rest = if len > 0 { after } else { return None };
    }
    let offset_minutes = match rest {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), rest @ ..] => {
            let (hours, rest) = digits(rest, 2)?;
            let (minutes, rest) = digits(rest.strip_prefix(b":")?, 2)?;
            if hours > 23 || minutes > 59 || !rest.is_empty() {
                return None;
            }
            let minutes = i64::from(hours * 60 + minutes);
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = i64::from(hour * 3_600 + minute * 60 + second) - offset_minutes * 60;
    DateTime::from_unix_us(date.unix_days() * DAY_US + seconds * 1_000_000 + fraction_us)
}
