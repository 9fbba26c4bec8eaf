//! The shapes of syntax that an operator can deny by name: the parts of the language that soundness holes of the
//! compiler have needed, each with an example. A shape is found wherever syntax can stand, macros' arguments included.

use std::collections::HashMap;

use proc_macro2::{Span, TokenStream};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Token};

/// A shape.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxShape {
    /// Its name, which has a hyphen, so that it is no Rust token.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// An item that has it.
    pub example: &'static str,
}

macro_rules! shapes {
    ($($name:ident: $id:literal, $about:literal, $example:literal;)*) => {
        $(static $name: SyntaxShape = SyntaxShape { name: $id, about: $about, example: $example };)*
        /// All shapes.
        pub static SHAPES: &[&SyntaxShape] = &[$(&$name),*];
    };
}

shapes! {
    ASSOCIATED_TYPE: "associated-type", "a type inside of a trait or an implementation", "impl Iterator for S { type Item = u8; fn next(&mut self) -> Option<u8> { None } }";
    ASYNC_BLOCK: "async-block", "an async block or closure", "fn f() { let later = async { 1 }; }";
    ASYNC_HELPER: "async-helper", "an async function other than `run`", "async fn helper() {}";
    AT_PATTERN: "at-pattern", "a name with a pattern behind `@`", "fn f(x: u8) { match x { y @ 1 => {} _ => {} } }";
    CAST_EXPRESSION: "cast-expression", "a cast with `as`", "fn f(x: u8) -> u64 { x as u64 }";
    CLOSURE_EXPRESSION: "closure-expression", "a closure", "fn f() { let g = |x: u8| x; }";
    CONST_GENERIC: "const-generic", "a parameter that is a value", "struct S<const N: usize>([u8; N]);";
    DEREF_EXPRESSION: "deref-expression", "a dereference with `*`", "fn f(x: &u8) -> u8 { *x }";
    DROP_IMPL: "drop-impl", "an implementation of `Drop`", "impl Drop for S { fn drop(&mut self) {} }";
    ENUM_ITEM: "enum-item", "an enum of the tenant's own", "enum E { A, B }";
    GENERIC_TYPE: "generic-type", "a type parameter, or an argument `impl Trait`", "fn f<T>(x: T) {}";
    HIGHER_RANKED: "higher-ranked", "a bound `for<'a>`", "fn f(g: impl for<'a> Fn(&'a u8)) {}";
    IMPL_TRAIT: "impl-trait", "a type `impl Trait`", "fn f() -> impl Iterator<Item = u8> { [].into_iter() }";
    INDEX_EXPRESSION: "index-expression", "an index in brackets", "fn f(x: &[u8]) -> u8 { x[0] }";
    LET_ELSE: "let-else", "a `let` with `else`", "fn f(x: Option<u8>) { let Some(y) = x else { return }; }";
    LIFETIME_PARAMETER: "lifetime-parameter", "a named lifetime other than `'static`", "fn f<'a>(x: &'a u8) -> &'a u8 { x }";
    MATCH_GUARD: "match-guard", "a condition behind a pattern of `match` or `matches!`", "fn f(x: u8) { match x { y if y > 1 => {} _ => {} } }";
    MUTABLE_REFERENCE: "mutable-reference", "a reference `&mut` in an expression", "fn f(mut x: u8) { g(&mut x); }";
    OWN_TRAIT: "own-trait", "a trait of the tenant's own", "trait T {}";
    POINTER_TO_FUNCTION: "pointer-to-function", "a type `fn(…)`", "type F = fn(u8) -> u8;";
    REF_BINDING: "ref-binding", "a name behind `ref` in a pattern", "fn f(x: u8) { let ref y = x; }";
    SLICE_PATTERN: "slice-pattern", "a pattern in brackets", "fn f(x: &[u8]) { if let [a, ..] = x {} }";
    STATIC_ITEM: "static-item", "a static", "static X: u8 = 1;";
    STATIC_LIFETIME: "static-lifetime", "the lifetime `'static`", "const X: &'static str = \"\";";
    TRAIT_IMPL: "trait-impl", "an implementation of a trait", "impl Clone for S { fn clone(&self) -> S { S } }";
    TRAIT_OBJECT: "trait-object", "a type `dyn Trait`", "fn f(x: &dyn core::fmt::Debug) {}";
    TYPE_ALIAS: "type-alias", "a type alias", "type T = u8;";
    WHERE_CLAUSE: "where-clause", "a `where` clause", "fn f<T>(x: T) where T: Copy {}";
}

