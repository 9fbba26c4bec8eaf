//! Parses the borrow checker's input back into a structure.
//!
//! `-Zdump-mir=renumber` writes each function's intermediate form as the borrow checker gets it. There a place is the
//! path to it from one local, so a place has one name. Boxes and references are steps on that path, never pointers of
//! the compiler's own. `&fake` borrows and `FakeRead` say what guards and indexes must leave alone; an imaginary edge
//! marks what only the borrow checker considers possible. Futures are as they were written, before they become state
//! machines.
//!
//! The text is meant for people, so the parser is strict: it refuses whatever it does not know, and whatever is too
//! deep or too large.

mod block;
mod place;
mod rvalue;
mod text;

use std::collections::HashMap;

pub(super) use place::{MirPlace, PlaceProjection};
pub(super) use text::{is_head, without_comment};

/// What cannot be followed to its end, and so is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownMir {
    /// The text that the parser does not know, as written, or what there is too much of.
    pub(super) text: String,
    /// The source location of its statement, `src/lib.rs:1:2: 3:4`; empty if there is none.
    pub(super) from: String,
}

impl UnknownMir {
    /// Most bytes of the text that are shown.
    const SHOWN: usize = 80;

    pub(super) fn saying(text: &str) -> UnknownMir {
        UnknownMir { text: text.to_owned(), from: String::new() }
    }

    fn of(text: &str) -> UnknownMir {
        UnknownMir { text: text.chars().take(UnknownMir::SHOWN).collect(), from: String::new() }
    }

    /// The same, in the statement of this line.
    fn in_line(self, line: &str) -> UnknownMir {
        let from = line.rsplit_once(" at ").map(|(_, from)| from.to_owned()).unwrap_or_default();
        UnknownMir { from, ..self }
    }
}

/// How a statement accesses a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceAccess {
    /// Its value is read.
    Copied,
    /// Its value is moved out.
    Moved,
    /// It is set.
    Assigned,
    /// It is dropped.
    Dropped,
    /// It is borrowed shared.
    SharedBorrow,
    /// It is borrowed mutably, or its address is taken for writing.
    MutBorrow,
    /// A borrow that only says what must not change until `FakeRead` names its result.
    FakeBorrow,
    /// A pointer that only serves to read a length.
    LengthPointer,
    /// Its discriminant is read.
    Discriminant,
    /// Its length is read.
    Length,
    /// The end of a `Fake` borrow, whose result this place is.
    FakeRead,
    /// It is named: in a pattern, or by its type.
    Mentioned,
    /// Its storage begins.
    StorageLive,
    /// Its storage ends.
    StorageDead,
}

impl PlaceAccess {
    /// Returns whether it may change the place. Storage that begins or ends is the borrow checker's business: it tracks
    /// whole locals rightly, and no rule here depends on it.
    pub(super) fn changes(self) -> bool {
        match self {
            PlaceAccess::Assigned | PlaceAccess::MutBorrow | PlaceAccess::Moved | PlaceAccess::Dropped => true,
            PlaceAccess::Copied
            | PlaceAccess::SharedBorrow
            | PlaceAccess::FakeBorrow
            | PlaceAccess::LengthPointer
            | PlaceAccess::Discriminant
            | PlaceAccess::Length
            | PlaceAccess::FakeRead
            | PlaceAccess::Mentioned
            | PlaceAccess::StorageLive
            | PlaceAccess::StorageDead => false,
        }
    }
}

/// A statement, or a block's terminator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MirStatement {
    /// In execution order.
    pub(super) accesses: Vec<(PlaceAccess, MirPlace)>,
    /// Its source location: `src/lib.rs:1:2: 3:4`.
    pub(super) from: String,
}

/// The kind of a jump from one block to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MirEdge {
    Real,
    /// An edge that the borrow checker assumes, though it is never taken.
    Imaginary,
}

/// A sequence of statements.
#[derive(Clone, Debug, Default)]
pub(super) struct BasicBlock {
    /// Whether it runs after a panic: an extension that panics is ended instead.
    pub(super) cleanup: bool,
    pub(super) statements: Vec<MirStatement>,
    /// Successor blocks, except those of cleanup.
    pub(super) next: Vec<(MirEdge, usize)>,
    /// It ends in a call that does not return.
    pub(super) diverges: bool,
    /// It ends in a suspension point of a future.
    pub(super) yields: bool,
}

