//! Macros of the tenant's own, in the sandboxed tier.
//!
//! What a macro becomes is not read: the checker sees only the tokens of its definition and of its calls. But a macro
//! makes no tokens, it only moves them. So what no definition and no call contains, no expansion does, and this looks
//! for words: those that begin what is refused by its form (`unsafe`, `extern`, `mod`), and the names of macros that
//! read files or the environment. Names of called macros must be on the list, or defined in the source.
//!
//! An attribute is two tokens, `#` and a bracket, and only together do they tell whether it is harmless. Nothing must
//! come between them and put the `#` before another bracket. A macro could, if it were given the `#`: so there is none
//! in what any macro is given. A macro that takes single tokens (`tt`) may be given a `!`, and make calls of what does
//! not look like one, so its own definition has no `#` either.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use syn::parse::Parser;

use super::syntax::{is_one_of, name};
use super::walk::SyntaxWalk;
use super::{lists, rules};

/// Words before a `!` that is no macro call: `return !(x)`.
const BEFORE_NOT: [&str; 9] = ["break", "else", "if", "in", "match", "mut", "return", "while", "yield"];

/// What `typed!` is given.
const TYPED_FORM: &str = "it is `typed!(struct Account { name, balance })` or \
                          `typed!(enum Order { Nothing, Deposit(account), Move { from, amount } })`";

const NO_ATTRIBUTES: &str = "no attribute or documentation can be in what a macro is given";

/// What is before a token.
#[derive(Clone, Copy, PartialEq)]
enum PrecedingToken {
    /// Nothing that could make a call of the next bracket.
    Other,
    /// A word that is no part of a call yet.
    Word,
    /// A word and `!`, with a name after it or not.
    Call,
    /// A repetition, which may become any of these.
    Repetition,
}

impl PrecedingToken {
    /// Returns whether a bracket after it may be what a macro is given.
    fn may_call(self) -> bool {
        matches!(self, PrecedingToken::Call | PrecedingToken::Repetition)
    }

    /// What is before the token after a name.
    fn name(self) -> PrecedingToken {
        if self.may_call() { PrecedingToken::Call } else { PrecedingToken::Word }
    }
}

type Tokens = std::iter::Peekable<proc_macro2::token_stream::IntoIter>;

/// Where tokens stand.
#[derive(Clone, Copy)]
struct TokenPlace {
    /// What a macro is given, or may be.
    given: bool,
    before: PrecedingToken,
}

