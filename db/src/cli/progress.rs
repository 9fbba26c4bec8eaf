//! A line on a person's terminal that tells how far a long command is.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two looks of the line.
const INTERVAL: Duration = Duration::from_millis(500);

/// The line; nothing is shown where standard error is no terminal.
pub(super) struct ProgressLine {
    shown: Instant,
    is_terminal: bool,
    is_dirty: bool,
}

impl ProgressLine {
    pub(super) fn new() -> ProgressLine {
        ProgressLine { shown: Instant::now(), is_terminal: std::io::stderr().is_terminal(), is_dirty: false }
    }

    /// Shows the text if it is time.
    pub(super) fn tick(&mut self, text: impl FnOnce() -> String) {
        if !self.is_terminal || self.shown.elapsed() < INTERVAL {
            return;
        }
        self.shown = Instant::now();
        self.is_dirty = true;
        // There is nowhere to report that standard error takes nothing.
        let _written = write!(std::io::stderr(), "\r\x1b[K{}", sandstorm_terminal::escape_one_line(&text()));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_dirty {
            let _written = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