/// The shapes of a file, each with its first place.
pub(super) struct FoundShapes {
    places: HashMap<&'static str, Span>,
    /// A macro whose arguments are in no known form.
    opaque: Option<Span>,
}

impl FoundShapes {
    /// The place of a shape, or of what could hide it.
    pub(super) fn place_of(&self, shape: &SyntaxShape) -> Option<Span> {
        self.places.get(shape.name).copied().or(self.opaque)
    }

    fn note(&mut self, shape: &SyntaxShape, place: Span) {
        if let Some(shape) = SHAPES.iter().find(|one| **one == shape) {
            self.places.entry(shape.name).or_insert(place);
        }
    }
}

/// Finds all shapes of a file.
pub(super) fn find(file: &syn::File) -> FoundShapes {
    let mut found = FoundShapes { places: HashMap::new(), opaque: None };
    found.visit_file(file);
    found
}

/// `value; count` of `vec!`.
struct RepeatedValue(Expr, Expr);

impl Parse for RepeatedValue {
    fn parse(input: ParseStream<'_>) -> syn::Result<RepeatedValue> {
        let value = input.parse()?;
        let _separator: Token![;] = input.parse()?;
        Ok(RepeatedValue(value, input.parse()?))
    }
}

/// `value, pattern if guard` of `matches!`.
struct MatchedValue {
    value: Expr,
    pattern: syn::Pat,
    guard: Option<(Token![if], Expr)>,
}

impl Parse for MatchedValue {
    fn parse(input: ParseStream<'_>) -> syn::Result<MatchedValue> {
        let value = input.parse()?;
        let _separator: Token![,] = input.parse()?;
        let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
        let guard = match input.parse::<Option<Token![if]>>()? {
            Some(word) => Some((word, input.parse()?)),
            None => None,
        };
        let _trailing: Option<Token![,]> = input.parse()?;
        Ok(MatchedValue { value, pattern, guard })
    }
}

impl FoundShapes {
    /// Looks into the arguments of a macro, in every form that those have which the checker lets pass.
    fn visit_arguments(&mut self, name: &str, tokens: &TokenStream) {
        let tokens = || tokens.clone();
        if name == "matches" {
            return match syn::parse2::<MatchedValue>(tokens()) {
                Ok(MatchedValue { value, pattern, guard }) => {
                    self.visit_expr(&value);
                    self.visit_pat(&pattern);
                    if let Some((word, guard)) = guard {
                        self.note(&MATCH_GUARD, word.span());
                        self.visit_expr(&guard);
                    }
                }
                Err(error) => self.opaque = self.opaque.or(Some(error.span())),
            };
        }
        if let Ok(list) = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens()) {
            list.iter().for_each(|one| self.visit_expr(one));
        } else if let Ok(RepeatedValue(value, count)) = syn::parse2(tokens()) {
            self.visit_expr(&value);
            self.visit_expr(&count);
        } else {
            self.opaque = self.opaque.or(Some(tokens().span()));
        }
    }
}

impl<'ast> Visit<'ast> for FoundShapes {
    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        let name = found.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        self.visit_arguments(name.trim_start_matches("r#"), &found.tokens);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Trait(item) => self.note(&OWN_TRAIT, item.ident.span()),
            syn::Item::Enum(item) => self.note(&ENUM_ITEM, item.ident.span()),
            syn::Item::Static(item) => self.note(&STATIC_ITEM, item.ident.span()),
            syn::Item::Type(item) => self.note(&TYPE_ALIAS, item.ident.span()),
            syn::Item::Impl(item) => {
                if let Some(of) = &item.trait_ {
                    let place = of.0.span();
                    self.note(&TRAIT_IMPL, place);
                    if of.0.segments.last().is_some_and(|last| last.ident == "Drop") {
                        self.note(&DROP_IMPL, place);
                    }
                }
            }
            // Items that the parser has no form for.
            syn::Item::Verbatim(tokens) => self.opaque = self.opaque.or(Some(tokens.span())),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_type(&mut self, item: &'ast syn::ImplItemType) {
        self.note(&ASSOCIATED_TYPE, item.ident.span());
        visit::visit_impl_item_type(self, item);
    }

