//! Bounds how deep a syntax tree can become before anything recursive looks at it.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// Brackets inside brackets.
const NESTING: usize = 128;
/// Tokens of one group between two separators (`,`, `;`, a `{…}`): bounds chains of operators, calls, prefixes, generics.
const RUN: usize = 2_000;
/// `else` after `else` without a `;` between them: each nests the next.
const ELSES: usize = 256;

/// Characters of a number. What reads the tokens takes time in the square of it: half a megabyte of digits took minutes.
const NUMBER: usize = 512;

/// The byte where brackets nest too deeply, in plain text: literals and comments are not told apart, so this only
/// refuses what no ordinary file comes near.
pub(super) fn deep_text(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > 16 * NESTING {
            return Some(at);
        }
    }
    None
}

/// The place where a tree would become too deep. Walks with a list of its own, not by recursion.
pub(super) fn deep_tokens(tokens: &TokenStream) -> Option<Span> {
    let mut waiting = vec![(tokens.clone(), 0_usize)];
    while let Some((tokens, depth)) = waiting.pop() {
        let (mut run, mut elses) = (0_usize, 0_usize);
        for token in tokens {
            let span = token.span();
            run += 1;
            match token {
                TokenTree::Group(group) => {
                    if depth >= NESTING {
                        return Some(group.span_open());
                    }
                    if group.delimiter() == Delimiter::Brace {
                        run = 0;
                    }
                    waiting.push((group.stream(), depth + 1));
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => (run, elses) = (0, 0),
                TokenTree::Punct(punct) if punct.as_char() == ',' => run = 0,
                TokenTree::Ident(ident) if ident == "else" => elses += 1,
                TokenTree::Literal(literal) if is_long_number(&literal.to_string()) => return Some(span),
                TokenTree::Punct(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            }
            if run > RUN || elses > ELSES {
                return Some(span);
            }
        }
    }
    None
}

fn is_long_number(literal: &str) -> bool {
    literal.len() > NUMBER && literal.starts_with(|first: char| first.is_ascii_digit())
}
