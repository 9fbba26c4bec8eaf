//! Makes new sources from old ones, for the test `mutations` and the fuzz target of the same name. Tokens are swapped,
//! dropped, doubled and replaced; whole items and the contents of brackets are taken from other sources.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use sandstorm_builder::check::check;
use sandstorm_builder::{BuildError, PushedSource, ROOT_FILE, SourceFile};
use sandstorm_net::CodeTier;

/// Time limit of the checker for one source on a busy machine. It takes milliseconds; more than this is a hang.
const HANG: Duration = Duration::from_secs(120);
/// Changes to one source at most.
const CHANGES: usize = 6;

/// Words that may replace any token.
const WORDS: [&str; 28] = [
    "unsafe",
    "static",
    "extern",
    "union",
    "macro_rules",
    "dyn",
    "impl",
    "fn",
    "for",
    "where",
    "Self",
    "self",
    "crate",
    "core",
    "alloc",
    "std",
    "leak",
    "as_ptr",
    "include_str",
    "Peekable",
    "'static",
    "*const",
    "&raw",
    "async",
    "move",
    "T",
    "r#unsafe",
    "\u{212a}",
];

/// Decisions, read from bytes: a fuzzer's, or random ones.
pub(crate) struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices { bytes }
    }

    /// A number below `limit`; 0 when the bytes are used up.
    fn below(&mut self, limit: usize) -> usize {
        let (head, tail) = self.bytes.split_at(self.bytes.len().min(2));
        self.bytes = tail;
        let number = head.iter().fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        if limit == 0 { 0 } else { number % limit }
    }
}

/// A token, or a bracket with its content.
#[derive(Clone)]
enum Node {
    /// The text, and whether the next token touches it.
    Leaf(String, bool),
    Group(Delimiter, Vec<Node>),
}

/// A source as nodes.
#[derive(Clone)]
pub(crate) struct Base(Vec<Node>);

/// Reads all sources below a folder of the repository; files that cannot be tokenised are left out.
pub(crate) fn bases(folder: &Path) -> Vec<Base> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        let mut paths: Vec<_> =
            std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                found.extend(TokenStream::from_str(&text).ok().map(|tokens| Base(nodes(tokens))));
            }
        }
    }
    found
}

fn nodes(tokens: TokenStream) -> Vec<Node> {
    let node = |token| match token {
        TokenTree::Group(group) => Node::Group(group.delimiter(), nodes(group.stream())),
        TokenTree::Punct(punct) => Node::Leaf(punct.as_char().to_string(), punct.spacing() == Spacing::Joint),
        other => Node::Leaf(other.to_string(), false),
    };
    tokens.into_iter().map(node).collect()
}

