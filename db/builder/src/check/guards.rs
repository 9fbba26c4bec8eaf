//! Refuses most code in a guard, or in an index of an index.
//!
//! The compiler looks at the matched or indexed place before it computes these, and uses it afterwards. It sees by
//! borrows that they leave the place alone, and those can get lost (rust-lang issues 161578, 160599, 161852, 160525;
//! the audit checks those). Here, by syntax alone, they may compare and call, and little else: no assignment, no
//! `&mut`, no jump, no loop, no `.await`, no macro that panics.

use syn::Expr;

use super::rules;
use super::scope::GuardContext;
use super::syntax::{is_compound_assignment, is_one_of, name};
use super::walk::SyntaxWalk;

/// Macros that end the extension.
const ENDING: [&str; 10] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "panic",
    "todo",
    "unimplemented",
    "unreachable",
];

/// Macros that change their first argument.
const WRITING: [&str; 2] = ["write", "writeln"];

impl SyntaxWalk<'_> {
    /// Walks through a guard, or an index of an index.
    pub(super) fn walk_guard(&mut self, guard: &Expr) {
        self.with_guard_context(GuardContext::Guard, |walk| syn::visit::Visit::visit_expr(walk, guard));
    }

    pub(super) fn with_guard_context(&mut self, within: GuardContext, inside: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.guard, within);
        inside(self);
        self.guard = before;
    }

    /// Refuses expressions that are not allowed in a guard.
    pub(super) fn check_in_guard(&mut self, expression: &Expr) {
        let inside = match self.guard {
            GuardContext::Code => return,
            GuardContext::Guard => true,
            GuardContext::Closure => false,
        };
        let what = match expression {
            Expr::Assign(_) => "an assignment",
            Expr::Binary(pair) if is_compound_assignment(&pair.op) => "an assignment",
            Expr::Reference(found) if found.mutability.is_some() => "`&mut`",
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) if inside => "a jump",
            Expr::Try(_) if inside => "`?`",
            Expr::Await(_) if inside => "`.await`",
            Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) if inside => "a loop",
            _ => return,
        };
        self.refuse(&rules::GUARD, expression, what);
    }

    /// Refuses macros that are not allowed in a guard.
    pub(super) fn check_macro_in_guard(&mut self, found: &syn::Macro) {
        let last = found.path.segments.last().map(|segment| name(&segment.ident)).unwrap_or_default();
        let wrong = match self.guard {
            GuardContext::Code => false,
            GuardContext::Guard => is_one_of(&ENDING, &last) || is_one_of(&WRITING, &last),
            GuardContext::Closure => is_one_of(&WRITING, &last),
        };
        if wrong {
            self.refuse(&rules::GUARD, &found.path, format!("`{last}!`"));
        }
    }
}
