//! Attributes and macros: their content is only tokens until it is parsed.

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit::Visit as _;
use syn::{Expr, Meta, Token};

use super::scope::EnclosingScope;
use super::syntax::{is_one_of, name};
use super::walk::SyntaxWalk;
use super::{advice, lists, rules};

impl SyntaxWalk<'_> {
    pub(super) fn check_attribute(&mut self, attribute: &syn::Attribute) {
        let segments: Vec<String> = attribute.path().segments.iter().map(|segment| name(&segment.ident)).collect();
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        if matches!(attribute.style, syn::AttrStyle::Inner(_)) {
            let harmless = match words.as_slice() {
                ["no_std"] => matches!(attribute.meta, Meta::Path(_)),
                ["allow" | "warn" | "deny" | "forbid" | "expect"] => !has_macro(&attribute.meta),
                ["doc"] => is_plain_doc(&attribute.meta),
                _ => false,
            };
            if !harmless {
                self.refuse(&rules::CRATE_ATTRIBUTE, attribute, "");
            }
            return;
        }
        let harmless = match (words.as_slice(), &attribute.meta) {
            (["cfg"], Meta::List(list)) => {
                let text: String = list.tokens.to_string().split_whitespace().collect();
                if text != "test" && text != "not(test)" {
                    self.refuse(&rules::CFG, attribute, "");
                }
                true
            }
            (["cfg_attr"], _) => {
                self.refuse(&rules::CFG, attribute, "");
                true
            }
            (["derive"], Meta::List(list)) => {
                self.check_derive(&list.tokens);
                true
            }
            (["doc"], meta) => is_plain_doc(meta),
            (["inline"], Meta::List(list)) => is_single_ident(&list.tokens, &["always", "never"]),
            (["repr"], Meta::List(list)) => is_single_ident(&list.tokens, &lists::REPRS),
            (["allow" | "warn" | "deny" | "forbid" | "expect"], meta @ Meta::List(_)) => !has_macro(meta),
            (["should_panic" | "ignore" | "must_use" | "deprecated"], meta) => !has_macro(meta),
            (["rustfmt", "skip"], Meta::Path(_)) => true,
            ([word], Meta::Path(_)) => self.is_listed(&lists::PLAIN_ATTRIBUTES, &lists::SANDBOXED_ATTRIBUTES, word),
            _ => false,
        };
        if !harmless {
            self.refuse(&rules::ATTRIBUTE, attribute, "");
        }
    }

    fn check_derive(&mut self, tokens: &TokenStream) {
        let Ok(paths) = Punctuated::<syn::Path, Token![,]>::parse_terminated.parse2(tokens.clone()) else {
            self.refuse(&rules::DERIVE, tokens, "");
            return;
        };
        for path in paths {
            let known = path.get_ident().is_some_and(|ident| is_one_of(&lists::DERIVES, &name(ident)));
            if !known {
                self.refuse(&rules::DERIVE, &path, "");
            }
        }
    }

    pub(super) fn check_macro(&mut self, found: &syn::Macro) {
        let segments: Vec<String> = found.path.segments.iter().map(|segment| name(&segment.ident)).collect();
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        let listed = |word| self.is_listed(&lists::MACROS, &lists::SANDBOXED_MACROS, word).then_some(word);
        let known = match words.as_slice() {
            [word] | ["core" | "alloc", word] => listed(*word),
            ["core", "pin", word @ "pin"] => listed(*word),
            _ => None,
        };
        let Some(known) = known else {
            if !self.check_own_call(found) {
                self.refuse(
                    &rules::MACRO,
                    &found.path,
                    advice::instead_of_macro(words.last().copied().unwrap_or_default()),
                );
            }
            return;
        };
        if let Some(span) = forbidden_keyword(&found.tokens) {
            self.refuse(&rules::MACRO_BODY, &span, "");
            return;
        }
        let tokens = found.tokens.clone();
        let expressions = match known {
            "matches" => syn::parse2::<MatchesArgs>(tokens).map(|matches| {
                self.visit_pat(&matches.pattern);
                matches.guard.iter().for_each(|guard| self.walk_guard(guard));
                vec![matches.value]
            }),
            "vec" => syn::parse2::<VecRepeatArgs>(tokens.clone())
                .map(|repeat| vec![repeat.value, repeat.count])
                .or_else(|_| arguments(tokens)),
            _ => arguments(tokens),
        };
        if let Some(literal) = expressions.iter().flatten().find_map(pointer_format_string) {
            self.refuse(&rules::ADDRESS, literal, "`{:p}`");
        }
        match expressions {
            // These two become a method call on their first argument.
            Ok(expressions) if known.starts_with("write") => {
                self.within(EnclosingScope::Arguments, |walk| expressions.iter().for_each(|one| walk.visit_expr(one)));
            }
            Ok(expressions) => expressions.iter().for_each(|expression| self.visit_expr(expression)),
            Err(error) => self.refuse(&rules::MACRO_BODY, &error.span(), ""),
        }
    }
}

fn arguments(tokens: TokenStream) -> syn::Result<Vec<Expr>> {
    Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens).map(|list| list.into_iter().collect())
}

/// `value; count` of `vec!`.
struct VecRepeatArgs {
    value: Expr,
    count: Expr,
}

