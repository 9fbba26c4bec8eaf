//! Refuses shapes of types, traits and signatures that the known soundness holes of safe Rust need.

use std::collections::HashSet;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Token, Type, TypeParamBound};

use super::syntax::{is_one_of, name};
use super::walk::SyntaxWalk;
use super::{lists, rules};

impl SyntaxWalk<'_> {
    /// Runs a function with an item's type parameters in scope.
    pub(super) fn with_generics(&mut self, generics: &syn::Generics, mut inside: impl FnMut(&mut Self)) {
        let lifetimes = generics.lifetimes().count();
        self.type_parameters.push(generics.type_params().map(|parameter| name(&parameter.ident)).collect());
        self.lifetimes += lifetimes;
        inside(self);
        self.lifetimes -= lifetimes;
        self.type_parameters.pop();
    }

    /// Runs a function inside of a trait, where `Self` is a type parameter.
    pub(super) fn with_self(&mut self, inside: impl FnOnce(&mut Self)) {
        self.type_parameters.push(vec!["Self".to_owned()]);
        inside(self);
        self.type_parameters.pop();
    }

    pub(super) fn is_type_parameter(&self, text: &str) -> bool {
        self.type_parameters.iter().flatten().any(|parameter| parameter == text)
    }

    /// A trait of the tenant's own: no parameters, no associated types, no well-known name.
    pub(super) fn check_trait(&mut self, item: &syn::ItemTrait) {
        self.names.others.insert(name(&item.ident));
        if item.unsafety.is_some() {
            self.refuse(&rules::UNSAFE, &item.unsafety, "");
        }
        if item.modifiers.require_empty().is_err() {
            self.refuse(&rules::SPECIAL, &item.ident, "an unstable kind of trait");
        }
        let own = name(&item.ident);
        if super::syntax::is_known_trait(&own) {
            self.refuse(&rules::TRAIT_NAME, &item.ident, "");
        }
        if let Some(parameter) = item.generics.params.first() {
            self.refuse(&rules::GENERIC_TRAIT, parameter, "");
        }
        for inside in &item.items {
            if let syn::TraitItem::Type(found) = inside {
                self.refuse(&rules::GENERIC_TRAIT, &found.ident, "");
            }
        }
        self.check_outlives(&item.supertraits);
    }

    pub(super) fn check_impl(&mut self, item: &syn::ItemImpl) {
        if item.unsafety.is_some() {
            self.refuse(&rules::UNSAFE, &item.unsafety, "");
        }
        if item.modifiers.require_empty().is_err() {
            self.refuse(&rules::SPECIAL, &item.impl_token, "an unstable kind of implementation");
        }
        // Operators may be implemented for a reference to a named type, too.
        let target = match &*item.self_ty {
            Type::Reference(reference) if item.trait_.is_some() && matches!(&*reference.elem, Type::Path(_)) => {
                &reference.elem
            }
            other => other,
        };
        if !self.is_named_type(target) {
            self.refuse(&rules::IMPL_TARGET, &*item.self_ty, "");
        }
        self.check_impl_head(item);
        self.check_into_types(item);
    }

    /// Returns whether a type is spelled by name, or made of such: no reference, no projection, no parameter on its
    /// own.
    fn is_named_type(&self, found: &Type) -> bool {
        match found {
            Type::Path(path) => {
                let first = path.path.segments.first().map(|segment| name(&segment.ident)).unwrap_or_default();
                path.qself.is_none() && first != "Self" && !self.is_type_parameter(&first)
            }
            Type::Slice(slice) => self.is_named_type(&slice.elem),
            Type::Array(array) => self.is_named_type(&array.elem),
            Type::Tuple(tuple) => tuple.elems.iter().all(|element| self.is_named_type(element)),
            Type::Paren(inside) => self.is_named_type(&inside.elem),
            Type::Group(inside) => self.is_named_type(&inside.elem),
            _ => false,
        }
    }

    pub(super) fn check_object(&mut self, object: &syn::TypeTraitObject) {
        for bound in &object.bounds {
            if let TypeParamBound::Trait(found) = bound {
                let last = found.path.segments.last().map(|segment| name(&segment.ident)).unwrap_or_default();
                match found.path.get_ident() {
                    _ if is_one_of(&lists::DYN, &last) => {}
                    // It may be such a trait by another name: that shows when all files are read.
                    Some(_) if !self.test => {
                        self.names.objects.push((last, syn::spanned::Spanned::span(&found.path).byte_range()));
                    }
                    _ => self.refuse(&rules::DYN, &found.path, ""),
                }
            }
        }
    }

    /// Refuses `T: 'a` and the like.
    pub(super) fn check_outlives(&mut self, bounds: &Punctuated<TypeParamBound, Token![+]>) {
        for bound in bounds {
            if let TypeParamBound::Lifetime(lifetime) = bound {
                self.refuse(&rules::OUTLIVES, lifetime, "");
            }
        }
    }

    pub(super) fn check_predicate(&mut self, predicate: &syn::PredicateType) {
        self.check_outlives(&predicate.bounds);
        let parameter = match &predicate.bounded_ty {
            Type::Path(path) => {
                let first = path.path.segments.first().map(|segment| name(&segment.ident)).unwrap_or_default();
                path.qself.is_none() && (first == "Self" || self.is_type_parameter(&first))
            }
            _ => false,
        };
        if matches!(&predicate.bounded_ty, Type::Path(path) if path.path.segments.len() > 1) {
            self.check_associated_bounds(&predicate.bounds);
        }
        if !parameter {
            self.refuse(&rules::WHERE, &predicate.bounded_ty, "");
        }
    }

    /// Refuses `<A as B>::C` as a type, unless `A` is a parameter. For any other type its well-formedness can be
    /// assumed in one item and never be checked in another.
    pub(super) fn check_projection(&mut self, found: &syn::TypePath) {
        let Some(qself) = &found.qself else { return };
        let first = match &*qself.ty {
            Type::Path(inside) if inside.qself.is_none() => inside.path.segments.first(),
            _ => None,
        };
        let first = first.map(|segment| name(&segment.ident)).unwrap_or_default();
        if first != "Self" && !self.is_type_parameter(&first) {
            self.refuse(&rules::PROJECTION, found, "");
        }
    }

    pub(super) fn check_signature(&mut self, signature: &syn::Signature) {
        if let Some(variadic) = &signature.variadic {
            self.refuse(&rules::EXTERN, variadic, "");
        }
        self.check_projections_of(signature);
        self.check_nested_lifetimes(signature);
    }

    fn check_nested_lifetimes(&mut self, signature: &syn::Signature) {
        // A lifetime with a bound in the parameter list or a where clause belongs to the function's type. It cannot be
        // chosen anew when that type is converted, so it is safe.
        let free: HashSet<String> = signature
            .generics
            .lifetimes()
            .filter(|parameter| parameter.bounds.is_empty())
            .map(|parameter| name(&parameter.lifetime.ident))
            .collect();
        let bounded = signature.generics.where_clause.iter().flat_map(|clause| &clause.predicates);
        let mut free = free;
        for predicate in bounded {
            if let syn::WherePredicate::Lifetime(found) = predicate {
                free.remove(&name(&found.lifetime.ident));
            }
        }
        let mut nested = NestedLifetimeFinder { free: &free, outer: Vec::new(), found: None };
        for input in &signature.inputs {
            match input {
                syn::FnArg::Typed(typed) => nested.visit_type(&typed.ty),
                syn::FnArg::Receiver(_) => {}
            }
        }
        nested.visit_return_type(&signature.output);
        if let Some(span) = nested.found {
            self.refuse(&rules::NESTED_LIFETIME, &span, "");
        }
    }
}

