//! Refuses jumps out of the arguments of a call.
//!
//! In `v.insert(match x { Some(x) => x, None => break })` the compiler borrows `v` before it computes the argument, and
//! counts the borrow from the call on. Where a jump leaves in between, it takes the borrow as ended in all that
//! follows, though the call may have been made (rust-lang issue 160598: use after free).

use syn::Expr;
use syn::visit::{self, Visit};

use super::rules;
use super::scope::{EnclosingScope, GuardContext};
use super::syntax::{is_compound_assignment, is_indexed, name};
use super::walk::SyntaxWalk;

fn label(label: Option<&syn::Label>) -> Option<String> {
    label.map(|label| name(&label.name.ident))
}

impl SyntaxWalk<'_> {
    /// Walks through an expression and notes the calls, loops and blocks around it.
    pub(super) fn walk_jumps(&mut self, expression: &Expr) {
        match expression {
            // Nothing is borrowed yet while the first operand is computed.
            Expr::Call(call) => {
                call.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_expr(&call.func);
                call.args.iter().take(1).for_each(|first| self.visit_expr(first));
                self.within(EnclosingScope::Arguments, |walk| {
                    call.args.iter().skip(1).for_each(|one| walk.visit_expr(one))
                });
            }
            Expr::Binary(pair) if is_compound_assignment(&pair.op) => {
                pair.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_expr(&pair.left);
                self.within(EnclosingScope::Arguments, |walk| walk.visit_expr(&pair.right));
            }
            Expr::MethodCall(call) => {
                self.check_function_name(&name(&call.method), &call.method);
                call.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_expr(&call.receiver);
                call.turbofish.iter().for_each(|types| self.visit_angle_bracketed_generic_arguments(types));
                self.within(EnclosingScope::Arguments, |walk| call.args.iter().for_each(|one| walk.visit_expr(one)));
            }
            Expr::Loop(found) => {
                self.within(EnclosingScope::Loop(label(found.label.as_ref())), |walk| {
                    visit::visit_expr(walk, expression)
                });
            }
            Expr::While(found) => {
                self.within(EnclosingScope::Loop(label(found.label.as_ref())), |walk| {
                    visit::visit_expr(walk, expression)
                });
            }
            // A jump out of the iterated expression of a `for` leaves the loop around it.
            Expr::ForLoop(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_expr(&found.expr);
                self.within(EnclosingScope::Loop(label(found.label.as_ref())), |walk| {
                    walk.visit_pat(&found.pat);
                    walk.visit_block(&found.body);
                });
            }
            Expr::Block(found) => match label(found.label.as_ref()) {
                Some(label) => self.within(EnclosingScope::Block(label), |walk| visit::visit_expr(walk, expression)),
                None => visit::visit_expr(self, expression),
            },
            Expr::Break(found) => {
                self.check_jump(found.label.as_ref(), found);
                visit::visit_expr(self, expression);
            }
            Expr::Continue(found) => {
                self.check_jump(found.label.as_ref(), found);
                visit::visit_expr(self, expression);
            }
            Expr::Index(found) if is_indexed(&found.expr) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_expr(&found.expr);
                self.walk_guard(&found.index);
            }
            Expr::Closure(_) if self.guard != GuardContext::Code => {
                self.with_guard_context(GuardContext::Closure, |walk| visit::visit_expr(walk, expression));
            }
            _ => visit::visit_expr(self, expression),
        }
    }

    pub(super) fn within(&mut self, around: EnclosingScope, inside: impl FnOnce(&mut Self)) {
        self.around.push(around);
        inside(self);
        self.around.pop();
    }

    fn check_jump(&mut self, to: Option<&syn::Lifetime>, at: &impl syn::spanned::Spanned) {
        let to = to.map(|to| name(&to.ident));
        let is_target = |around: &&EnclosingScope| match around {
            EnclosingScope::Arguments => false,
            EnclosingScope::Loop(label) => to.is_none() || *label == to,
            EnclosingScope::Block(label) => to.as_ref() == Some(label),
        };
        let behind = self.around.iter().rev().take_while(|around| !is_target(around));
        if behind.filter(|around| matches!(around, EnclosingScope::Arguments)).count() > 0 {
            self.refuse(&rules::JUMP, at, "");
        }
    }
}
