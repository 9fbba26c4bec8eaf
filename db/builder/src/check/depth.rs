//! Bounds the depth of a syntax tree before any recursive code sees it.
//!
//! A tree nests by brackets, and by rows of tokens without brackets: operators, prefixes, calls, generic arguments,
//! closures, `else`. So the tokens of a row are counted from each point at which something begins that cannot be nested
//! in what precedes it. Such points are after `;`, after a `,` that is in no `<…>` and follows no closure's parameters,
//! and after a `{…}` that no operator follows. In a plain chain, `else if … {…} else if … {…}`, each link counts as
//! one, and only the last with its condition. The content of brackets starts with the count of the row around them.

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};

/// Brackets inside brackets.
const MAX_NESTING: usize = 128;
/// Tokens in a row: bounds chains of operators, calls, prefixes, generics.
const MAX_RUN_TOKENS: usize = 2_000;
/// Tokens in a row, with those of the rows around it.
const MAX_PATH_TOKENS: usize = 8_000;
/// Unclosed `<`: each may contain all that follows. Comparisons are never closed, so this is more than `MAX_NESTING`.
const MAX_OPEN_ANGLES: usize = 512;
/// `|` in a row: everything after a closure's parameters is in the closure.
const MAX_PIPES: usize = 2_000;
/// `else` after `else` without a `;` between them: each nests the next.
const MAX_ELSES: usize = 256;

/// Characters of a number. Parsers of the tokens take time in the square of it: half a megabyte of digits took minutes.
const MAX_NUMBER_CHARS: usize = 512;

/// The byte where brackets nest too deeply in plain text. Literals and comments are not told apart, so this only
/// refuses what no ordinary file comes near.
pub(super) fn too_deep_text(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > 16 * MAX_NESTING {
            return Some(at);
        }
    }
    None
}

/// A chain of `else if`.
#[derive(Default)]
struct ElseChain {
    /// Tokens up to the last `else`, where each link before it counts as one.
    tokens: usize,
    /// Tokens since the last `else`, without it.
    since: usize,
    /// An `if` follows the last `else`.
    is_link: bool,
    /// `{…}` since the last `else`. If there is only one and the next `else` follows it, it is the body of that `if`,
    /// and the condition is over.
    braces: usize,
}

impl ElseChain {
    /// Returns how many tokens count after this one.
    fn count(&mut self, token: &TokenTree, after_braces: bool, tokens: usize) -> usize {
        self.since += 1;
        match token {
            TokenTree::Ident(word) if word == "else" => {
                let goes_on = self.is_link && self.braces == 1 && after_braces;
                let tokens = if goes_on { self.tokens + 1 } else { tokens };
                *self = ElseChain { tokens, ..ElseChain::default() };
                return tokens;
            }
            TokenTree::Ident(word) if word == "if" && self.since == 1 => self.is_link = true,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => self.braces += 1,
            _ => {}
        }
        tokens
    }
}

/// The counts of one row.
#[derive(Default)]
struct TokenRun {
    tokens: usize,
    angles: usize,
    pipes: usize,
    elses: usize,
    /// The chain of `else if` that the row is in.
    chain: ElseChain,
    /// The token before this was a `{…}`.
    after_braces: bool,
    /// The token before this was a `-` or `=` that may be the start of an arrow.
    arrow: Option<char>,
}

impl TokenRun {
    fn next(&mut self, token: &TokenTree) {
        // `{…} name` starts a statement, an item or an arm; only these words continue an expression with braces.
        let after_braces = std::mem::take(&mut self.after_braces);
        if after_braces && ends_run(token) {
            *self = TokenRun::default();
        }
        let arrow = self.arrow.take();
        // A literal holds nothing.
        let counts = usize::from(!matches!(token, TokenTree::Literal(_)));
        self.tokens = self.chain.count(token, after_braces, self.tokens + counts);
        match token {
            TokenTree::Group(group) => self.after_braces = group.delimiter() == Delimiter::Brace,
            // The comparisons before an `else` have ended.
            TokenTree::Ident(ident) if ident == "else" => (self.elses, self.angles) = (self.elses + 1, 0),
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => *self = TokenRun::default(),
                ',' if self.angles == 0 => self.tokens = 0,
                '<' => self.angles += 1,
                // An arm's value begins after `=>`.
                '>' if arrow == Some('=') => (self.angles, self.pipes) = (0, 0),
                '>' if arrow.is_none() => self.angles = self.angles.saturating_sub(1),
                '|' => self.pipes += 1,
                found @ ('-' | '=') if punct.spacing() == Spacing::Joint => self.arrow = Some(found),
                _ => {}
            },
            TokenTree::Ident(_) | TokenTree::Literal(_) => {}
        }
    }

    fn is_too_long(&self, around: usize) -> bool {
        self.tokens > MAX_RUN_TOKENS
            || around + self.tokens > MAX_PATH_TOKENS
            || self.angles > MAX_OPEN_ANGLES
            || self.pipes > MAX_PIPES
            || self.elses > MAX_ELSES
    }
}

fn ends_run(token: &TokenTree) -> bool {
    match token {
        TokenTree::Ident(ident) => ident != "else" && ident != "as",
        TokenTree::Punct(punct) => matches!(punct.as_char(), '#' | '\''),
        TokenTree::Group(_) | TokenTree::Literal(_) => false,
    }
}

/// The position where a tree would become too deep. Uses a list of its own instead of recursion.
pub(super) fn too_deep_tokens(tokens: &TokenStream) -> Option<Span> {
    let mut waiting = vec![(tokens.clone(), 0_usize, 0_usize)];
    while let Some((tokens, depth, around)) = waiting.pop() {
        let mut row = TokenRun::default();
        for token in tokens {
            let span = token.span();
            row.next(&token);
            match &token {
                TokenTree::Group(group) => {
                    if depth >= MAX_NESTING {
                        return Some(group.span_open());
                    }
                    waiting.push((group.stream(), depth + 1, around + row.tokens));
                }
                TokenTree::Literal(literal) if is_long_number(&literal.to_string()) => return Some(span),
                TokenTree::Punct(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            }
            if row.is_too_long(around) {
                return Some(span);
            }
        }
    }
    None
}

fn is_long_number(literal: &str) -> bool {
    literal.len() > MAX_NUMBER_CHARS && literal.starts_with(|first: char| first.is_ascii_digit())
}
