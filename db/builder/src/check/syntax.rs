//! Small predicates about syntax.

use syn::Expr;

use super::lists;

/// An identifier without `r#`.
pub(super) fn name(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

pub(super) fn is_one_of(list: &[&str], text: &str) -> bool {
    list.contains(&text)
}

pub(super) fn is_compound_assignment(operator: &syn::BinOp) -> bool {
    use syn::BinOp::{
        AddAssign, BitAndAssign, BitOrAssign, BitXorAssign, DivAssign, MulAssign, RemAssign, ShlAssign, ShrAssign,
        SubAssign,
    };
    matches!(
        operator,
        AddAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | BitXorAssign(_)
            | DivAssign(_)
            | MulAssign(_)
            | RemAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
            | SubAssign(_)
    )
}

/// Returns whether an expression is a place with an index in it: `x[0]`, `x[0].y`, `(*x[0])`, `x[0][1]`.
pub(super) fn is_indexed(place: &Expr) -> bool {
    let mut place = place;
    loop {
        place = match place {
            Expr::Index(_) => return true,
            Expr::Field(found) => &found.base,
            Expr::Paren(found) => &found.expr,
            Expr::Group(found) => &found.expr,
            Expr::Unary(found) if matches!(found.op, syn::UnOp::Deref(_)) => &found.expr,
            _ => return false,
        }
    }
}

pub(super) fn is_harmless_bound(last: &str) -> bool {
    is_one_of(&lists::DYN, last) || is_one_of(&lists::DERIVES, last) || is_one_of(&lists::BOUNDS, last)
}

/// Returns whether this name is reserved, so that no trait of the tenant's own and no import can have it.
pub(super) fn is_known_trait(text: &str) -> bool {
    is_harmless_bound(text) || is_one_of(&lists::PRIMITIVES, text)
}

/// Returns whether `#[cfg(test)]` is among the attributes: the compiler strips such an item before it parses it
/// further.
pub(super) fn only_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        matches!(&attribute.meta, syn::Meta::List(list)
            if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

/// Returns whether the compiler sees an item in tests alone.
pub(super) fn is_for_tests(item: &syn::Item) -> bool {
    only_for_tests(attributes_of(item))
}

/// The attributes of an item.
pub(super) fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        _ => &[],
    }
}
