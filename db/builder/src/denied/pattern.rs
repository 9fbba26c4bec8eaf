//! Patterns of tokens, and their search.

use std::str::FromStr;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

use super::super::limits::DENIED_TOKENS;

/// A token or group of a source.
#[derive(Clone, Debug)]
pub(super) enum TokenNode {
    /// An identifier or keyword, without `r#`.
    Word(String, Span),
    /// A lifetime, without its quote.
    Lifetime(String, Span),
    Sign(char, Span),
    Literal(String, Span),
    Group(Delimiter, Vec<TokenNode>, Span),
}

impl TokenNode {
    fn span(&self) -> Span {
        match self {
            TokenNode::Word(_, span)
            | TokenNode::Lifetime(_, span)
            | TokenNode::Sign(_, span)
            | TokenNode::Literal(_, span)
            | TokenNode::Group(_, _, span) => *span,
        }
    }
}

/// The tokens of a text as a tree.
pub(super) fn read_nodes(tokens: TokenStream) -> Vec<TokenNode> {
    let mut nodes: Vec<TokenNode> = Vec::new();
    for token in tokens {
        let span = token.span();
        let node = match token {
            TokenTree::Group(group) => TokenNode::Group(group.delimiter(), read_nodes(group.stream()), span),
            TokenTree::Punct(punct) => TokenNode::Sign(punct.as_char(), span),
            TokenTree::Literal(literal) => TokenNode::Literal(literal.to_string(), span),
            TokenTree::Ident(ident) => {
                let text = ident.to_string();
                let word = text.strip_prefix("r#").unwrap_or(&text).to_owned();
                match nodes.last() {
                    // A lifetime is a quote and a word.
                    Some(TokenNode::Sign('\'', quote)) => {
                        let quote = *quote;
                        nodes.pop();
                        TokenNode::Lifetime(word, quote)
                    }
                    _ => TokenNode::Word(word, span),
                }
            }
        };
        nodes.push(node);
    }
    nodes
}

/// A pattern: runs of tokens that follow each other within one group, with anything between two runs.
#[derive(Clone, Debug)]
pub(super) struct TokenPattern {
    runs: Vec<Vec<PatternToken>>,
}

#[derive(Clone, Debug)]
enum PatternToken {
    Word(String),
    Lifetime(String),
    AnyLifetime,
    Sign(char),
    Literal(String),
    /// Its content has to match as a whole.
    Group(Delimiter, TokenPattern),
    /// `$_`
    One,
}

impl TokenPattern {
    /// Reads a pattern; a path becomes its last name.
    ///
    /// # Errors
    /// The reason that it is none.
    pub(super) fn parse(text: &str) -> Result<TokenPattern, String> {
        let tokens = TokenStream::from_str(text).map_err(|_| {
            "it is neither a shape nor Rust tokens: a bracket, quote or comment is not closed, or not opened".to_owned()
        })?;
        let nodes = read_nodes(tokens);
        if count(&nodes) > DENIED_TOKENS {
            return Err(format!("it has more than {DENIED_TOKENS} tokens"));
        }
        if let Some(name) = last_name(&nodes) {
            return Ok(TokenPattern { runs: vec![vec![PatternToken::Word(name)]] });
        }
        if !names_something(&nodes) {
            return Err("it has neither an identifier nor a lifetime: it would deny nearly every source".to_owned());
        }
        TokenPattern::of(&nodes)
    }

