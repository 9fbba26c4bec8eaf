//! What the borrow checker looked at, read back into a structure.
//!
//! `-Zdump-mir=renumber` writes each function's intermediate form as the borrow checker gets it. There, a place is the
//! way to it from one local (boxes and references are steps on the way, never pointers of the compiler's own), so a
//! place has one name. `&fake` borrows and `FakeRead` say what guards and indexes must leave alone; what can only
//! happen in the borrow checker's eyes is an imaginary edge. Futures are as they were written, before they become state
//! machines.
//!
//! It is a text for people, so the reader is strict: whatever it does not know, or is too deep or too large, is
//! refused.

mod block;
mod place;
mod rvalue;
mod text;

use std::collections::HashMap;

pub(super) use place::{MirPlace, PlaceProjection};
pub(super) use text::{is_head, without_comment};

/// What the reader does not know, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownMir(pub(super) String);

impl UnknownMir {
    /// Bytes of the text that are shown.
    const SHOWN: usize = 80;

    fn of(text: &str) -> UnknownMir {
        UnknownMir(text.chars().take(UnknownMir::SHOWN).collect())
    }
}

/// What a statement has to do with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceAccess {
    /// Its value is read.
    Copied,
    /// Its value is taken away.
    Moved,
    /// It is set.
    Assigned,
    /// It is dropped.
    Dropped,
    /// It is borrowed to be looked at.
    SharedBorrow,
    /// It is borrowed, or its address is taken, to be changed.
    MutBorrow,
    /// A borrow that only says what must not change before `FakeRead` names its result.
    FakeBorrow,
    /// A pointer that is made only to read a length.
    LengthPointer,
    /// Its discriminant is read.
    Discriminant,
    /// Its length is read.
    Length,
    /// Here ends what a `Fake` borrow covers: this place is its result.
    FakeRead,
    /// It is named: in a pattern, or by its type.
    Mentioned,
    /// Memory for it begins to exist.
    StorageLive,
    /// It ends to exist.
    StorageDead,
}

/// A statement, or what ends a block.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MirStatement {
    /// In the order in which they happen.
    pub(super) accesses: Vec<(PlaceAccess, MirPlace)>,
    /// Where it comes from: `src/lib.rs:1:2: 3:4`.
    pub(super) from: String,
}

/// How one block is left for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MirEdge {
    Real,
    /// The borrow checker takes it for possible, though it never happens.
    Imaginary,
}

/// Statements in a row.
#[derive(Clone, Debug, Default)]
pub(super) struct BasicBlock {
    /// What happens after a panic: an extension that panics is ended instead.
    pub(super) cleanup: bool,
    pub(super) statements: Vec<MirStatement>,
    /// Blocks that follow, but for those of cleanup.
    pub(super) next: Vec<(MirEdge, usize)>,
    /// It ends in a call that does not return.
    pub(super) diverges: bool,
    /// It ends in a point where a future rests.
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

/// Locals of one body, and its blocks. Reaching either is a refusal.
const MAX_LOCALS: usize = 200_000;
const MAX_BLOCKS: usize = 100_000;

impl MirBody {
    /// Reads what the compiler wrote of one body.
    pub(super) fn read(text: &str) -> Result<MirBody, UnknownMir> {
        let mut lines = text.lines();
        let mut body = MirBody { head: String::new(), locals: HashMap::new(), blocks: Vec::new() };
        body.read_head(&mut lines)?;
        body.read_inside(&mut lines)?;
        // What follows are the constants that it names.
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
        // Whether a line stands in a block, and how many scopes are open.
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
                ended = block::statement(line, block, &self.locals)?;
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
                return Err(UnknownMir("a function of this size".to_owned()));
            }
        }
        Err(UnknownMir("an end that is missing".to_owned()))
    }

    /// Every block must be there. A call whose one way out is cleanup does not return.
    fn check(mut self) -> Result<MirBody, UnknownMir> {
        if self.blocks.is_empty() {
            return Err(UnknownMir("no blocks".to_owned()));
        }
        let cleanup: Vec<bool> = self.blocks.iter().map(|block| block.cleanup).collect();
        for block in &mut self.blocks {
            for (_, next) in &block.next {
                if *next >= cleanup.len() {
                    return Err(UnknownMir(format!("bb{next}, which is not there")));
                }
            }
            block.next.retain(|(_, next)| !cleanup.get(*next).copied().unwrap_or(false));
        }
        Ok(self)
    }
}