fn print(nodes: &[Node], out: &mut String) {
    for node in nodes {
        match node {
            Node::Leaf(text, joint) => {
                out.push_str(text);
                if !joint {
                    out.push(' ');
                }
            }
            Node::Group(delimiter, inside) => {
                let (open, close) = match delimiter {
                    Delimiter::Parenthesis => ("(", ") "),
                    Delimiter::Brace => ("{ ", "}\n"),
                    Delimiter::Bracket => ("[", "] "),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                print(inside, out);
                out.push_str(close);
            }
        }
    }
}

/// The content of some bracket, however deep.
fn inside<'n>(nodes: &'n mut Vec<Node>, choices: &mut Choices<'_>) -> &'n mut Vec<Node> {
    let groups: Vec<usize> =
        nodes.iter().enumerate().filter(|(_, node)| matches!(node, Node::Group(..))).map(|(at, _)| at).collect();
    // Four times of five it goes deeper: most of a source is deeply nested.
    if groups.is_empty() || choices.below(5) == 0 {
        return nodes;
    }
    let at = groups[choices.below(groups.len())];
    let Node::Group(_, deeper) = &mut nodes[at] else { unreachable!("only groups were counted") };
    inside(deeper, choices)
}

fn change(nodes: &mut Vec<Node>, donors: &[Base], choices: &mut Choices<'_>) {
    let mut donor = donors[choices.below(donors.len())].clone();
    let kind = choices.below(8);
    let place = if kind < 2 { nodes } else { inside(nodes, choices) };
    let (at, other) = (choices.below(place.len()), choices.below(place.len()));
    match kind {
        // A whole run of the other source's items.
        0 | 1 => {
            let start = choices.below(donor.0.len());
            let run: Vec<Node> = donor.0.into_iter().skip(start).take(1 + choices.below(40)).collect();
            place.extend(run);
        }
        2 if !place.is_empty() => place.swap(at, other),
        3 if !place.is_empty() => drop(place.drain(at..(at + 1 + choices.below(3)).min(place.len()))),
        4 if !place.is_empty() => place.insert(other, place[at].clone()),
        5 => *place = inside(&mut donor.0, choices).clone(),
        6 => place.splice(at..at, inside(&mut donor.0, choices).clone()).for_each(drop),
        _ => {
            let word = Node::Leaf(WORDS[choices.below(WORDS.len())].to_owned(), false);
            if choices.below(2) == 0 || place.is_empty() { place.insert(at, word) } else { place[at] = word }
        }
    }
}

/// Makes one source and has it checked; returns it when it passes.
///
/// # Panics
/// When the checker panics, hangs, or passes something that must never pass.
pub(crate) fn mutant(bases: &[Base], bytes: &[u8]) -> Option<PushedSource> {
    let mut choices = Choices::new(bytes);
    let mut nodes = bases[choices.below(bases.len())].0.clone();
    for _ in 0..=choices.below(CHANGES) {
        change(&mut nodes, bases, &mut choices);
    }
    let mut text = String::new();
    print(&nodes, &mut text);
    let files = vec![SourceFile { path: ROOT_FILE.to_owned(), text }];
    let source = PushedSource::new("name = \"mutant\"\n", files).ok()?;
    let sandboxed = passes(&source, CodeTier::Sandboxed);
    let native = passes(&source, CodeTier::Native);
    assert!(sandboxed || !native, "passed in the native tier alone:\n{}", source.files[0].text);
    native.then_some(source)
}

/// Checks a source by the rules of a tier.
fn passes(source: &PushedSource, tier: CodeTier) -> bool {
    let text = &source.files[0].text;
    let begun = Instant::now();
    let checked = check(source, &[], tier);
    assert!(begun.elapsed() < HANG, "the checker took {:?}:\n{text}", begun.elapsed());
    match checked {
        Ok(()) => {
            never_passed(text, tier);
            true
        }
        Err(BuildError::Refused(found)) => {
            assert!(!found.is_empty(), "refused without a reason");
            false
        }
        Err(other) => panic!("{other}:\n{text}"),
    }
}

/// Checks that a passed source contains no forbidden word in any spelling. Tests of the tenant's own are never
/// compiled.
fn never_passed(text: &str, tier: CodeTier) {
    let tokens = TokenStream::from_str(text).expect("what passed is tokens");
    if text.contains("cfg") {
        return;
    }
    let mut waiting = vec![tokens];
    while let Some(tokens) = waiting.pop() {
        let (mut before, mut two_before) = (String::new(), String::new());
        for token in tokens {
            let word = token.to_string();
            let keyword = matches!(token, TokenTree::Ident(_));
            let native = tier == CodeTier::Native;
            let is_a_use = !matches!(before.as_str(), "fn" | "mod" | "struct") && keyword && before != ".";
            let forbidden = match word.as_str() {
                "unsafe" | "asm" | "global_asm" | "naked_asm" | "include_str" => is_a_use,
                "macro_rules" | "leak" | "as_ptr" => is_a_use && native,
                "static" => keyword && before != "'" && native,
                _ => false,
            };
            let called = native && before == "." && matches!(word.as_str(), "leak" | "as_ptr");
            assert!(!called && (!forbidden || is_a_name(&word)), "`{before} {word}` passed in:\n{text}");
            // An attribute contains words, not code: `forbid(static)` names a lint that does not exist.
            let attribute = before == "#" || (before == "!" && two_before == "#");
            if let TokenTree::Group(group) = &token
                && !attribute
            {
                waiting.push(group.stream());
            }
            two_before = std::mem::replace(&mut before, word);
        }
    }
}

/// Returns whether a word is harmless as a name: a variable may be called `leak`.
fn is_a_name(word: &str) -> bool {
    !matches!(word, "unsafe" | "static")
}