impl Parse for VecRepeatArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<VecRepeatArgs> {
        let value = input.parse()?;
        let _separator: Token![;] = input.parse()?;
        Ok(VecRepeatArgs { value, count: input.parse()? })
    }
}

/// `value, pattern if guard` of `matches!`.
struct MatchesArgs {
    value: Expr,
    pattern: syn::Pat,
    guard: Option<Expr>,
}

impl Parse for MatchesArgs {
    fn parse(input: ParseStream<'_>) -> syn::Result<MatchesArgs> {
        let value = input.parse()?;
        let _separator: Token![,] = input.parse()?;
        let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
        let guard = if input.parse::<Option<Token![if]>>()?.is_some() { Some(input.parse()?) } else { None };
        let _trailing: Option<Token![,]> = input.parse()?;
        Ok(MatchesArgs { value, pattern, guard })
    }
}

/// The position of a token that is not allowed in a macro's arguments: an attribute, a definition, unsafe code. The
/// arguments are parsed and walked as well; this check does not depend on how they are parsed.
fn forbidden_keyword(tokens: &TokenStream) -> Option<proc_macro2::Span> {
    const WORDS: [&str; 6] = ["unsafe", "extern", "static", "macro_rules", "union", "asm"];
    let mut waiting = vec![tokens.clone()];
    while let Some(tokens) = waiting.pop() {
        let mut after_quote = false;
        for token in tokens {
            let mut quote = false;
            match &token {
                TokenTree::Group(group) => waiting.push(group.stream()),
                TokenTree::Punct(punct) => {
                    quote = punct.as_char() == '\'';
                    if punct.as_char() == '#' || punct.as_char() == '$' {
                        return Some(punct.span());
                    }
                }
                // `'static` is a quote and a word.
                TokenTree::Ident(ident) if !after_quote && is_one_of(&WORDS, &name(ident)) => {
                    return Some(ident.span());
                }
                TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            }
            after_quote = quote;
        }
    }
    None
}

/// The format string that holds `{:p}` in any form.
fn pointer_format_string(expression: &Expr) -> Option<&syn::LitStr> {
    let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(literal), .. }) = expression else { return None };
    let text = literal.value();
    let specs = text.split('{').skip(1).filter_map(|rest| rest.split('}').next()?.split_once(':'));
    let mut letters = specs.map(|(_, how)| how.trim_end().chars().last());
    letters.any(|last| last == Some('p')).then_some(literal)
}

/// Finds a name with other than ASCII letters: the compiler takes the Kelvin sign for a `K`.
pub(super) fn non_ascii_name(tokens: &TokenStream) -> Option<proc_macro2::Span> {
    let mut waiting = vec![tokens.clone()];
    while let Some(tokens) = waiting.pop() {
        for token in tokens {
            match token {
                TokenTree::Group(group) => waiting.push(group.stream()),
                TokenTree::Ident(ident) if !ident.to_string().is_ascii() => return Some(ident.span()),
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
    None
}

/// Names after a `<` or `,` in the brackets after `impl`, or after the name of an item: type parameters, wherever the
/// item stands.
pub(super) fn type_parameters(tokens: &TokenStream) -> Vec<String> {
    const ITEMS: [&str; 6] = ["enum", "fn", "struct", "trait", "type", "union"];
    let (mut found, mut waiting) = (Vec::new(), vec![tokens.clone()]);
    while let Some(tokens) = waiting.pop() {
        // The last two words, the depth of open brackets in a list of parameters, and the sign before this one.
        let (mut last, mut before, mut depth, mut sign) = (String::new(), String::new(), 0_usize, ' ');
        for token in tokens {
            let arrow = sign == '-';
            let mut now = ' ';
            match &token {
                TokenTree::Group(group) => waiting.push(group.stream()),
                TokenTree::Punct(punct) => {
                    now = punct.as_char();
                    match now {
                        '<' if depth > 0 => depth += 1,
                        '<' if last == "impl" || is_one_of(&ITEMS, &before) => depth = 1,
                        '>' if !arrow => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
                TokenTree::Ident(ident) => {
                    let word = name(ident);
                    if depth == 1 && matches!(sign, '<' | ',') && word != "const" {
                        found.push(word.clone());
                    }
                    before = std::mem::replace(&mut last, word);
                }
                TokenTree::Literal(_) => {}
            }
            if depth == 0 && !matches!(&token, TokenTree::Ident(_)) {
                last.clear();
                before.clear();
            }
            sign = now;
        }
    }
    found
}

fn is_single_ident(tokens: &TokenStream, words: &[&str]) -> bool {
    is_one_of(words, &tokens.to_string())
}

/// Returns whether an attribute is `#[doc = "text"]`, `///` or `#[doc(hidden)]`: no macro instead of the text.
fn is_plain_doc(meta: &Meta) -> bool {
    match meta {
        Meta::NameValue(pair) => matches!(&pair.value, Expr::Lit(_)),
        Meta::List(list) => is_single_ident(&list.tokens, &["hidden", "inline", "no_inline"]),
        Meta::Path(_) => false,
    }
}

/// Returns whether the value is anything but a literal or words.
fn has_macro(meta: &Meta) -> bool {
    match meta {
        Meta::Path(_) => false,
        Meta::NameValue(pair) => !matches!(&pair.value, Expr::Lit(_)),
        Meta::List(list) => list.tokens.clone().into_iter().any(|token| matches!(&token, TokenTree::Group(_))),
    }
}
