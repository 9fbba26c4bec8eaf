//! Finds operations that are thrown away before they were awaited: `let _ = db.put(…);`.
//!
//! The compiler refuses `db.put(…);`, whose future is unused. `let _ =` says that it is meant, which is right for a
//! result and never for a future, so the checker refuses that. It knows types by what the source says: a parameter, a
//! field or a variable is a `Db` or a `Transaction`, and the source's own functions are `async` or not.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Pat, Stmt, Type};

use super::syntax::{is_for_tests, is_one_of, name};

/// Methods of `Db` that do nothing until they are awaited.
const DB: [&str; 16] = [
    "call",
    "call_typed",
    "count",
    "delete",
    "delete_many",
    "delete_range",
    "get",
    "get_many",
    "increment",
    "nth",
    "put",
    "put_many",
    "range",
    "range_keys",
    "rank",
    "touch",
];

/// Such methods of `Db` beside those, which other types do not have.
const DB_FURTHER: [&str; 1] = ["ttl"];

/// Methods of `Transaction` that do nothing until they are awaited. `put` and `put_with` are no futures.
const TRANSACTION: [&str; 8] = ["count", "delete", "get", "get_many", "increment", "nth", "range", "rank"];

/// What a name stands for.
#[derive(Clone, Copy, PartialEq)]
enum NameKind {
    Db,
    Transaction,
    /// A type of this file.
    Own,
    Other,
}

/// What a file has to do with futures that are never awaited.
#[derive(Default)]
pub(super) struct UnawaitedFutures {
    /// Futures of the extension API that are thrown away: their places, and what was called.
    pub(super) certain: Vec<(Range<usize>, String)>,
    /// Calls of functions by name, thrown away: refused if all functions of that name are `async`.
    pub(super) by_name: Vec<(Range<usize>, String)>,
    /// Names of the file's `async` functions, and of its others.
    pub(super) async_names: HashSet<String>,
    pub(super) other_names: HashSet<String>,
}

/// Looks through a file.
pub(super) fn find(file: &syn::File) -> UnawaitedFutures {
    let own = file.items.iter().filter_map(|item| match item {
        syn::Item::Struct(item) => Some(name(&item.ident)),
        syn::Item::Enum(item) => Some(name(&item.ident)),
        _ => None,
    });
    let (own, fields) = (own.collect(), HashMap::new());
    let mut search = AwaitSearch { found: UnawaitedFutures::default(), scopes: Vec::new(), own, fields };
    // Fields may be declared behind the code that uses them.
    for item in &file.items {
        if let syn::Item::Struct(item) = item {
            for field in &item.fields {
                if let (Some(ident), known) = (&field.ident, search.of_type(&field.ty)) {
                    search.fields.insert(name(ident), known);
                }
            }
        }
    }
    search.visit_file(file);
    search.found
}

struct AwaitSearch {
    found: UnawaitedFutures,
    /// Names of parameters and variables by function, innermost last.
    scopes: Vec<HashMap<String, NameKind>>,
    /// The file's types.
    own: HashSet<String>,
    /// What the fields of these are.
    fields: HashMap<String, NameKind>,
}

impl AwaitSearch {
    fn of_type(&self, found: &Type) -> NameKind {
        match found {
            Type::Reference(reference) => self.of_type(&reference.elem),
            Type::Paren(inner) => self.of_type(&inner.elem),
            Type::Path(path) => match path.path.segments.last().map(|segment| name(&segment.ident)).as_deref() {
                Some("Db") => NameKind::Db,
                Some("Transaction") => NameKind::Transaction,
                Some(other) if self.own.contains(other) => NameKind::Own,
                _ => NameKind::Other,
            },
            _ => NameKind::Other,
        }
    }

