//! The recent slow commands of a tenant's Redis clients.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::limits::{SLOW_ARG_BYTES, SLOW_ARGS, SLOW_ENTRIES};

/// A shortened command: the beginning of each argument, and of the list of arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandPreview {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl CommandPreview {
    /// Shortens these arguments; a note replaces omitted ones.
    pub fn of(args: &[&[u8]]) -> CommandPreview {
        let mut preview = CommandPreview::default();
        let shown = if args.len() > SLOW_ARGS { SLOW_ARGS - 1 } else { args.len() };
        for arg in &args[..shown] {
            preview.bytes.extend_from_slice(&arg[..arg.len().min(SLOW_ARG_BYTES)]);
            if let Some(more) = arg.len().checked_sub(SLOW_ARG_BYTES + 1) {
                preview.bytes.extend_from_slice(format!("... ({} more bytes)", more + 1).as_bytes());
            }
            preview.ends.push(preview.bytes.len() as u32);
        }
        if shown < args.len() {
            preview.bytes.extend_from_slice(format!("... ({} more arguments)", args.len() - shown).as_bytes());
            preview.ends.push(preview.bytes.len() as u32);
        }
        preview
    }

    /// The arguments.
    #[inline]
    pub fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut from, *end as usize)..*end as usize])
    }
}

/// A slow command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// Grows from entry to entry.
    pub id: u64,
    /// The time of its end, in seconds since the Unix epoch.
    pub at_s: u64,
    /// Its duration, in microseconds.
    pub took_us: u64,
    /// The command.
    pub command: CommandPreview,
    /// The connection's name.
    pub name: Box<[u8]>,
}

/// A tenant's log of slow commands; a new one displaces the oldest.
#[derive(Debug, Default)]
pub struct SlowLog(Mutex<(u64, VecDeque<SlowCommand>)>);

impl SlowLog {
    /// Adds a command. Its lock is taken only for such an insertion or a copy, and slow commands are rare.
    #[inline]
    pub fn note(&self, took_us: u64, command: CommandPreview, name: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = name[..name.len().min(SLOW_ARG_BYTES)].into();
        let (next, entries) = &mut *self.0.lock();
        if entries.len() >= SLOW_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(SlowCommand { id: *next, at_s: now.as_secs(), took_us, command, name });
        *next += 1;
    }

    /// The newest commands first, at most `count`.
    #[inline]
    pub fn recent(&self, count: usize) -> Vec<SlowCommand> {
        self.0.lock().1.iter().rev().take(count).cloned().collect()
    }

    /// The number of entries.
    #[inline]
    pub fn count(&self) -> usize {
        self.0.lock().1.len()
    }

    /// Removes all entries; their numbers are not used again.
    #[inline]
    pub fn clear(&self) {
        self.0.lock().1.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_however_long_and_many_the_commands_are() {
        let log = SlowLog::default();
        let long = vec![b'x'; 1 << 20];
        let args: Vec<&[u8]> = (0..1_000).map(|_| long.as_slice()).collect();
        for took_us in 0..2 * SLOW_ENTRIES as u64 {
            log.note(took_us, CommandPreview::of(&args), &long);
        }
        let entries = log.recent(usize::MAX);
        assert_eq!((entries.len(), log.count()), (SLOW_ENTRIES, SLOW_ENTRIES));
        assert_eq!((entries[0].id, entries[0].took_us), (2 * SLOW_ENTRIES as u64 - 1, 2 * SLOW_ENTRIES as u64 - 1));
        let args: Vec<_> = entries[0].command.args().map(String::from_utf8_lossy).collect();
        assert_eq!(args.len(), SLOW_ARGS);
        assert_eq!(args[0], format!("{}... ({} more bytes)", "x".repeat(SLOW_ARG_BYTES), (1 << 20) - SLOW_ARG_BYTES));
        assert_eq!(args[SLOW_ARGS - 1], format!("... ({} more arguments)", 1_000 - SLOW_ARGS + 1));
        log.clear();
        log.note(1, CommandPreview::of(&[b"GET", b"a"]), b"");
        assert_eq!(log.recent(5).iter().map(|entry| entry.id).collect::<Vec<_>>(), [2 * SLOW_ENTRIES as u64]);
    }
}