/// One function, closure, future or constant.
#[derive(Debug)]
pub(super) struct MirBody {
    /// Its first line.
    head: String,
    /// Types of its locals.
    locals: HashMap<u32, String>,
    pub(super) blocks: Vec<BasicBlock>,
}

/// Most locals of one body, and most blocks. Reaching either is a refusal.
const MAX_LOCALS: usize = 200_000;
const MAX_BLOCKS: usize = 100_000;

impl MirBody {
    /// Parses the compiler's dump of one body.
    pub(super) fn read(text: &str) -> Result<MirBody, UnknownMir> {
        let mut lines = text.lines();
        let mut body = MirBody { head: String::new(), locals: HashMap::new(), blocks: Vec::new() };
        body.read_head(&mut lines)?;
        body.read_inside(&mut lines)?;
        // The constants that the body names come after it.
        match lines.find(|line| ["fn ", "const ", "static ", "    bb"].iter().any(|start| line.starts_with(start))) {
            Some(line) => Err(UnknownMir::of(line)),
            None => body.check(),
        }
    }

    fn read_head<'a>(&mut self, lines: &mut impl Iterator<Item = &'a str>) -> Result<(), UnknownMir> {
        for line in lines {
            let known = line.is_empty() || line.starts_with("//") || line.starts_with('|');
            if self.head.is_empty() && known {
                continue;
            }
            // `fn f() -> u8 {`, `const X: u8 = {`, `f::{constant#0}: usize = {`.
            if self.head.is_empty() && !is_head(line) {
                return Err(UnknownMir::of(line));
            }
            self.head.push_str(line);
            if line.ends_with(" {") {
                return Ok(());
            }
        }
        Err(UnknownMir::of(&self.head))
    }

    fn read_inside<'a>(&mut self, lines: &mut impl Iterator<Item = &'a str>) -> Result<(), UnknownMir> {
        // Whether the line is inside a block, and the number of open scopes.
        let (mut inside, mut ended, mut scopes) = (false, false, 0_usize);
        for whole in lines {
            let line = whole.trim_start();
            if whole == "}" {
                return if inside || scopes > 0 { Err(UnknownMir::of(whole)) } else { Ok(()) };
            }
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            if line == "}" {
                match (inside, scopes) {
                    (true, _) if ended => inside = false,
                    (false, 1..) => scopes -= 1,
                    _ => return Err(UnknownMir::of(whole)),
                }
            } else if inside {
                if ended {
                    return Err(UnknownMir::of(line));
                }
                let block = self.blocks.last_mut().ok_or_else(|| UnknownMir::of(line))?;
                ended = block::statement(line, block, &self.locals).map_err(|unknown| unknown.in_line(line))?;
            } else if line.starts_with("bb") {
                let cleanup = block::start(line, self.blocks.len())?;
                self.blocks.push(BasicBlock { cleanup, ..BasicBlock::default() });
                (inside, ended) = (true, false);
            } else if let Some(declared) = line.strip_prefix("let ") {
                let (local, kind) = block::declaration(declared)?;
                if self.locals.insert(local, kind.to_owned()).is_some() {
                    return Err(UnknownMir::of(line));
                }
            } else if line.starts_with("scope ") && line.ends_with('{') {
                scopes += 1;
            } else if !line.starts_with("debug ") {
                return Err(UnknownMir::of(line));
            }
            if self.locals.len() > MAX_LOCALS || self.blocks.len() > MAX_BLOCKS {
                return Err(UnknownMir::saying("a function of this size"));
            }
        }
        Err(UnknownMir::saying("an end that is missing"))
    }

    /// Checks that every block exists. A call whose only successor is cleanup does not return.
    fn check(mut self) -> Result<MirBody, UnknownMir> {
        if self.blocks.is_empty() {
            return Err(UnknownMir::saying("no blocks"));
        }
        let cleanup: Vec<bool> = self.blocks.iter().map(|block| block.cleanup).collect();
        for block in &mut self.blocks {
            for (_, next) in &block.next {
                if *next >= cleanup.len() {
                    return Err(UnknownMir::saying(&format!("bb{next}, which is not there")));
                }
            }
            block.next.retain(|(_, next)| !cleanup.get(*next).copied().unwrap_or(false));
        }
        Ok(self)
    }
}