    /// What an expression is.
    fn of_expression(&self, found: &Expr) -> NameKind {
        match found {
            Expr::Path(path) if path.path.is_ident("self") => NameKind::Own,
            Expr::Struct(made) => self.of_owner(made.path.segments.iter().rev()),
            Expr::Call(call) => match &*call.func {
                // `Shop::open(…)`; what it gives is taken for a `Shop`.
                Expr::Path(path) => self.of_owner(path.path.segments.iter().rev().skip(1)),
                _ => NameKind::Other,
            },
            Expr::Path(path) => path.path.get_ident().map(name).map_or(NameKind::Other, |one| {
                self.scopes.iter().rev().find_map(|scope| scope.get(&one)).copied().unwrap_or(NameKind::Other)
            }),
            Expr::Field(field) => match &field.member {
                syn::Member::Named(ident) => self.fields.get(&name(ident)).copied().unwrap_or(NameKind::Other),
                syn::Member::Unnamed(_) => NameKind::Other,
            },
            Expr::Reference(inner) => self.of_expression(&inner.expr),
            Expr::Paren(inner) => self.of_expression(&inner.expr),
            Expr::MethodCall(call) => match (self.of_expression(&call.receiver), name(&call.method).as_str()) {
                (NameKind::Db, "transaction") => NameKind::Transaction,
                (known, "clone") => known,
                _ => NameKind::Other,
            },
            _ => NameKind::Other,
        }
    }

    /// Whether a path's first segment of these is a type of the file.
    fn of_owner<'p>(&self, mut segments: impl Iterator<Item = &'p syn::PathSegment>) -> NameKind {
        let owner = segments.next().map(|segment| name(&segment.ident));
        owner.filter(|one| one == "Self" || self.own.contains(one)).map_or(NameKind::Other, |_| NameKind::Own)
    }

    /// Notes an expression whose value is unused.
    fn check(&mut self, thrown_away: &Expr) {
        let at = thrown_away.span().byte_range();
        match thrown_away {
            Expr::Paren(inner) => self.check(&inner.expr),
            Expr::Async(_) => self.found.certain.push((at, "an `async` block".to_owned())),
            Expr::MethodCall(call) => {
                let method = name(&call.method);
                let future = match self.of_expression(&call.receiver) {
                    NameKind::Db => is_one_of(&DB, &method) || is_one_of(&DB_FURTHER, &method),
                    NameKind::Transaction => is_one_of(&TRANSACTION, &method),
                    NameKind::Own => return self.found.by_name.push((at, method)),
                    // `db.put(…).if_absent()` is the same put.
                    NameKind::Other => return self.check_option(call, &method),
                };
                if future {
                    self.found.certain.push((at, format!("`{method}`")));
                }
            }
            Expr::Call(call) => {
                if let Expr::Path(path) = &*call.func
                    && let Some(last) = path.path.segments.last()
                {
                    let one = name(&last.ident);
                    // Functions of other crates' types have the same names as own ones.
                    let is_own = path.path.segments.len() == 1
                        || path.path.segments.first().is_some_and(|first| self.is_inside(&name(&first.ident)));
                    if one == "yield_now" {
                        self.found.certain.push((at, "`yield_now`".to_owned()));
                    } else if is_own {
                        self.found.by_name.push((at, one));
                    }
                }
            }
            _ => {}
        }
    }

    fn check_option(&mut self, call: &syn::ExprMethodCall, method: &str) {
        if matches!(&*call.receiver, Expr::MethodCall(_)) && is_an_option(method) {
            self.check(&call.receiver);
        }
    }

    /// Whether a path that begins so stays in the source.
    fn is_inside(&self, first: &str) -> bool {
        is_one_of(&["Self", "self", "crate", "super"], first) || self.own.contains(first)
    }

    fn note_pattern(&mut self, pattern: &Pat, known: NameKind) {
        if let (Pat::Ident(one), Some(scope)) = (pattern, self.scopes.last_mut()) {
            scope.insert(name(&one.ident), known);
        }
    }

    fn note_local(&mut self, local: &syn::Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        match (&local.pat, value) {
            (Pat::Type(typed), _) => self.note_pattern(&typed.pat, self.of_type(&typed.ty)),
            (Pat::Tuple(names), Some(Expr::Tuple(values))) if names.elems.len() == values.elems.len() => {
                for (one, value) in names.elems.iter().zip(&values.elems) {
                    let known = self.of_expression(value);
                    self.note_pattern(one, known);
                }
            }
            (pattern, Some(value)) => {
                let known = self.of_expression(value);
                self.note_pattern(pattern, known);
            }
            (pattern, None) => self.note_pattern(pattern, NameKind::Other),
        }
    }

    fn in_function(&mut self, signature: Option<&syn::Signature>, inside: impl FnOnce(&mut Self)) {
        let mut scope = HashMap::new();
        if let Some(signature) = signature {
            let names =
                if signature.asyncness.is_some() { &mut self.found.async_names } else { &mut self.found.other_names };
            names.insert(name(&signature.ident));
            for input in &signature.inputs {
                if let syn::FnArg::Typed(typed) = input
                    && let Pat::Ident(one) = &*typed.pat
                {
                    scope.insert(name(&one.ident), self.of_type(&typed.ty));
                }
            }
        }
        self.scopes.push(scope);
        inside(self);
        self.scopes.pop();
    }
}