impl SyntaxWalk<'_> {
    /// Checks a `macro_rules!`, whose name is missing if it is none.
    pub(super) fn check_definition(&mut self, own: Option<&syn::Ident>, found: &syn::Macro) {
        self.refuse(&rules::MACRO_DEFINITION, &found.path, "");
        let Some(own) = own.filter(|_| found.path.is_ident("macro_rules")) else {
            self.refuse(&rules::MACRO_TOKENS, &found.path, "it has no name");
            return;
        };
        let own_name = name(own);
        let is_taken = [&lists::MACROS[..], &lists::SANDBOXED_MACROS, &lists::TOKEN_MACROS, &lists::NEVER_IMPORTED]
            .iter()
            .any(|list| is_one_of(list, &own_name));
        if is_taken || own_name == lists::TYPED {
            self.refuse(&rules::MACRO_TOKENS, own, "this name is taken");
        }
        if !self.test {
            self.names.macros.insert(own_name);
        }
        let mut tokens = found.tokens.clone().into_iter().peekable();
        while tokens.peek().is_some() {
            // A matcher, an arrow, what it becomes, and a semicolon, which the last rule may lack.
            let rule = [tokens.next(), tokens.next(), tokens.next(), tokens.next()];
            let [Some(TokenTree::Group(matcher)), Some(equal), Some(arrow), Some(TokenTree::Group(becomes))] = &rule
            else {
                self.refuse(&rules::MACRO_TOKENS, own, "a rule is `(…) => {…};`");
                return;
            };
            let end = tokens.next();
            let is_sign = |token: &TokenTree, sign| matches!(token, TokenTree::Punct(found) if found.as_char() == sign);
            if !is_sign(equal, '=') || !is_sign(arrow, '>') || end.is_some_and(|end| !is_sign(&end, ';')) {
                self.refuse(&rules::MACRO_TOKENS, own, "a rule is `(…) => {…};`");
                return;
            }
            self.check_words(&matcher.stream());
            let given = has_single_tokens(&matcher.stream());
            self.check_tokens(becomes.stream(), TokenPlace { given, before: PrecedingToken::Other });
        }
    }

    /// Checks a macro that stands for items: the API's `typed!`, which is given names alone, or one of the tenant's
    /// own.
    pub(super) fn check_item_macro(&mut self, found: &syn::Macro) {
        let names: Vec<String> = found.path.segments.iter().map(|segment| name(&segment.ident)).collect();
        match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [lists::TYPED] | ["sandstorm_api", lists::TYPED] if !names_type(found.tokens.clone()) => {
                self.refuse(&rules::MACRO_BODY, &found.path, TYPED_FORM);
            }
            [lists::TYPED] | ["sandstorm_api", lists::TYPED] => {}
            _ => self.check_macro_for(found, "items"),
        }
    }

    /// Checks a macro that stands for items, a pattern or a type: only one of the tenant's own can.
    pub(super) fn check_macro_for(&mut self, found: &syn::Macro, what: &str) {
        if !self.check_own_call(found) {
            self.refuse(&rules::MACRO, &found.path, format!("macros cannot stand for {what}"));
        }
    }

    /// Checks the call of a macro if it may be one of the tenant's own; returns whether it may be.
    pub(super) fn check_own_call(&mut self, found: &syn::Macro) -> bool {
        let names: Vec<String> = found.path.segments.iter().map(|segment| name(&segment.ident)).collect();
        let Some(last) = names.last().filter(|_| self.is_sandboxed()) else { return false };
        let is_foreign = found.path.leading_colon.is_some()
            || names.iter().any(|part| self.is_crate(part))
            || self.is_listed(&lists::MACROS, &lists::SANDBOXED_MACROS, last);
        if is_foreign {
            return false;
        }
        self.note_call(last, found.path.segments.last().map_or_else(Span::call_site, |last| last.ident.span()));
        self.check_tokens(found.tokens.clone(), TokenPlace { given: true, before: PrecedingToken::Other });
        true
    }

    fn note_call(&mut self, called: &str, span: Span) {
        if !self.test && !self.is_listed(&lists::MACROS, &lists::SANDBOXED_MACROS, called) {
            self.names.called.push((called.to_owned(), span.byte_range()));
        }
    }

    /// Refuses words that no macro may contain.
    fn check_words(&mut self, tokens: &TokenStream) {
        for token in tokens.clone() {
            match token {
                TokenTree::Group(group) => self.check_words(&group.stream()),
                TokenTree::Ident(ident) => self.check_word(&ident),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    fn check_word(&mut self, ident: &proc_macro2::Ident) {
        let word = name(ident);
        let is_refused = is_one_of(&lists::NEVER_IN_MACROS, &word) || is_one_of(&lists::NEVER_IMPORTED, &word);
        if is_refused && !is_one_of(&lists::TOKEN_MACROS, &word) {
            self.refuse(&rules::MACRO_TOKENS, &ident.span(), format!("`{word}`"));
        }
    }

    /// Checks tokens of a definition or call.
    fn check_tokens(&mut self, tokens: TokenStream, place: TokenPlace) {
        let mut before = place.before;
        let mut last_word: Option<proc_macro2::Ident> = None;
        let mut tokens: Tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let word = last_word.take();
            before = match token {
                TokenTree::Ident(ident) => {
                    self.check_word(&ident);
                    last_word = Some(ident);
                    // `name! other {…}` is a call as well.
                    before.name()
                }
                TokenTree::Literal(_) => PrecedingToken::Other,
                TokenTree::Group(group) => {
                    let given = place.given || before.may_call();
                    self.check_tokens(group.stream(), TokenPlace { given, before: PrecedingToken::Other });
                    PrecedingToken::Other
                }
                TokenTree::Punct(punct) => match punct.as_char() {
                    '#' => {
                        let next = tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                        self.check_attribute_tokens(&punct, next, place.given);
                        PrecedingToken::Other
                    }
                    '$' => match tokens.next() {
                        // A repetition: its first token may follow what is before it, and any of its own what follows.
                        Some(TokenTree::Group(group)) => {
                            self.check_tokens(group.stream(), TokenPlace { before, ..place });
                            self.skip_repetition_sign(&mut tokens);
                            PrecedingToken::Repetition
                        }
                        Some(TokenTree::Ident(variable)) => {
                            self.check_word(&variable);
                            before.name()
                        }
                        _ => PrecedingToken::Other,
                    },
                    '!' => self.check_not(before, word, tokens.peek(), &punct),
                    _ => PrecedingToken::Other,
                },
            };
        }
    }

    /// Goes behind the `,*` of a repetition.
    fn skip_repetition_sign(&mut self, tokens: &mut Tokens) {
        let is_sign = |token: &TokenTree| matches!(token, TokenTree::Punct(sign) if "*+?".contains(sign.as_char()));
        if tokens.next_if(is_sign).is_none() {
            if let Some(TokenTree::Ident(separator)) = tokens.next() {
                self.check_word(&separator);
            }
            tokens.next_if(is_sign);
        }
    }

    /// Checks a `!`: after a name it makes a call of what follows, or a comparison.
    fn check_not(
        &mut self,
        before: PrecedingToken,
        word: Option<proc_macro2::Ident>,
        next: Option<&TokenTree>,
        at: &proc_macro2::Punct,
    ) -> PrecedingToken {
        if matches!(next, Some(TokenTree::Punct(next)) if next.as_char() == '=')
            && at.spacing() == proc_macro2::Spacing::Joint
        {
            return PrecedingToken::Other;
        }
        match word {
            Some(word) if is_one_of(&BEFORE_NOT, &name(&word)) => {}
            Some(word) => self.note_token_call(&word),
            None if matches!(before, PrecedingToken::Word | PrecedingToken::Repetition) => {
                self.refuse(
                    &rules::MACRO_TOKENS,
                    &at.span(),
                    "a macro is called by its name, which is not given to it",
                );
            }
            None => {}
        }
        PrecedingToken::Call
    }

    fn note_token_call(&mut self, word: &proc_macro2::Ident) {
        let called = name(word);
        if !is_one_of(&lists::TOKEN_MACROS, &called) {
            self.note_call(&called, word.span());
        }
    }

    /// Checks an attribute of a definition; refuses it in what a macro is given.
    fn check_attribute_tokens(&mut self, sign: &proc_macro2::Punct, next: Option<TokenTree>, given: bool) {
        let bracket =
            |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket);
        let Some(TokenTree::Group(group)) = next.filter(|next| bracket(next) && !given) else {
            self.refuse(&rules::MACRO_TOKENS, &sign.span(), NO_ATTRIBUTES);
            return;
        };
        let tokens = TokenStream::from_iter([TokenTree::Punct(sign.clone()), TokenTree::Group(group.clone())]);
        match syn::Attribute::parse_outer.parse2(tokens) {
            Ok(attributes) if !has_variable(&group) => {
                attributes.iter().for_each(|attribute| self.check_attribute(attribute));
            }
            _ => self.refuse(&rules::MACRO_TOKENS, &group.span(), "an attribute of a macro has no variables"),
        }
    }
}

