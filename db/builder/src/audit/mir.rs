//! What the borrow checker looked at, read back into a structure.
//!
//! `-Zdump-mir=renumber` writes each function's intermediate form as the borrow checker gets it. There, a place is the way
//! to it from one local (boxes and references are steps on the way, never pointers of the compiler's own), so a place has one
//! name. `&fake` borrows and `FakeRead` say what guards and indexes must leave alone; what can only happen in the borrow
//! checker's eyes is an imaginary edge. Futures are as they were written, before they become state machines.
//!
//! It is a text for people, so the reader is strict: whatever it does not know, or is too deep or too large, is refused.

mod block;
mod place;
mod rvalue;
mod text;

use std::collections::HashMap;

use super::complete::is_head;

pub(super) use place::{Place, Step};
pub(super) use text::without_comment;

/// What the reader does not know, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown(pub(super) String);

impl Unknown {
    /// Bytes of the text that are shown.
    const SHOWN: usize = 80;

    fn of(text: &str) -> Unknown {
        Unknown(text.chars().take(Unknown::SHOWN).collect())
    }
}

/// What a statement has to do with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Its value is read.
    Copied,
    /// Its value is taken away.
    Moved,
    /// It is set.
    Set,
    /// It is dropped.
    Dropped,
    /// It is borrowed to be looked at.
    Shared,
    /// It is borrowed, or its address is taken, to be changed.
    Changed,
    /// A borrow that only says what must not change before `FakeRead` names its result.
    Fake,
    /// A pointer that is made only to read a length.
    ForLength,
    /// Its discriminant is read.
    Discriminant,
    /// Its length is read.
    Length,
    /// Here ends what a `Fake` borrow covers: this place is its result.
    FakeRead,
    /// It is named: in a pattern, or by its type.
    Mentioned,
    /// Memory for it begins to exist.
    Live,
    /// It ends to exist.
    Dead,
}

/// A statement, or what ends a block.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    /// In the order in which they happen.
    pub(super) accesses: Vec<(Access, Place)>,
    /// Where it comes from: `src/lib.rs:1:2: 3:4`.
    pub(super) from: String,
}

/// How one block is left for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Real,
    /// The borrow checker takes it for possible, though it never happens.
    Imaginary,
}

/// Statements in a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// What happens after a panic: an extension that panics is ended instead.
    pub(super) cleanup: bool,
    pub(super) statements: Vec<Statement>,
    /// Blocks that follow, but for those of cleanup.
    pub(super) next: Vec<(Edge, usize)>,
    /// It ends in a call that does not return.
    pub(super) diverges: bool,
    /// It ends in a point where a future rests.
    pub(super) yields: bool,
}

/// One function, closure, future or constant.
#[derive(Debug)]
pub(super) struct Body {
    /// Its first line.
    head: String,
    /// Types of its locals.
    locals: HashMap<u32, String>,
    pub(super) blocks: Vec<Block>,
}

/// Locals of one body, and its blocks. Reaching either is a refusal.
const LOCALS: usize = 200_000;
const BLOCKS: usize = 100_000;

impl Body {
    /// Reads what the compiler wrote of one body.
    pub(super) fn read(text: &str) -> Result<Body, Unknown> {
        let mut lines = text.lines();
        let mut body = Body { head: String::new(), locals: HashMap::new(), blocks: Vec::new() };
        body.read_head(&mut lines)?;
        body.read_inside(&mut lines)?;
        // What follows are the constants that it names.
        match lines.find(|line| ["fn ", "const ", "static ", "    bb"].iter().any(|start| line.starts_with(start))) {
            Some(line) => Err(Unknown::of(line)),
            None => body.check(),
        }
    }

    fn read_head<'a>(&mut self, lines: &mut impl Iterator<Item = &'a str>) -> Result<(), Unknown> {
        for line in lines {
            let known = line.is_empty() || line.starts_with("//") || line.starts_with('|');
            if self.head.is_empty() && known {
                continue;
            }
            // `fn f() -> u8 {`, `const X: u8 = {`, `f::{constant#0}: usize = {`.
            if self.head.is_empty() && !is_head(line) {
                return Err(Unknown::of(line));
            }
            self.head.push_str(line);
            if line.ends_with(" {") {
                return Ok(());
            }
        }
        Err(Unknown::of(&self.head))
    }

    fn read_inside<'a>(&mut self, lines: &mut impl Iterator<Item = &'a str>) -> Result<(), Unknown> {
        // Whether a line stands in a block, and how many scopes are open.
        let (mut inside, mut ended, mut scopes) = (false, false, 0_usize);
        for whole in lines {
            let line = whole.trim_start();
            if whole == "}" {
                return if inside || scopes > 0 { Err(Unknown::of(whole)) } else { Ok(()) };
            }
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            if line == "}" {
                match (inside, scopes) {
                    (true, _) if ended => inside = false,
                    (false, 1..) => scopes -= 1,
                    _ => return Err(Unknown::of(whole)),
                }
            } else if inside {
                if ended {
                    return Err(Unknown::of(line));
                }
                let block = self.blocks.last_mut().ok_or_else(|| Unknown::of(line))?;
                ended = block::statement(line, block, &self.locals)?;
            } else if line.starts_with("bb") {
                let cleanup = block::start(line, self.blocks.len())?;
                self.blocks.push(Block { cleanup, ..Block::default() });
                (inside, ended) = (true, false);
            } else if let Some(declared) = line.strip_prefix("let ") {
                let (local, kind) = block::declaration(declared)?;
                if self.locals.insert(local, kind.to_owned()).is_some() {
                    return Err(Unknown::of(line));
                }
            } else if line.starts_with("scope ") && line.ends_with('{') {
                scopes += 1;
            } else if !line.starts_with("debug ") {
                return Err(Unknown::of(line));
            }
            if self.locals.len() > LOCALS || self.blocks.len() > BLOCKS {
                return Err(Unknown("a function of this size".to_owned()));
            }
        }
        Err(Unknown("an end that is missing".to_owned()))
    }

    /// Every block must be there. A call whose one way out is cleanup does not return.
    fn check(mut self) -> Result<Body, Unknown> {
        if self.blocks.is_empty() {
            return Err(Unknown("no blocks".to_owned()));
        }
        let cleanup: Vec<bool> = self.blocks.iter().map(|block| block.cleanup).collect();
        for block in &mut self.blocks {
            for (_, next) in &block.next {
                if *next >= cleanup.len() {
                    return Err(Unknown(format!("bb{next}, which is not there")));
                }
            }
            block.next.retain(|(_, next)| !cleanup.get(*next).copied().unwrap_or(false));
        }
        Ok(self)
    }
}
