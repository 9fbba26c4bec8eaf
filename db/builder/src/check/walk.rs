//! Walks a file's syntax tree and notes what the rules refuse.

use std::collections::HashSet;
use std::ops::Range;

use sandstorm_net::CodeTier;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Item, TypeParamBound};

use super::names::{TypeDeclarations, UncertainType};
use super::rules::{self, Rule};
use super::scope::{EnclosingScope, GuardContext};
use super::syntax::{attributes_of, is_known_trait, is_one_of, name, only_for_tests};
use super::{ModuleDeclaration, RuleViolation, advice, lists};

pub(super) struct SyntaxWalk<'a> {
    /// The tier whose rules are applied.
    pub(super) tier: CodeTier,
    libraries: &'a [String],
    is_root: bool,
    /// Whether this file has only tests: nothing is refused.
    pub(super) test: bool,
    /// Names of the enclosing inline modules.
    modules: Vec<String>,
    /// Type parameters in scope, innermost last.
    pub(super) type_parameters: Vec<Vec<String>>,
    /// Enclosing calls, loops and blocks, innermost last.
    pub(super) around: Vec<EnclosingScope>,
    /// Whether the current expression is in a guard.
    pub(super) guard: GuardContext,
    /// Whether the current expression is in a macro's arguments.
    pub(super) in_macro: bool,
    /// Number of lifetimes in scope.
    pub(super) lifetimes: usize,
    files: Vec<ModuleDeclaration>,
    refused: Vec<RuleViolation>,
    /// Names of traits, for `dyn`.
    pub(super) names: TraitNames,
}

/// The uses in a file of names that may be traits'.
#[derive(Default)]
pub(super) struct TraitNames {
    /// `dyn E`: names of no well-known trait, and their positions.
    pub(super) objects: Vec<(String, Range<usize>)>,
    /// `use core::error::Error as E`: other names of well-known traits of core.
    pub(super) renamed: HashSet<String>,
    /// Traits of the tenant's own, and all other imported or renamed names.
    pub(super) others: HashSet<String>,
    /// The declarations of type names, and the types that must hide no lifetime.
    pub(super) types: TypeDeclarations,
    pub(super) uncertain: Vec<UncertainType>,
    /// All type parameters.
    pub(super) parameters: HashSet<String>,
    /// Macros of the tenant's own.
    pub(super) macros: HashSet<String>,
    /// Names of called macros that must be among those, and their positions.
    pub(super) called: Vec<(String, Range<usize>)>,
    /// What is thrown away before it was awaited.
    pub(super) unawaited: super::awaits::UnawaitedFutures,
}

impl<'a> SyntaxWalk<'a> {
    pub(super) fn new(tier: CodeTier, libraries: &'a [String], is_root: bool, test: bool) -> SyntaxWalk<'a> {
        let (modules, type_parameters) = (Vec::new(), Vec::new());
        SyntaxWalk {
            tier,
            libraries,
            is_root,
            test,
            modules,
            type_parameters,
            around: Vec::new(),
            guard: GuardContext::Code,
            in_macro: false,
            lifetimes: 0,
            files: Vec::new(),
            refused: Vec::new(),
            names: TraitNames::default(),
        }
    }

    pub(super) fn finish(self) -> (Vec<RuleViolation>, Vec<ModuleDeclaration>, TraitNames) {
        (self.refused, self.files, self.names)
    }

    pub(super) fn refuse(&mut self, rule: &'static Rule, at: &impl Spanned, remark: impl Into<String>) {
        self.refuse_bytes(rule, at.span().byte_range(), remark.into());
    }

    fn refuse_bytes(&mut self, rule: &'static Rule, span: Range<usize>, remark: String) {
        if !self.test && rule.applies(self.tier) {
            self.refused.push(RuleViolation { rule, span, remark });
        }
    }

    pub(super) fn file(&mut self, file: &syn::File) {
        if let Some(shebang) = &file.shebang {
            self.refuse_bytes(&rules::SPECIAL, 0..shebang.len(), "a first line for a shell".to_owned());
        }
        if self.is_root && !file.attrs.iter().any(|attribute| attribute.path().is_ident("no_std")) {
            self.refuse_bytes(&rules::NO_STD, 0..1, String::new());
        }
        self.visit_file(file);
    }

    /// Items for tests alone do not declare names.
    fn declare(&mut self, ident: &syn::Ident, generics: &syn::Generics) {
        if !self.test {
            self.names.types.declare(ident, generics.lifetimes().next().is_none());
        }
    }

    /// Returns whether this is a source of the sandboxed tier.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.tier == CodeTier::Sandboxed
    }