/// Returns whether the matcher of a macro takes single tokens.
fn has_single_tokens(matcher: &TokenStream) -> bool {
    matcher.clone().into_iter().any(|token| match token {
        TokenTree::Group(group) => has_single_tokens(&group.stream()),
        TokenTree::Ident(ident) => name(&ident) == "tt",
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

fn has_variable(group: &Group) -> bool {
    group.stream().into_iter().any(|token| match token {
        TokenTree::Group(group) => has_variable(&group),
        TokenTree::Punct(punct) => punct.as_char() == '$',
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    })
}

/// Returns whether tokens are those of a [`TYPED_FORM`]: names, and nothing that could be more.
fn names_type(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let [TokenTree::Ident(kind), TokenTree::Ident(_), TokenTree::Group(parts)] = tokens.as_slice() else {
        return false;
    };
    let parts_have_parts = match kind.to_string().as_str() {
        "struct" => false,
        "enum" => true,
        _ => return false,
    };
    parts.delimiter() == Delimiter::Brace && is_list_of_names(parts.stream(), parts_have_parts)
}

/// Returns whether tokens are names with commas between them; with a bracket of such behind a name, if they may have
/// parts.
fn is_list_of_names(tokens: TokenStream, have_parts: bool) -> bool {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(first) = tokens.next() {
        let TokenTree::Ident(_) = first else { return false };
        if let Some(TokenTree::Group(parts)) = tokens.next_if(|next| matches!(next, TokenTree::Group(_))) {
            let is_known = matches!(parts.delimiter(), Delimiter::Brace | Delimiter::Parenthesis);
            if !have_parts || !is_known || !is_list_of_names(parts.stream(), false) {
                return false;
            }
        }
        match tokens.next() {
            None => return true,
            Some(TokenTree::Punct(comma)) if comma.as_char() == ',' => {}
            Some(_) => return false,
        }
    }
    true
}
