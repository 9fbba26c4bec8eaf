//! An expression as a tree.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::iter::Peekable;
use core::str::CharIndices;

use super::REGEX_DEPTH;
use crate::Error;

/// A part of an expression.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Nothing.
    Empty,
    /// One character of these.
    Set(CharSet),
    /// Something about the place between two characters.
    Assert(Assertion),
    /// One after the other.
    Sequence(Vec<Node>),
    /// One of these, the first ones rather.
    Either(Vec<Node>),
    /// So many times, `None` for any number; as many as possible, or as few.
    Repeat { node: Box<Node>, least: usize, most: Option<usize>, greedy: bool },
    /// A group of this number.
    Group(usize, Box<Node>),
}

/// What can be said of the place between two characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Assertion {
    Begin,
    End,
    WordEdge,
    NoWordEdge,
}

/// A set of characters: ranges, or all others.
#[derive(Clone, Debug, Default)]
pub(super) struct CharSet {
    ranges: Vec<(char, char)>,
    negated: bool,
}

impl CharSet {
    fn of(ranges: &[(char, char)], negated: bool) -> CharSet {
        CharSet { ranges: ranges.to_vec(), negated }
    }

    pub(super) fn contains(&self, c: char) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != self.negated
    }

    /// Adds the other case of each letter of ASCII.
    fn ignore_case(&mut self) {
        let letters: Vec<char> = ('a'..='z').chain('A'..='Z').filter(|c| self.is_listed(*c)).collect();
        for letter in letters {
            let other =
                if letter.is_ascii_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
            self.ranges.push((other, other));
        }
    }

    fn is_listed(&self, c: char) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&c))
    }
}

const DIGITS: &[(char, char)] = &[('0', '9')];
const WORD: &[(char, char)] = &[('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')];
const SPACE: &[(char, char)] = &[(' ', ' '), ('\t', '\r')];

/// A parsed expression.
pub(super) struct Expression {
    pub(super) root: Node,
    /// Its groups, the whole among them.
    pub(super) groups: usize,
}

/// Parses a whole expression.
pub(super) fn parse(text: &str) -> Result<Expression, Error> {
    let (text, ignore_case) = match text.strip_prefix("(?i)") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let mut parser = RegexParser { chars: text.char_indices().peekable(), len: text.len(), groups: 1, ignore_case };
    let root = parser.either(0)?;
    match parser.chars.peek() {
        None => Ok(Expression { root, groups: parser.groups }),
        Some(_) => Err(parser.error("`)` without `(`")),
    }
}

struct RegexParser<'t> {
    chars: Peekable<CharIndices<'t>>,
    len: usize,
    groups: usize,
    ignore_case: bool,
}