    fn of(nodes: &[TokenNode]) -> Result<TokenPattern, String> {
        let mut runs = vec![Vec::new()];
        let mut rest = nodes;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            let token = match first {
                TokenNode::Sign('$', _) => {
                    let Some((second, after)) = rest.split_first() else { return Err(lone_dollar()) };
                    rest = after;
                    match second {
                        TokenNode::Word(word, _) if word == "_" => PatternToken::One,
                        TokenNode::Sign('*', _) => {
                            runs.push(Vec::new());
                            continue;
                        }
                        _ => return Err(lone_dollar()),
                    }
                }
                TokenNode::Sign(sign, _) => PatternToken::Sign(*sign),
                TokenNode::Word(word, _) => PatternToken::Word(word.clone()),
                TokenNode::Lifetime(word, _) if word == "_" => PatternToken::AnyLifetime,
                TokenNode::Lifetime(word, _) => PatternToken::Lifetime(word.clone()),
                TokenNode::Literal(text, _) => PatternToken::Literal(text.clone()),
                TokenNode::Group(delimiter, inner, _) => PatternToken::Group(*delimiter, TokenPattern::of(inner)?),
            };
            if let Some(run) = runs.last_mut() {
                run.push(token);
            }
        }
        Ok(TokenPattern { runs })
    }

    /// The first place in a source where the pattern is, in any group.
    pub(super) fn find(&self, nodes: &[TokenNode]) -> Option<Span> {
        if let Some(at) = self.find_here(nodes) {
            return nodes.get(at).map(TokenNode::span);
        }
        nodes.iter().find_map(|node| match node {
            TokenNode::Group(_, inner, _) => self.find(inner),
            _ => None,
        })
    }

    /// The first place among these tokens themselves. Each run is taken where it first comes: that leaves most room for
    /// those behind it.
    fn find_here(&self, nodes: &[TokenNode]) -> Option<usize> {
        let (mut from, mut first) = (0, None);
        for run in &self.runs {
            let at = (from..=nodes.len()).find(|at| starts_with(&nodes[*at..], run))?;
            from = at + run.len();
            first = first.or(Some(at).filter(|_| !run.is_empty()));
        }
        first
    }

    /// Whether these tokens are the pattern, all of them.
    fn is_whole(&self, nodes: &[TokenNode]) -> bool {
        let [first, between @ .., last] = self.runs.as_slice() else {
            let only = self.runs.first().map_or(&[][..], |run| run);
            return only.len() == nodes.len() && starts_with(nodes, only);
        };
        if first.len() + last.len() > nodes.len() || !starts_with(nodes, first) {
            return false;
        }
        let (mut from, end) = (first.len(), nodes.len() - last.len());
        for run in between {
            let Some(at) = (from..=end).find(|at| starts_with(&nodes[*at..end], run)) else { return false };
            from = at + run.len();
        }
        starts_with(&nodes[end..], last)
    }
}

fn lone_dollar() -> String {
    "`$` stands before `_` (one token or group) or `*` (any number of them)".to_owned()
}

fn starts_with(nodes: &[TokenNode], run: &[PatternToken]) -> bool {
    nodes.len() >= run.len() && nodes.iter().zip(run).all(|(node, token)| is_one(node, token))
}

fn is_one(node: &TokenNode, token: &PatternToken) -> bool {
    match (token, node) {
        (PatternToken::One, _) | (PatternToken::AnyLifetime, TokenNode::Lifetime(..)) => true,
        (PatternToken::Word(wanted), TokenNode::Word(found, _))
        | (PatternToken::Lifetime(wanted), TokenNode::Lifetime(found, _))
        | (PatternToken::Literal(wanted), TokenNode::Literal(found, _)) => wanted == found,
        (PatternToken::Sign(wanted), TokenNode::Sign(found, _)) => wanted == found,
        (PatternToken::Group(wanted, inner), TokenNode::Group(found, content, _)) => {
            wanted == found && inner.is_whole(content)
        }
        _ => false,
    }
}

fn count(nodes: &[TokenNode]) -> usize {
    let one = |node: &TokenNode| match node {
        TokenNode::Group(_, inner, _) => 1 + count(inner),
        _ => 1,
    };
    nodes.iter().map(one).sum()
}

fn names_something(nodes: &[TokenNode]) -> bool {
    nodes.iter().any(|node| match node {
        TokenNode::Word(word, _) => word != "_",
        TokenNode::Lifetime(..) => true,
        TokenNode::Group(_, inner, _) => names_something(inner),
        _ => false,
    })
}

/// The last name of a path of two names at least: `core::cell::Cell`.
fn last_name(nodes: &[TokenNode]) -> Option<String> {
    let mut rest = match nodes {
        // A path from the root.
        [TokenNode::Sign(':', _), TokenNode::Sign(':', _), rest @ ..] => rest,
        nodes => nodes,
    };
    let mut names = 0;
    loop {
        let [TokenNode::Word(word, _), after @ ..] = rest else { return None };
        names += 1;
        match after {
            [] => return Some(word.clone()).filter(|_| names > 1),
            [TokenNode::Sign(':', _), TokenNode::Sign(':', _), after @ ..] => rest = after,
            _ => return None,
        }
    }
}
