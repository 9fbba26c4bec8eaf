//! The lines that a tenant's extensions write.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sandstorm_net::rate_limiter::RateLimiter;

use crate::limits::{LOG_BYTES, LOG_DEBUG_S, LOG_ENTRY_BYTES, LOG_LINES, LOG_TEXT_BYTES};

/// How much a line matters, as in the extension API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LineLevel {
    /// Something went wrong.
    Error = 1,
    /// Something may go wrong.
    Warn = 2,
    /// Something happened.
    Info = 3,
    /// Kept only while a reader asks for it.
    Debug = 4,
}

impl LineLevel {
    /// All levels, the most severe first.
    pub const ALL: [LineLevel; 4] = [LineLevel::Error, LineLevel::Warn, LineLevel::Info, LineLevel::Debug];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LineLevel::Error => "error",
            LineLevel::Warn => "warn",
            LineLevel::Info => "info",
            LineLevel::Debug => "debug",
        }
    }

    /// The level of that name.
    pub fn by_name(name: &str) -> Option<LineLevel> {
        LineLevel::ALL.into_iter().find(|level| level.name() == name)
    }

    /// The level of that number in the extension API.
    pub fn by_number(number: u32) -> Option<LineLevel> {
        LineLevel::ALL.into_iter().find(|level| *level as u32 == number)
    }
}

/// A line that an extension has written, or the server about its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Grows from line to line of the tenant.
    pub id: u64,
    /// When it was written, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// How much it matters.
    pub level: LineLevel,
    /// The extension.
    pub extension: Arc<str>,
    /// Its version.
    pub version: u64,
    /// The number of the call, among those of the tenant that have written lines.
    pub call: u64,
    /// What it says.
    pub text: Arc<str>,
}

/// A line before it is kept.
#[derive(Clone, Copy, Debug)]
pub struct NewLogLine<'a> {
    /// See [`LogLine::level`].
    pub level: LineLevel,
    /// See [`LogLine::extension`].
    pub extension: &'a str,
    /// See [`LogLine::version`].
    pub version: u64,
    /// See [`LogLine::call`].
    pub call: u64,
    /// See [`LogLine::text`]. Bytes that are no UTF-8 are replaced.
    pub text: &'a [u8],
}

/// Which lines to read.
#[derive(Clone, Debug)]
pub struct LogFilter {
    /// Lines after this one; `None`: the latest.
    pub after: Option<u64>,
    /// Lines of this extension.
    pub extension: Option<String>,
    /// Lines of this level or a more important one.
    pub level: LineLevel,
    /// Lines of this call.
    pub call: Option<u64>,
    /// How many at most.
    pub limit: usize,
}

/// Lines that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The lines, the oldest first.
    pub lines: Vec<LogLine>,
    /// What to read on after.
    pub next: u64,
    /// Whether lines after the given one had been displaced already.
    pub missed: bool,
}

#[derive(Debug, Default)]
struct LogRing {
    lines: VecDeque<LogLine>,
    bytes: usize,
    last: u64,
}

/// A tenant's log: the latest lines, in bounded memory. Its lock is held to add a line, and to copy some.
#[derive(Debug, Default)]
pub struct TenantLog {
    ring: Mutex<LogRing>,
    /// Until when lines of [`LineLevel::Debug`] are kept, nanoseconds of [`uptime_ns`]; 0: they are not.
    debug_until_ns: AtomicU64,
    /// The number of the least severe lines that are kept; 0: as at first.
    level: AtomicU32,
    calls: AtomicU64,
    rate: RateLimiter,
    left_out: AtomicU64,
}

impl TenantLog {
    /// The number of the least severe lines that are kept: what each invocation begins with.
    #[inline]
    pub fn level_number(&self) -> u32 {
        self.level.load(Relaxed).max(LineLevel::Info as u32)
    }

    /// Keeps lines of [`LineLevel::Debug`] for some seconds from now on: a reader asks for them.
    pub fn keep_debug_lines(&self) {
        self.debug_until_ns.store(uptime_ns() + LOG_DEBUG_S * 1_000_000_000, Relaxed);
        self.level.store(LineLevel::Debug as u32, Relaxed);
    }

    /// The number of a call that is about to write its first line.
    pub fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Relaxed) + 1
    }

    /// Keeps a line, unless its level is not asked for, or too many came.
    #[cold]
    pub fn keep(&self, new: &NewLogLine<'_>) {
        let now_ns = uptime_ns();
        if new.level == LineLevel::Debug && now_ns >= self.debug_until_ns.load(Relaxed) {
            self.level.store(0, Relaxed);
            return;
        }
        if !self.rate.admit_shared(&LOG_LINES, now_ns, 1) {
            self.left_out.fetch_add(1, Relaxed);
            return;
        }
        self.keep_surely(new);
    }

    /// Keeps a line of the server's about a call, however many lines the call has written.
    #[cold]
    pub fn keep_surely(&self, new: &NewLogLine<'_>) {
        let at_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let text = String::from_utf8_lossy(&new.text[..new.text.len().min(LOG_TEXT_BYTES)]);
        let NewLogLine { level, extension, version, call, .. } = *new;
        let (extension, text) = (Arc::from(extension), Arc::from(text));
        let mut line = LogLine { id: 0, at_us, level, extension, version, call, text };
        let mut ring = self.ring.lock();
        ring.last += 1;
        line.id = ring.last;
        ring.bytes += entry_bytes(&line);
        ring.lines.push_back(line);
        while ring.bytes > LOG_BYTES
            && let Some(oldest) = ring.lines.pop_front()
        {
            ring.bytes -= entry_bytes(&oldest);
        }
    }

    /// Lines that were not kept, because too many came.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// Reads lines.
    pub fn read(&self, filter: &LogFilter) -> LogPage {
        let LogFilter { after, extension, level, call, limit } = filter;
        let matches = |line: &&LogLine| {
            line.level <= *level
                && extension.as_deref().is_none_or(|name| *name == *line.extension)
                && call.is_none_or(|call| call == line.call)
        };
        let ring = self.ring.lock();
        let first = ring.lines.front().map_or(ring.last + 1, |line| line.id);
        let Some(after) = after else {
            let mut lines: Vec<LogLine> = ring.lines.iter().rev().filter(matches).take(*limit).cloned().collect();
            lines.reverse();
            return LogPage { lines, next: ring.last, missed: false };
        };
        // A number that is not known yet is of before a restart: what there is now came after it.
        let after = if *after > ring.last { 0 } else { *after };
        let skipped = (after + 1).saturating_sub(first) as usize;
        let mut found = ring.lines.iter().skip(skipped).filter(matches);
        let lines: Vec<LogLine> = found.by_ref().take(*limit).cloned().collect();
        let is_all = found.next().is_none();
        let next = if is_all { ring.last } else { lines.last().map_or(after, |line| line.id) };
        LogPage { lines, next, missed: after + 1 < first && after > 0 }
    }
}