    /// Returns whether a name is in the list of both tiers, or in that of the sandboxed tier and this is it.
    pub(super) fn is_listed(&self, list: &[&str], sandboxed: &[&str], text: &str) -> bool {
        is_one_of(list, text) || (self.is_sandboxed() && is_one_of(sandboxed, text))
    }

    /// Returns whether a path's first name is a crate's.
    pub(super) fn is_crate(&self, first: &str) -> bool {
        is_one_of(&lists::CRATES, first) || self.libraries.iter().any(|library| library == first)
    }

    /// Checks a path through a crate: first and second name.
    fn check_crate_path(&mut self, first: &str, second: Option<&str>, at: &impl Spanned) {
        let open = match (first, second) {
            ("std" | "proc_macro" | "test", second) => {
                self.refuse(&rules::STD, at, second.map_or("", advice::instead_of_std));
                return;
            }
            ("core", Some(second)) => {
                self.is_listed(&lists::CORE, &lists::SANDBOXED_CORE, second) || is_one_of(&lists::MACROS, second)
            }
            ("alloc", Some(second)) => self.is_listed(&lists::ALLOC, &lists::SANDBOXED_ALLOC, second),
            ("sandstorm_api", Some(second)) => !is_one_of(&lists::API_HIDDEN, second) && second != "*",
            _ => true,
        };
        if !open {
            self.refuse(&rules::PATH, at, format!("`{first}::{}`", second.unwrap_or("*")));
        }
    }

    /// Checks for functions that return addresses, or a reference or type that the compiler cannot vouch for.
    pub(super) fn check_function_name(&mut self, function: &str, at: &impl Spanned) {
        if is_one_of(&lists::ADDRESSES, function) {
            self.refuse(&rules::ADDRESS, at, format!("`{function}`"));
        } else if is_one_of(&lists::ERASING, function) {
            self.refuse(&rules::ERASED, at, format!("`{function}` forgets how long a value lives"));
        }
    }

    fn check_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(name(&path.ident));
                if let [.., first, second] = before.as_slice() {
                    let (first, second) = (first.clone(), second.clone());
                    self.check_crate_path(&first, Some(&second), &path.ident);
                } else if let [first] = before.as_slice()
                    && first == "std"
                {
                    self.refuse(&rules::STD, &path.ident, "");
                }
                self.check_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(used) => self.check_used(before, &used.ident, None),
            syn::UseTree::Rename(used) => self.check_used(before, &used.ident, Some(&used.rename)),
            syn::UseTree::Glob(glob) => {
                self.names.types.glob(before);
                if let Some(first) = before.last()
                    && is_one_of(&lists::CRATES, first)
                {
                    self.refuse(&rules::IMPORT, glob, "name what you import, or use the API's prelude");
                }
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.check_use(tree, before);
                }
            }
        }
    }

    fn check_used(&mut self, before: &[String], ident: &syn::Ident, rename: Option<&syn::Ident>) {
        let used = name(ident);
        let known = matches!(before, [first, _, ..] if is_one_of(&["alloc", "core"], first));
        self.names.types.import(before, &used, &rename.map_or_else(|| used.clone(), name));
        match rename.map(name) {
            Some(renamed) if known && is_one_of(&lists::DYN, &used) => self.names.renamed.insert(renamed),
            renamed => self.names.others.insert(renamed.unwrap_or_else(|| used.clone())),
        };
        match before {
            [] if used == "std" => self.refuse(&rules::STD, ident, ""),
            [] if self.is_crate(&used) => self.refuse(&rules::IMPORT, ident, "crates keep their names"),
            [.., first] if used == "self" && self.is_crate(first) => {
                self.refuse(&rules::IMPORT, ident, "crates keep their names");
            }
            [_, ..] if rename.is_some() && self.is_crate(&used) => {
                self.refuse(&rules::IMPORT, ident, "crates keep their names");
            }
            [.., first] => {
                let first = first.clone();
                self.check_crate_path(&first, Some(&used), ident);
            }
            _ => {}
        }
        if is_one_of(&lists::NEVER_IMPORTED, &used) && before.first().is_some_and(|first| self.is_crate(first)) {
            self.refuse(&rules::IMPORT, ident, "this macro is not allowed");
        }
        if rename.is_some() && !self.is_sandboxed() && is_one_of(&lists::KNOWN, &used) {
            self.refuse(&rules::IMPORT, ident, "this name is looked for by the checker and must stay");
        }
        if let Some(rename) = rename {
            let renamed = name(rename);
            // In both tiers: what passes in the native one passes in the other.
            let reserved = is_one_of(&lists::MACROS, &renamed)
                || is_one_of(&lists::SANDBOXED_MACROS, &renamed)
                || (!self.is_sandboxed() && is_known_trait(&renamed))
                || self.is_crate(&renamed)
                || renamed == "std"
                || renamed == lists::TYPED;
            if reserved {
                self.refuse(&rules::IMPORT, rename, "this name is taken");
            }
        }
    }
}