/// Finds a reference with a named, free lifetime around another lifetime that is free, and `'static` around any other.
struct NestedLifetimeFinder<'a> {
    free: &'a HashSet<String>,
    /// Named free lifetimes of the enclosing references.
    outer: Vec<String>,
    found: Option<proc_macro2::Span>,
}

impl<'ast> Visit<'ast> for NestedLifetimeFinder<'_> {
    fn visit_type_reference(&mut self, reference: &'ast syn::TypeReference) {
        if let Some(lifetime) = &reference.lifetime {
            self.visit_lifetime(lifetime);
        }
        let outer = reference.lifetime.as_ref().map(|lifetime| name(&lifetime.ident));
        if outer.is_none() && self.outer.iter().any(|outer| outer == "static") {
            self.found = self.found.or(Some(syn::spanned::Spanned::span(reference)));
        }
        let pushed = outer.filter(|outer| outer == "static" || self.free.contains(outer));
        let grows = pushed.is_some();
        self.outer.extend(pushed);
        self.visit_type(&reference.elem);
        if grows {
            self.outer.pop();
        }
    }

    fn visit_lifetime(&mut self, lifetime: &'ast syn::Lifetime) {
        let inner = name(&lifetime.ident);
        // Only `'static` data can be inside of `'static` data: no bound of the function's own says that.
        let wrong = |outer: &String| *outer != inner && (outer == "static" || self.free.contains(&inner));
        if self.outer.iter().any(wrong) && self.found.is_none() {
            self.found = Some(lifetime.span());
        }
        visit::visit_lifetime(self, lifetime);
    }

    fn visit_angle_bracketed_generic_arguments(&mut self, found: &'ast syn::AngleBracketedGenericArguments) {
        let is_static = |argument: &syn::GenericArgument| matches!(argument, syn::GenericArgument::Lifetime(lifetime) if lifetime.ident == "static");
        let count = self.outer.len();
        if found.args.iter().any(is_static) {
            self.outer.push("static".to_owned());
        }
        for argument in &found.args {
            if !matches!(argument, syn::GenericArgument::Lifetime(_)) {
                self.visit_generic_argument(argument);
            }
        }
        self.outer.truncate(count);
        for argument in &found.args {
            if matches!(argument, syn::GenericArgument::Lifetime(_)) {
                self.visit_generic_argument(argument);
            }
        }
    }
}
