//! The terminal of `sandstorm top`: raw while it is used, and as it was before afterwards. It is a backend of
//! `ratatui`'s, which sends only what has changed.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write};
use std::sync::Mutex;
use std::time::Duration;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::keys::{TerminalKey, keys_of};

/// Another screen than the shell's, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal's settings before, for the end and for a panic.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal in raw mode, until it is dropped.
pub(super) struct RawTerminal;

impl RawTerminal {
    /// Makes the terminal raw.
    ///
    /// # Errors
    /// Input or output is no terminal, or its settings cannot be changed.
    pub(super) fn open() -> io::Result<RawTerminal> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "input or output is no terminal"));
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        if let Ok(mut kept) = BEFORE.lock() {
            *kept = Some(before);
        }
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        let mut out = io::stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(RawTerminal)
    }

    /// The keys that come within a time; none if none does.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn keys(&self, timeout: Duration) -> io::Result<Vec<TerminalKey>> {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            // A changed size of the window is a signal.
            Err(error) if error == rustix::io::Errno::INTR => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        match stdin.lock().read(&mut bytes)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(keys_of(&bytes[..read])),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal as it was.
fn restore() {
    let before = BEFORE.lock().ok().and_then(|mut before| before.take());
    if let Some(before) = before {
        let mut out = io::stdout().lock();
        // A terminal that is gone needs nothing.
        let _gone = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        let _kept = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

/// Sends changed cells to the terminal.
#[derive(Default)]
pub(super) struct TerminalBackend {
    out: String,
}

/// The number of a colour among the terminal's; `None`: its own.
fn colour(colour: Color) -> Option<u8> {
    match colour {
        Color::Red => Some(1),
        Color::Cyan => Some(6),
        Color::DarkGray => Some(8),
        Color::Indexed(number) => Some(number),
        _ => None,
    }
}

/// The sequence that sets a cell's style.
fn style(cell: &Cell) -> String {
    let mut text = "\x1b[0".to_owned();
    for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::UNDERLINED, ";4"), (Modifier::REVERSED, ";7")] {
        if cell.modifier.contains(modifier) {
            text.push_str(code);
        }
    }
    if let Some(number) = colour(cell.fg) {
        // Writing to a String does not fail.
        let _ = write!(text, ";38;5;{number}");
    }
    text.push('m');
    text
}

impl Backend for TerminalBackend {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut next, mut current) = (None, String::new());
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                let _ = write!(self.out, "\x1b[{};{}H", y + 1, x + 1);
            }
            let wanted = style(cell);
            if wanted != current {
                self.out.push_str(&wanted);
                current = wanted;
            }
            self.out.push_str(cell.symbol());
            // Behind a wide character the position is not known.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[?25h");
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.out, "\x1b[{};{}H", y + 1, x + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _region: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stdout())?;
        Ok(Size::new(size.ws_col.max(1), size.ws_row.max(1)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = tcgetwinsize(io::stdout())?;
        let pixels = Size::new(size.ws_xpixel, size.ws_ypixel);
        Ok(WindowSize { columns_rows: Size::new(size.ws_col.max(1), size.ws_row.max(1)), pixels })
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.out.as_bytes())?;
        self.out.clear();
        out.flush()
    }
}
