//! The log of a [`TestStore`].
//!
//! Guarantees: a line's bytes are read only during the call.
#![allow(unsafe_code)]

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::TestStore;
use super::arguments::{slice_argument, test_invocation};
use crate::LogLevel;
use crate::abi::{self, InvocationHeader, LOG_LINE_BYTES};

/// The lines that extensions have written.
pub(super) struct TestLog {
    level: Option<LogLevel>,
    lines: Vec<String>,
}

impl Default for TestLog {
    fn default() -> TestLog {
        TestLog { level: Some(LogLevel::Info), lines: vec![] }
    }
}

impl TestLog {
    /// The number of the least severe lines that are kept.
    pub(super) fn level_number(&self) -> u32 {
        self.level.map_or(0, |level| level as u32)
    }
}

pub(super) unsafe extern "C" fn log_line(inv: *mut InvocationHeader, level: u32, text: *const u8, len: usize) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and a text.
    let (behind, text) = unsafe { (test_invocation(inv), slice_argument(text, len.min(LOG_LINE_BYTES))) };
    let Some(level) = LogLevel::ALL.into_iter().find(|known| *known as u32 == level) else {
        return abi::STATUS_INVALID;
    };
    let log = &mut behind.store.log;
    if level as u32 <= log.level_number() {
        log.lines.push(format!("{}: {}", level.name(), String::from_utf8_lossy(text)));
    }
    abi::STATUS_OK
}

impl TestStore {
    /// The lines that extensions have written to the log, each after its level and a colon, the oldest first. See
    /// [`info!`](crate::info!).
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn run(_: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     info!("{} bytes", args.len());
    ///     debug!("for those who look closely");
    ///     Ok(())
    /// }
    /// let mut store = TestStore::new();
    /// store.invoke(run, b"abc").unwrap();
    /// assert_eq!(store.log(), ["info: 3 bytes"]);
    /// ```
    pub fn log(&self) -> &[String] {
        &self.log.lines
    }

    /// Sets the least severe lines that invocations keep from now on; `None`: no lines. At first it is
    /// [`LogLevel::Info`], as in the server.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// use sandstorm_api::LogLevel;
    /// async fn run(_: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     info!("{} bytes", args.len());
    ///     debug!("for those who look closely");
    ///     Ok(())
    /// }
    /// let mut store = TestStore::new();
    /// store.set_log_level(Some(LogLevel::Debug)).invoke(run, b"").unwrap();
    /// assert_eq!(store.log().len(), 2);
    /// ```
    pub fn set_log_level(&mut self, level: Option<LogLevel>) -> &mut TestStore {
        self.log.level = level;
        self
    }
}