/// Whether a method sets an option of an operation and returns the operation.
fn is_an_option(method: &str) -> bool {
    is_one_of(&["if_absent", "if_present", "if_version", "if_value", "flags", "expires_in_ms"], method)
}

/// Whether a pattern takes a value and leaves it: `_`, or a name that begins with one and is not used later.
fn throws_away(pattern: &Pat, after: &[Stmt]) -> bool {
    match pattern {
        Pat::Wild(_) => true,
        Pat::Type(typed) => throws_away(&typed.pat, after),
        Pat::Ident(one) if name(&one.ident).starts_with('_') => {
            let mut uses = NameUses { name: name(&one.ident), found: false };
            after.iter().for_each(|statement| uses.visit_stmt(statement));
            !uses.found
        }
        _ => false,
    }
}

/// Looks for a name. In a macro's arguments, which are no syntax tree, every word counts.
struct NameUses {
    name: String,
    found: bool,
}

impl<'ast> Visit<'ast> for NameUses {
    fn visit_ident(&mut self, ident: &'ast proc_macro2::Ident) {
        self.found |= name(ident) == self.name;
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        self.found |= found.tokens.to_string().contains(&self.name);
    }
}

impl<'ast> Visit<'ast> for AwaitSearch {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.in_function(Some(&item.sig), |search| visit::visit_item_fn(search, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.in_function(Some(&item.sig), |search| visit::visit_impl_item_fn(search, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.in_function(Some(&item.sig), |search| visit::visit_trait_item_fn(search, item));
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.in_function(None, |search| {
            for (index, statement) in block.stmts.iter().enumerate() {
                match statement {
                    Stmt::Local(local) => {
                        let value = local.init.as_ref().map(|init| &*init.expr);
                        if let Some(value) = value.filter(|_| throws_away(&local.pat, &block.stmts[index + 1..])) {
                            search.check(value);
                        }
                        visit::visit_stmt(search, statement);
                        search.note_local(local);
                    }
                    _ => visit::visit_stmt(search, statement),
                }
            }
        });
    }

    fn visit_expr_assign(&mut self, found: &'ast syn::ExprAssign) {
        if matches!(*found.left, Expr::Infer(_)) {
            self.check(&found.right);
        }
        visit::visit_expr_assign(self, found);
    }

    fn visit_expr_call(&mut self, found: &'ast syn::ExprCall) {
        if let (Expr::Path(path), Some(first), 1) = (&*found.func, found.args.first(), found.args.len())
            && path.path.segments.last().is_some_and(|last| name(&last.ident) == "drop")
        {
            self.check(first);
        }
        visit::visit_expr_call(self, found);
    }
}