    fn visit_trait_item_type(&mut self, item: &'ast syn::TraitItemType) {
        self.note(&ASSOCIATED_TYPE, item.ident.span());
        visit::visit_trait_item_type(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if signature.asyncness.is_some() && signature.ident != "run" {
            self.note(&ASYNC_HELPER, signature.ident.span());
        }
        visit::visit_signature(self, signature);
    }

    fn visit_generic_param(&mut self, parameter: &'ast syn::GenericParam) {
        match parameter {
            syn::GenericParam::Type(found) => self.note(&GENERIC_TYPE, found.ident.span()),
            syn::GenericParam::Const(found) => self.note(&CONST_GENERIC, found.ident.span()),
            syn::GenericParam::Lifetime(found) => self.note(&LIFETIME_PARAMETER, found.lifetime.span()),
        }
        visit::visit_generic_param(self, parameter);
    }

    fn visit_where_clause(&mut self, clause: &'ast syn::WhereClause) {
        self.note(&WHERE_CLAUSE, clause.where_token.span());
        visit::visit_where_clause(self, clause);
    }

    fn visit_bound_lifetimes(&mut self, found: &'ast syn::BoundLifetimes) {
        self.note(&HIGHER_RANKED, found.for_token.span());
        visit::visit_bound_lifetimes(self, found);
    }

    fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
        if lifetime.ident == "static" {
            self.note(&STATIC_LIFETIME, lifetime.span());
        } else if lifetime.ident != "_" {
            self.note(&LIFETIME_PARAMETER, lifetime.span());
        }
    }

    fn visit_fn_arg(&mut self, argument: &'ast syn::FnArg) {
        if let syn::FnArg::Typed(typed) = argument
            && let syn::Type::ImplTrait(found) = &*typed.ty
        {
            self.note(&GENERIC_TYPE, found.span());
        }
        visit::visit_fn_arg(self, argument);
    }

    fn visit_type(&mut self, found: &'ast syn::Type) {
        match found {
            syn::Type::ImplTrait(_) => self.note(&IMPL_TRAIT, found.span()),
            syn::Type::TraitObject(_) => self.note(&TRAIT_OBJECT, found.span()),
            syn::Type::FnPtr(_) => self.note(&POINTER_TO_FUNCTION, found.span()),
            syn::Type::Verbatim(tokens) => self.opaque = self.opaque.or(Some(tokens.span())),
            _ => {}
        }
        visit::visit_type(self, found);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Async(_) => self.note(&ASYNC_BLOCK, expression.span()),
            Expr::Cast(_) => self.note(&CAST_EXPRESSION, expression.span()),
            Expr::Closure(found) => {
                self.note(&CLOSURE_EXPRESSION, expression.span());
                if found.asyncness.is_some() {
                    self.note(&ASYNC_BLOCK, expression.span());
                }
            }
            Expr::Index(_) => self.note(&INDEX_EXPRESSION, expression.span()),
            Expr::Reference(found) if found.mutability.is_some() => {
                self.note(&MUTABLE_REFERENCE, expression.span());
            }
            Expr::Unary(found) if matches!(found.op, syn::UnOp::Deref(_)) => {
                self.note(&DEREF_EXPRESSION, expression.span());
            }
            Expr::Verbatim(tokens) => self.opaque = self.opaque.or(Some(tokens.span())),
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_pat(&mut self, pattern: &'ast syn::Pat) {
        match pattern {
            syn::Pat::Guard(_) => self.note(&MATCH_GUARD, pattern.span()),
            syn::Pat::Slice(_) => self.note(&SLICE_PATTERN, pattern.span()),
            syn::Pat::Ident(found) => {
                if found.subpat.is_some() {
                    self.note(&AT_PATTERN, pattern.span());
                }
                if found.by_ref.is_some() {
                    self.note(&REF_BINDING, pattern.span());
                }
            }
            syn::Pat::Verbatim(tokens) => self.opaque = self.opaque.or(Some(tokens.span())),
            _ => {}
        }
        visit::visit_pat(self, pattern);
    }

    fn visit_local_init(&mut self, found: &'ast syn::LocalInit) {
        if let Some((word, _)) = &found.diverge {
            self.note(&LET_ELSE, word.span());
        }
        visit::visit_local_init(self, found);
    }
}