/// The nodes that the rules look at; all other nodes are walked through.
impl<'ast> Visit<'ast> for SyntaxWalk<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.in_macro {
            self.refuse(&rules::MACRO_BODY, item, "no items: put them before it");
        }
        let before = self.test;
        self.test |= only_for_tests(attributes_of(item));
        match item {
            Item::Static(found) => {
                self.refuse(&rules::STATIC, &found.static_token, "");
                visit::visit_item(self, item);
            }
            Item::Union(found) => self.refuse(&rules::UNION, &found.union_token, ""),
            Item::ForeignMod(found) => self.refuse(&rules::EXTERN, &found.abi, ""),
            Item::Macro(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                if found.ident.is_some() || found.mac.path.is_ident("macro_rules") {
                    self.check_definition(found.ident.as_ref(), &found.mac);
                } else {
                    self.check_item_macro(&found.mac);
                }
            }
            Item::TraitAlias(found) => self.refuse(&rules::SPECIAL, &found.trait_token, "a trait alias"),
            Item::Verbatim(found) => self.refuse(&rules::SPECIAL, found, ""),
            _ => visit::visit_item(self, item),
        }
        self.test = before;
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        if name(&item.ident) != "alloc" || item.rename.is_some() {
            self.refuse(&rules::EXTERN_CRATE, item, "");
        }
        visit::visit_item_extern_crate(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        self.check_use(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.unsafety.is_some() {
            self.refuse(&rules::UNSAFE, &item.unsafety, "");
        }
        self.modules.push(name(&item.ident));
        if item.content.is_none() {
            let span = item.span().byte_range();
            self.files.push(ModuleDeclaration { path: self.modules.clone(), span, test: self.test });
        }
        visit::visit_item_mod(self, item);
        self.modules.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.check_trait(item);
        self.with_self(|walk| walk.with_generics(&item.generics, |walk| visit::visit_item_trait(walk, item)));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.with_generics(&item.generics, |walk| {
            walk.check_impl(item);
            walk.check_impl_parameters(item);
            visit::visit_item_impl(walk, item);
        });
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.declare(&item.ident, &item.generics);
        self.with_generics(&item.generics, |walk| {
            item.fields.iter().for_each(|field| walk.check_field(&field.ty, &item.generics));
            visit::visit_item_struct(walk, item);
        });
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.with_generics(&item.generics, |walk| {
            walk.check_no_projection(&item.ty, "an alias would hide it");
            walk.check_buffered_items(&item.ty, None);
            walk.check_alias(item);
            visit::visit_item_type(walk, item);
        });
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.declare(&item.ident, &item.generics);
        self.with_generics(&item.generics, |walk| {
            let fields = item.variants.iter().flat_map(|variant| &variant.fields);
            fields.for_each(|field| walk.check_field(&field.ty, &item.generics));
            visit::visit_item_enum(walk, item);
        });
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.with_generics(&item.sig.generics, |walk| visit::visit_item_fn(walk, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        match item {
            syn::ImplItem::Macro(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.check_macro_for(&found.mac, "items");
            }
            syn::ImplItem::Verbatim(found) => self.refuse(&rules::SPECIAL, found, ""),
            syn::ImplItem::Fn(found) => {
                self.with_generics(&found.sig.generics, |walk| visit::visit_impl_item(walk, item));
            }
            syn::ImplItem::Type(found) => {
                self.check_associated(&found.ty);
                visit::visit_impl_item(self, item);
            }
            _ => visit::visit_impl_item(self, item),
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        match item {
            syn::TraitItem::Macro(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.check_macro_for(&found.mac, "items");
            }
            syn::TraitItem::Verbatim(found) => self.refuse(&rules::SPECIAL, found, ""),
            syn::TraitItem::Fn(found) => {
                self.with_generics(&found.sig.generics, |walk| {
                    walk.check_method_of_trait(&found.sig);
                    visit::visit_trait_item(walk, item);
                });
            }
            _ => visit::visit_trait_item(self, item),
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.check_signature(signature);
        visit::visit_signature(self, signature);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        self.check_attribute(attribute);
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        self.check_macro_in_guard(found);
        let before = std::mem::replace(&mut self.in_macro, true);
        self.check_macro(found);
        self.in_macro = before;
    }

    fn visit_stmt_macro(&mut self, found: &'ast syn::StmtMacro) {
        if found.mac.path.is_ident("macro_rules") {
            found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
            self.check_definition(None, &found.mac);
        } else {
            visit::visit_stmt_macro(self, found);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A crate's name may also come later: `crate::alloc::…`, after an `extern crate alloc;`.
        let names: Vec<String> = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        for (index, pair) in names.windows(2).enumerate() {
            if index == 0 || is_one_of(&lists::CRATES, &pair[0]) {
                self.check_crate_path(&pair[0], Some(&pair[1]), path);
            }
        }
        if let [_, .., last] = names.as_slice() {
            self.check_function_name(last, path);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_path(&mut self, found: &'ast syn::ExprPath) {
        // `<Vec<u8>>::leak` is a path of one name.
        if let Some(last) = found.path.segments.last().filter(|_| found.qself.is_some()) {
            self.check_function_name(&name(&last.ident), found);
        }
        visit::visit_expr_path(self, found);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        self.check_in_guard(expression);
        match expression {
            Expr::Unsafe(found) => self.refuse(&rules::UNSAFE, &found.unsafe_token, ""),
            Expr::RawAddr(found) => self.refuse(&rules::SPECIAL, found, "the address of a place"),
            Expr::TryBlock(_) | Expr::Yield(_) | Expr::Verbatim(_) => self.refuse(&rules::SPECIAL, expression, ""),
            _ => {
                if let Expr::Closure(closure) = expression {
                    self.check_closure(closure);
                }
                self.walk_jumps(expression);
            }
        }
    }

    fn visit_pat(&mut self, pattern: &'ast syn::Pat) {
        match pattern {
            syn::Pat::Verbatim(found) => self.refuse(&rules::SPECIAL, found, ""),
            syn::Pat::Macro(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.check_macro_for(&found.mac, "patterns");
            }
            syn::Pat::Guard(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.visit_pat(&found.pat);
                self.walk_guard(&found.guard);
            }
            _ => visit::visit_pat(self, pattern),
        }
    }

    fn visit_type(&mut self, found: &'ast syn::Type) {
        match found {
            syn::Type::FnPtr(pointer) => {
                self.refuse(&rules::FN_POINTER, pointer, "");
                if pointer.unsafety.is_some() {
                    self.refuse(&rules::UNSAFE, &pointer.unsafety, "");
                }
                visit::visit_type(self, found);
            }
            syn::Type::Ptr(pointer) => {
                self.refuse(&rules::RAW_POINTER, pointer, "");
                visit::visit_type(self, found);
            }
            syn::Type::Macro(found) => {
                found.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
                self.check_macro_for(&found.mac, "types");
            }
            syn::Type::Verbatim(found) => self.refuse(&rules::SPECIAL, found, ""),
            syn::Type::Path(path) => {
                self.check_projection(path);
                visit::visit_type(self, found);
            }
            syn::Type::TraitObject(object) => {
                self.check_object(object);
                visit::visit_type(self, found);
            }
            _ => visit::visit_type(self, found),
        }
    }

    fn visit_bound_lifetimes(&mut self, found: &'ast syn::BoundLifetimes) {
        self.refuse(&rules::FOR_LIFETIMES, found, "");
        visit::visit_bound_lifetimes(self, found);
    }

    fn visit_type_param(&mut self, parameter: &'ast syn::TypeParam) {
        self.names.parameters.insert(name(&parameter.ident));
        self.check_outlives(&parameter.bounds);
        visit::visit_type_param(self, parameter);
    }

    fn visit_predicate_type(&mut self, predicate: &'ast syn::PredicateType) {
        self.check_predicate(predicate);
        visit::visit_predicate_type(self, predicate);
    }

    fn visit_constraint(&mut self, constraint: &'ast syn::Constraint) {
        self.check_outlives(&constraint.bounds);
        self.check_associated_bounds(&constraint.bounds);
        visit::visit_constraint(self, constraint);
    }

    fn visit_type_impl_trait(&mut self, found: &'ast syn::TypeImplTrait) {
        for bound in &found.bounds {
            if let TypeParamBound::Lifetime(lifetime) = bound
                && lifetime.ident == "static"
            {
                self.refuse(&rules::OUTLIVES, lifetime, "");
            }
        }
        visit::visit_type_impl_trait(self, found);
    }

    fn visit_type_param_bound(&mut self, bound: &'ast TypeParamBound) {
        if let TypeParamBound::Verbatim(found) = bound {
            self.refuse(&rules::SPECIAL, found, "");
        }
        self.check_bound(bound);
        visit::visit_type_param_bound(self, bound);
    }

    fn visit_safety(&mut self, safety: &'ast syn::Safety) {
        match safety {
            syn::Safety::Unsafe(token) => self.refuse(&rules::UNSAFE, token, ""),
            syn::Safety::Safe(token) => self.refuse(&rules::EXTERN, token, ""),
            syn::Safety::Default => {}
        }
    }

    fn visit_abi(&mut self, abi: &'ast syn::Abi) {
        self.refuse(&rules::EXTERN, abi, "");
    }
}