/// Bytes of memory that a line takes.
fn entry_bytes(line: &LogLine) -> usize {
    LOG_ENTRY_BYTES + line.text.len() + line.extension.len()
}

/// Nanoseconds of a clock that does not run back, the same for all tenants.
fn uptime_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    // Never 0, which stands for no time.
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LOG_LINES_BURST;

    fn line(level: LineLevel, extension: &'static str, call: u64, text: &'static [u8]) -> NewLogLine<'static> {
        NewLogLine { level, extension, version: 1, call, text }
    }

    fn all() -> LogFilter {
        LogFilter { after: None, extension: None, level: LineLevel::Debug, call: None, limit: usize::MAX }
    }

    fn texts(page: &LogPage) -> Vec<&str> {
        page.lines.iter().map(|line| &*line.text).collect()
    }

    #[test]
    fn lines_are_found_by_level_extension_call_and_position() {
        let log = TenantLog::default();
        log.keep(&line(LineLevel::Info, "a", 1, b"one"));
        log.keep(&line(LineLevel::Error, "b", 2, b"two\xff"));
        log.keep(&line(LineLevel::Warn, "a", 1, b"three"));
        assert_eq!(texts(&log.read(&all())), ["one", "two\u{fffd}", "three"]);
        let of = |filter: LogFilter| texts(&log.read(&filter)).join(" ");
        assert_eq!(of(LogFilter { level: LineLevel::Warn, ..all() }), "two\u{fffd} three");
        assert_eq!(of(LogFilter { extension: Some("a".into()), ..all() }), "one three");
        assert_eq!(of(LogFilter { call: Some(2), ..all() }), "two\u{fffd}");
        assert_eq!(of(LogFilter { limit: 1, ..all() }), "three", "the latest");
        let page = log.read(&LogFilter { after: Some(0), limit: 2, ..all() });
        assert_eq!((texts(&page), page.next, page.missed), (vec!["one", "two\u{fffd}"], 2, false));
        let page = log.read(&LogFilter { after: Some(page.next), limit: 2, ..all() });
        assert_eq!((texts(&page), page.next), (vec!["three"], 3));
        assert_eq!(of(LogFilter { after: Some(3), ..all() }), "");
        assert_eq!(of(LogFilter { after: Some(77), ..all() }), "one two\u{fffd} three", "of before a restart");
    }

    #[test]
    fn debug_lines_are_kept_while_somebody_asks_and_no_longer() {
        let log = TenantLog::default();
        assert_eq!(log.level_number(), LineLevel::Info as u32);
        log.keep(&line(LineLevel::Debug, "a", 1, b"nobody"));
        log.keep_debug_lines();
        assert_eq!(log.level_number(), LineLevel::Debug as u32);
        log.keep(&line(LineLevel::Debug, "a", 1, b"somebody"));
        assert_eq!(texts(&log.read(&all())), ["somebody"]);
        log.debug_until_ns.store(1, Relaxed);
        log.keep(&line(LineLevel::Debug, "a", 1, b"late"));
        assert_eq!((log.read(&all()).lines.len(), log.level_number()), (1, LineLevel::Info as u32));
    }

    #[test]
    fn a_flood_of_long_lines_takes_bounded_memory_and_is_counted() {
        let log = TenantLog::default();
        let text = vec![b'x'; 3 * LOG_TEXT_BYTES];
        let many = 3 * LOG_LINES_BURST;
        for call in 0..many {
            log.keep(&NewLogLine { call, text: &text, ..line(LineLevel::Info, "a", 0, b"") });
        }
        let page = log.read(&all());
        let bytes: usize = page.lines.iter().map(entry_bytes).sum();
        assert!(bytes <= LOG_BYTES && bytes > LOG_BYTES / 2, "{bytes}");
        assert!(page.lines.iter().all(|line| line.text.len() == LOG_TEXT_BYTES));
        assert!(log.left_out() > 0 && log.left_out() + page.next == many, "{} and {}", log.left_out(), page.next);
        assert!(log.read(&LogFilter { after: Some(1), ..all() }).missed);
        log.keep_surely(&line(LineLevel::Error, "a", 7, b"killed"));
        assert_eq!(texts(&log.read(&LogFilter { limit: 1, ..all() })), ["killed"], "why a flood ended is known");
    }
}
