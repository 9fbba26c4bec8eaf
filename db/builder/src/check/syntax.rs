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
