//! An expression as steps of a machine (Pike's).

use alloc::vec;
use alloc::vec::Vec;

use super::REGEX_STEPS;
use super::parser::{Assertion, CharSet, Expression, Node};
use crate::Error;

/// A step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Takes a character of the set.
    Take(CharSet),
    /// Goes on if it holds.
    Assert(Assertion),
    /// Goes on at both, at the first rather.
    Split(usize, usize),
    /// Goes on there.
    Jump(usize),
    /// Notes the place in the text.
    Note(usize),
    /// A match.
    Found,
}

/// The steps of an expression; it begins with the first.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// Its groups, the whole among them.
    pub(super) groups: usize,
}

/// Makes steps of an expression.
pub(super) fn compile(expression: &Expression) -> Result<Program, Error> {
    let mut compiler = Compiler { steps: vec![Step::Note(0)] };
    compiler.node(&expression.root)?;
    compiler.add(Step::Note(1))?;
    compiler.add(Step::Found)?;
    Ok(Program { steps: compiler.steps, groups: expression.groups })
}

struct Compiler {
    steps: Vec<Step>,
}

/// Returns whether a part may take no character.
fn may_be_empty(node: &Node) -> bool {
    match node {
        Node::Empty | Node::Assert(_) => true,
        Node::Set(_) => false,
        Node::Sequence(parts) => parts.iter().all(may_be_empty),
        Node::Either(ways) => ways.iter().any(may_be_empty),
        Node::Repeat { node, least, most, .. } => *least == 0 || *most == Some(0) || may_be_empty(node),
        Node::Group(_, node) => may_be_empty(node),
    }
}

impl Compiler {
    fn add(&mut self, step: Step) -> Result<usize, Error> {
        if self.steps.len() == REGEX_STEPS {
            return Err(Error::invalid("regular expression: it is longer than 2,048 steps, repetitions written out"));
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    /// Adds a fork whose ways are set later.
    fn fork(&mut self) -> Result<usize, Error> {
        self.add(Step::Split(0, 0))
    }

    /// Sets the ways of a fork: into a repetition, or past it.
    fn set_fork(&mut self, at: usize, into: usize, past: usize, greedy: bool) {
        self.steps[at] = if greedy { Step::Split(into, past) } else { Step::Split(past, into) };
    }

    fn node(&mut self, node: &Node) -> Result<(), Error> {
        match node {
            Node::Empty => {}
            Node::Set(set) => {
                self.add(Step::Take(set.clone()))?;
            }
            Node::Assert(what) => {
                self.add(Step::Assert(*what))?;
            }
            Node::Sequence(parts) => {
                for part in parts {
                    self.node(part)?;
                }
            }
            Node::Either(ways) => self.either(ways)?,
            Node::Repeat { node, least, most, greedy } => self.repeat(node, *least, *most, *greedy)?,
            Node::Group(number, node) => {
                self.add(Step::Note(2 * number))?;
                self.node(node)?;
                self.add(Step::Note(2 * number + 1))?;
            }
        }
        Ok(())
    }

    fn either(&mut self, ways: &[Node]) -> Result<(), Error> {
        let mut ends = vec![];
        for (at, way) in ways.iter().enumerate() {
            if at + 1 == ways.len() {
                self.node(way)?;
                break;
            }
            let fork = self.fork()?;
            self.node(way)?;
            ends.push(self.add(Step::Jump(0))?);
            self.steps[fork] = Step::Split(fork + 1, self.steps.len());
        }
        for end in ends {
            self.steps[end] = Step::Jump(self.steps.len());
        }
        Ok(())
    }

    fn repeat(&mut self, node: &Node, least: usize, most: Option<usize>, greedy: bool) -> Result<(), Error> {
        let Some(most) = most else { return self.repeat_without_end(node, least, greedy) };
        for _ in 0..least {
            self.node(node)?;
        }
        // Each one more is inside of the one before: `(a(a)?)?`.
        let mut forks = vec![];
        for _ in least..most {
            forks.push(self.fork()?);
            self.node(node)?;
        }
        let past = self.steps.len();
        for fork in forks {
            self.set_fork(fork, fork + 1, past, greedy);
        }
        Ok(())
    }

    fn repeat_without_end(&mut self, node: &Node, least: usize, greedy: bool) -> Result<(), Error> {
        for _ in 1..least {
            self.node(node)?;
        }
        if least == 0 && !may_be_empty(node) {
            let fork = self.fork()?;
            self.node(node)?;
            self.add(Step::Jump(fork))?;
            self.set_fork(fork, fork + 1, self.steps.len(), greedy);
            return Ok(());
        }
        // `a+`, or `(a+)?` where `a` may be empty: an empty turn does not end the loop before its other ways were
        // tried.
        let before = if least == 0 { Some(self.fork()?) } else { None };
        let first = self.steps.len();
        self.node(node)?;
        let fork = self.fork()?;
        let past = self.steps.len();
        self.set_fork(fork, first, past, greedy);
        if let Some(before) = before {
            self.set_fork(before, first, past, greedy);
        }
        Ok(())
    }
}