impl RegexParser<'_> {
    fn error(&mut self, text: &str) -> Error {
        let at = self.chars.peek().map_or(self.len, |(at, _)| *at);
        Error::invalid(format!("regular expression: {text} (at byte {at})"))
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn next(&mut self) -> Option<char> {
        self.chars.next().map(|(_, c)| c)
    }

    fn skip(&mut self, c: char) -> bool {
        self.chars.next_if(|(_, next)| *next == c).is_some()
    }

    fn set(&self, mut set: CharSet) -> Node {
        if self.ignore_case {
            set.ignore_case();
        }
        Node::Set(set)
    }

    fn either(&mut self, depth: usize) -> Result<Node, Error> {
        let mut ways = vec![self.sequence(depth)?];
        while self.skip('|') {
            ways.push(self.sequence(depth)?);
        }
        Ok(if ways.len() == 1 { ways.remove(0) } else { Node::Either(ways) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, Error> {
        let mut parts = vec![];
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let part = self.atom(depth)?;
            parts.push(self.repeated(part)?);
        }
        Ok(match parts.len() {
            0 => Node::Empty,
            1 => parts.remove(0),
            _ => Node::Sequence(parts),
        })
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, Error> {
        loop {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.next();
                    let (least, most) = self.bounds()?;
                    if self.peek() != Some('}') {
                        return Err(self.error("a repetition is `{2}`, `{2,}` or `{2,5}`"));
                    }
                    (least, most)
                }
                _ => return Ok(node),
            };
            if matches!(node, Node::Assert(_)) {
                return Err(self.error("there is nothing to repeat"));
            }
            self.next();
            let greedy = !self.skip('?');
            node = Node::Repeat { node: Box::new(node), least, most, greedy };
        }
    }

    fn bounds(&mut self) -> Result<(usize, Option<usize>), Error> {
        let least = self.number()?;
        let most = match (self.skip(','), self.peek()) {
            (false, _) => Some(least),
            (true, Some('}')) => None,
            (true, _) => Some(self.number()?),
        };
        match most {
            Some(most) if most < least => Err(self.error("the most of a repetition is less than its least")),
            most => Ok((least, most)),
        }
    }

    fn number(&mut self) -> Result<usize, Error> {
        let mut number: Option<usize> = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            self.next();
            number = Some(number.unwrap_or(0) * 10 + digit as usize).filter(|number| *number <= 1_000);
            if number.is_none() {
                return Err(self.error("a part is repeated at most 1,000 times"));
            }
        }
        number.ok_or_else(|| self.error("a number is missing"))
    }

    fn atom(&mut self, depth: usize) -> Result<Node, Error> {
        match self.peek() {
            Some('(') => self.group(depth),
            Some('[') => self.class(),
            Some('*' | '+' | '?' | '{') => Err(self.error("there is nothing to repeat")),
            Some('\\') => {
                self.next();
                self.escape()
            }
            Some('.') => {
                self.next();
                Ok(Node::Set(CharSet::of(&[('\n', '\n')], true)))
            }
            Some('^') => {
                self.next();
                Ok(Node::Assert(Assertion::Begin))
            }
            Some('$') => {
                self.next();
                Ok(Node::Assert(Assertion::End))
            }
            Some(c) => {
                self.next();
                Ok(self.set(CharSet::of(&[(c, c)], false)))
            }
            None => Ok(Node::Empty),
        }
    }

    fn group(&mut self, depth: usize) -> Result<Node, Error> {
        if depth == REGEX_DEPTH {
            return Err(self.error("groups are nested deeper than 32"));
        }
        self.next();
        let number = if self.skip('?') {
            if !self.skip(':') {
                return Err(self.error("behind `(?` comes `:`; `(?i)` stands at the beginning"));
            }
            None
        } else {
            self.groups += 1;
            Some(self.groups - 1)
        };
        let inner = self.either(depth + 1)?;
        if !self.skip(')') {
            return Err(self.error("`(` without `)`"));
        }
        Ok(match number {
            Some(number) => Node::Group(number, Box::new(inner)),
            None => inner,
        })
    }

    fn escape(&mut self) -> Result<Node, Error> {
        match self.peek() {
            Some('b') => {
                self.next();
                Ok(Node::Assert(Assertion::WordEdge))
            }
            Some('B') => {
                self.next();
                Ok(Node::Assert(Assertion::NoWordEdge))
            }
            _ => {
                let set = self.escaped_set()?;
                Ok(self.set(set))
            }
        }
    }

    /// What is behind a `\`, as a set.
    fn escaped_set(&mut self) -> Result<CharSet, Error> {
        let c = self.peek().ok_or_else(|| self.error("something follows `\\`"))?;
        let single = |c| CharSet::of(&[(c, c)], false);
        let set = match c {
            'd' => CharSet::of(DIGITS, false),
            'D' => CharSet::of(DIGITS, true),
            'w' => CharSet::of(WORD, false),
            'W' => CharSet::of(WORD, true),
            's' => CharSet::of(SPACE, false),
            'S' => CharSet::of(SPACE, true),
            'n' => single('\n'),
            'r' => single('\r'),
            't' => single('\t'),
            c if c.is_ascii_alphanumeric() => return Err(self.error(&format!("`\\{c}` is not known"))),
            c => single(c),
        };
        self.next();
        Ok(set)
    }

    fn class(&mut self) -> Result<Node, Error> {
        self.next();
        let mut set = CharSet { ranges: vec![], negated: self.skip('^') };
        let mut is_first = true;
        loop {
            let from = match self.peek() {
                None => return Err(self.error("`[` without `]`")),
                Some(']') if !is_first => break,
                Some('[') => return Err(self.error("write `\\[` inside of `[ ]`")),
                _ => self.class_part()?,
            };
            is_first = false;
            let Some(from_char) = single_char(&from) else {
                if from.negated {
                    return Err(self.error("`\\D`, `\\W` and `\\S` do not stand inside of `[ ]`"));
                }
                set.ranges.extend(from.ranges);
                continue;
            };
            let mut to_char = from_char;
            if self.peek() == Some('-') && self.after_next() != Some(']') {
                self.next();
                let to = self.class_part()?;
                to_char = single_char(&to).ok_or_else(|| self.error("a range ends with a character"))?;
            }
            if to_char < from_char {
                return Err(self.error("a range ends before it begins"));
            }
            set.ranges.push((from_char, to_char));
        }
        self.next();
        Ok(self.set(set))
    }

    fn after_next(&mut self) -> Option<char> {
        let mut ahead = self.chars.clone();
        ahead.next();
        ahead.next().map(|(_, c)| c)
    }

    fn class_part(&mut self) -> Result<CharSet, Error> {
        match self.next() {
            Some('\\') => self.escaped_set(),
            Some(c) => Ok(CharSet::of(&[(c, c)], false)),
            None => Err(self.error("`[` without `]`")),
        }
    }
}

fn single_char(set: &CharSet) -> Option<char> {
    match set.ranges[..] {
        [(from, to)] if from == to && !set.negated => Some(from),
        _ => None,
    }
}
