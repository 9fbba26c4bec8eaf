//! Lines for the tenant's log: `error!`, `warn!`, `info!` and `debug!`.

use core::fmt::{Arguments, Write as _};

use crate::abi::LOG_LINE_BYTES;
use crate::running;

/// How much a line of the tenant's log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum LogLevel {
    /// Something went wrong.
    Error = 1,
    /// Something may go wrong.
    Warn = 2,
    /// Something happened.
    Info = 3,
    /// Kept only while a reader asks for it.
    Debug = 4,
}

impl LogLevel {
    /// All levels, the most severe first.
    pub const ALL: [LogLevel; 4] = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];

    /// Its name, as `sandstorm ext logs` prints it.
    ///
    /// ```
    /// use sandstorm_api::logs::LogLevel;
    /// assert_eq!(LogLevel::Warn.name(), "warn");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

/// Returns whether a line of this level is kept: two loads and a comparison. What the macros ask before they format.
///
/// ```
/// use sandstorm_api::logs::{LogLevel, is_kept};
/// # fn summary() -> String { String::new() }
/// # fn example() {
/// if is_kept(LogLevel::Debug) {
///     sandstorm_api::debug!("{}", summary());
/// }
/// # }
/// ```
#[doc(hidden)]
#[inline]
pub fn is_kept(level: LogLevel) -> bool {
    level as u32 <= running::log_level()
}

/// Formats a line, on the stack, and hands it to the server.
///
/// ```
/// use sandstorm_api::logs::{LogLevel, write_line};
/// # fn example(level: LogLevel) {
/// write_line(level, format_args!("{} orders", 3)); // as `info!("{} orders", 3)`, of any level
/// # }
/// ```
#[doc(hidden)]
#[cold]
#[inline(never)]
pub fn write_line(level: LogLevel, text: Arguments<'_>) {
    let mut line = LogText { bytes: [0; LOG_LINE_BYTES], len: 0 };
    let _cut_when_full = line.write_fmt(text);
    running::log_line(level as u32, &line.bytes[..line.len]);
}

/// A text on the stack, cut where it is full, between two characters.
struct LogText {
    bytes: [u8; LOG_LINE_BYTES],
    len: usize,
}

impl core::fmt::Write for LogText {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let mut take = text.len().min(LOG_LINE_BYTES - self.len);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        if take == text.len() { Ok(()) } else { Err(core::fmt::Error) }
    }
}

/// Writes a line to the tenant's log with this level.
#[doc(hidden)]
#[macro_export]
macro_rules! log_line {
    ($level:ident, $($text:tt)+) => {
        if $crate::logs::is_kept($crate::logs::LogLevel::$level) {
            $crate::logs::write_line($crate::logs::LogLevel::$level, ::core::format_args!($($text)+));
        }
    };
}

/// Writes a line to the tenant's log: something went wrong. Arguments are as for `format!`.
///
/// `sandstorm ext logs` shows it, with the extension's name and version and the call's number; the tenant alone may
/// read it, unless the operator's policy says otherwise. Nothing is formatted, and no argument is looked at, if the
/// line is not kept. A line is cut at 1,024 bytes; of a tenant that writes too many, some are left out and counted.
///
/// ```
/// use sandstorm_api::prelude::*;
/// use sandstorm_api::testing::TestStore;
///
/// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     info!("{} bytes of arguments", args.len());
///     if args.is_empty() {
///         error!("nothing to do");
///     }
///     db.reply(args)
/// }
///
/// let mut store = TestStore::new();
/// store.invoke(run, b"").unwrap();
/// assert_eq!(store.log(), ["info: 0 bytes of arguments", "error: nothing to do"]);
/// ```
#[macro_export]
macro_rules! error {
    ($($text:tt)+) => { $crate::log_line!(Error, $($text)+) };
}

/// Writes a line to the tenant's log: something may go wrong. As [`error!`](crate::error!).
///
/// ```
/// # use sandstorm_api::prelude::*;
/// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     let stock: u64 = core::str::from_utf8(args)?.parse()?;
///     if stock < 10 {
///         warn!("only {stock} left");
///     }
///     Ok(())
/// }
/// # let mut store = sandstorm_api::testing::TestStore::new();
/// # store.invoke(run, b"3").unwrap();
/// # assert_eq!(store.log(), ["warn: only 3 left"]);
/// ```
#[macro_export]
macro_rules! warn {
    ($($text:tt)+) => { $crate::log_line!(Warn, $($text)+) };
}

/// Writes a line to the tenant's log: something happened. As [`error!`](crate::error!).
///
/// ```
/// # use sandstorm_api::prelude::*;
/// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     info!("called with {:?}", String::from_utf8_lossy(args));
///     Ok(())
/// }
/// # let mut store = sandstorm_api::testing::TestStore::new();
/// # store.invoke(run, b"x").unwrap();
/// # assert_eq!(store.log(), ["info: called with \"x\""]);
/// ```
#[macro_export]
macro_rules! info {
    ($($text:tt)+) => { $crate::log_line!(Info, $($text)+) };
}

/// Writes a line to the tenant's log while a reader asks for such lines (`sandstorm ext logs --level debug --follow`).
/// As [`error!`](crate::error!).
///
/// ```
/// # use sandstorm_api::prelude::*;
/// # use sandstorm_api::LogLevel;
/// async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
///     for (index, byte) in args.iter().enumerate() {
///         debug!("byte {index} is {byte}");
///     }
///     Ok(())
/// }
/// # let mut store = sandstorm_api::testing::TestStore::new();
/// # store.invoke(run, b"x").unwrap();
/// # assert!(store.log().is_empty());
/// # store.set_log_level(Some(LogLevel::Debug)).invoke(run, b"x").unwrap();
/// # assert_eq!(store.log(), ["debug: byte 0 is 120"]);
/// ```
#[macro_export]
macro_rules! debug {
    ($($text:tt)+) => { $crate::log_line!(Debug, $($text)+) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_between_two_characters() {
        let mut line = LogText { bytes: [0; LOG_LINE_BYTES], len: 0 };
        let short = LOG_LINE_BYTES - 1;
        assert!(write!(line, "{:short$}\u{e4}", "").is_err());
        assert_eq!(line.len, short);
        assert!(core::str::from_utf8(&line.bytes[..line.len]).is_ok());
    }
}
