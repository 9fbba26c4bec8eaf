//! Checks associated types of type parameters, where they can hide how long a value lives.
//!
//! A closure's type does not show the lifetimes of the closure's result (rust-lang issue 84366). So `I: 'long` does not
//! mean `I::Item: 'long`, but the compiler concludes it. That does harm where `I::Item` is stored in a type that names
//! only `I`, or where a lifetime stands around `I::Item`. Both are refused, and `witnesses` refuses other code that
//! knows such a type. A parameter for the item's type says the same and is sound: `struct Pairs<T, I: Iterator<Item =
//! T>>`.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{GenericArgument, PathArguments, ReturnType, Type, TypeParamBound};

use super::syntax::{is_one_of, name};
use super::walk::SyntaxWalk;
use super::{lists, rules};

/// The treatment of references without a named lifetime.
#[derive(Clone, Copy, PartialEq)]
enum ElisionPolicy {
    /// As references with one: the function returns them.
    Counted,
    /// Ignored: the function only reads through them.
    Ignored,
}

impl SyntaxWalk<'_> {
    /// `T::Item` and `<T as Iterator>::Item`, for a type parameter or a trait's `Self`.
    fn is_projection(&self, path: &syn::TypePath) -> bool {
        let first = path.path.segments.first().map(|segment| name(&segment.ident)).unwrap_or_default();
        path.qself.is_some() || (path.path.segments.len() > 1 && self.is_type_parameter(&first))
    }

    /// The position of a projection anywhere in a type.
    fn projection_in(&self, kind: &Type) -> Option<Span> {
        let mut finder = ProjectionFinder { walk: self, elided: ElisionPolicy::Ignored, under: 1, found: None };
        finder.visit_type(kind);
        finder.found
    }

    fn projection_under_lifetime(&self, kind: &Type, elided: ElisionPolicy) -> Option<Span> {
        let mut finder = ProjectionFinder { walk: self, elided, under: 0, found: None };
        finder.visit_type(kind);
        finder.found
    }

    /// Fields, aliases and heads of implementations name no associated types.
    pub(super) fn check_no_projection(&mut self, kind: &Type, remark: &str) {
        if let Some(span) = self.projection_in(kind) {
            self.refuse(&rules::PROJECTION, &span, remark);
        }
    }

    /// Checks a field of a struct or enum. `Peekable<I>` and `Flatten<I>` store items, so there the item's type must be
    /// known as well.
    pub(super) fn check_field(&mut self, kind: &Type, generics: &syn::Generics) {
        self.check_no_projection(kind, "give the type a parameter for it");
        self.check_buffered_items(kind, Some(generics));
    }

    /// Refuses `Peekable<I>` or `Flatten<I>` for a parameter `I` whose bound does not name its items. It also refuses
    /// them for types that are made of parameters, since no bound names the items of those.
    pub(super) fn check_buffered_items(&mut self, kind: &Type, generics: Option<&syn::Generics>) {
        let mut kept = BufferedParameters { parameters: Vec::new() };
        kept.visit_type(kind);
        for (ident, alone) in kept.parameters {
            let parameter = name(&ident);
            let says_item = alone && generics.is_some_and(|generics| self.says_item(generics, &parameter));
            if self.is_type_parameter(&parameter) && !says_item {
                self.refuse(&rules::PROJECTION, &ident, "bound it by `Iterator<Item = …>`, which says what is kept");
            }
        }
    }

    /// Returns whether the parameter has a bound with `Item = …`, where that is not another's associated type.
    fn says_item(&self, generics: &syn::Generics, parameter: &str) -> bool {
        let says = |bounds: &syn::punctuated::Punctuated<TypeParamBound, syn::Token![+]>| {
            bounds.iter().any(|bound| {
                let TypeParamBound::Trait(bound) = bound else { return false };
                let Some(PathArguments::AngleBracketed(found)) = bound.path.segments.last().map(|last| &last.arguments)
                else {
                    return false;
                };
                found.args.iter().any(|one| {
                    matches!(one, GenericArgument::AssocType(is)
                        if name(&is.ident) == "Item" && self.projection_in(&is.ty).is_none())
                })
            })
        };
        let declared = generics.type_params().any(|found| name(&found.ident) == parameter && says(&found.bounds));
        declared
            || generics.where_clause.iter().flat_map(|clause| &clause.predicates).any(|predicate| {
                matches!(predicate, syn::WherePredicate::Type(found)
                    if matches!(&found.bounded_ty, Type::Path(path) if path.path.is_ident(parameter)) && says(&found.bounds))
            })
    }

    /// `flat_map` and `.await` store the type that an implementation says a type becomes, and name only the latter. So
    /// it may become only a type that is made of its own parameters.
    pub(super) fn check_into_types(&mut self, item: &syn::ItemImpl) {
        let mut own = IdentCollector(Vec::new());
        own.visit_type(&item.self_ty);
        let own: Vec<String> = own.0.iter().map(name).collect();
        for inside in &item.items {
            let syn::ImplItem::Type(found) = inside else { continue };
            if !is_one_of(&lists::BECOMES, &name(&found.ident)) {
                continue;
            }
            let mut foreign = ForeignParameterFinder { walk: self, own: &own, found: None };
            foreign.visit_type(&found.ty);
            if let Some(span) = foreign.found {
                self.refuse(&rules::PROJECTION, &span, "name a parameter of the type that this is implemented for");
            }
        }
    }

    pub(super) fn check_impl_head(&mut self, item: &syn::ItemImpl) {
        self.check_no_projection(&item.self_ty, "not in the head of an implementation");
        let Some((path, _)) = &item.trait_ else { return };
        for segment in &path.segments {
            let PathArguments::AngleBracketed(arguments) = &segment.arguments else { continue };
            for argument in &arguments.args {
                if let GenericArgument::Type(kind) = argument {
                    self.check_no_projection(kind, "not in the head of an implementation");
                }
            }
        }
        let last = path.segments.last().map(|segment| name(&segment.ident)).unwrap_or_default();
        if last == "ToOwned" {
            self.refuse(&rules::IMPL_TARGET, path, "`Cow` keeps what `ToOwned` only names: derive `Clone` instead");
        }
    }

    /// Checks the value of an implementation's associated type.
    pub(super) fn check_associated(&mut self, kind: &Type) {
        if let Some(span) = self.projection_under_lifetime(kind, ElisionPolicy::Counted) {
            self.refuse(&rules::PROJECTION, &span, "not behind a lifetime");
        }
        self.check_buffered_items(kind, None);
    }

    /// Checks the parameters and the result of a function.
    pub(super) fn check_projections_of(&mut self, signature: &syn::Signature) {
        let mut taken = None;
        for input in &signature.inputs {
            let syn::FnArg::Typed(typed) = input else { continue };
            if let Some(span) = self.projection_under_lifetime(&typed.ty, ElisionPolicy::Ignored) {
                self.refuse(&rules::PROJECTION, &span, "not behind a named lifetime");
            }
            taken = taken.or_else(|| self.projection_in_value(&typed.ty));
            if let Some(bound) = OpaqueTypeFinder::of(input).bound {
                self.refuse(&rules::OUTLIVES, &bound, "");
            }
        }
        let ReturnType::Type(_, output) = &signature.output else {
            return self.check_hidden(signature, taken, false);
        };
        if let Some(span) = self.projection_under_lifetime(output, ElisionPolicy::Counted) {
            self.refuse(&rules::PROJECTION, &span, "not behind a lifetime");
        }
        let mut opaque = OpaqueTypeFinder::default();
        opaque.visit_type(output);
        self.check_hidden(signature, taken, opaque.any);
        if let Some(span) = self.projection_in(output).filter(|_| opaque.any) {
            // A type hidden by `impl Trait` may contain a copy of the returned item.
            self.refuse(
                &rules::PROJECTION,
                &span,
                "not in what gives an `impl Trait`: `fn f<T, I: Iterator<Item = T>>`",
            );
        }
        let lifetimes = self.lifetimes + elided_lifetimes(signature);
        let generic = self.type_parameters.iter().any(|parameters| !parameters.is_empty())
            || signature.inputs.iter().any(|input| OpaqueTypeFinder::of(input).any);
        if let Some(bound) = opaque.bound.filter(|_| generic || lifetimes > 1) {
            let remark = "leave it out: `impl Trait` captures all that it needs";
            self.refuse(&rules::OUTLIVES, &bound, remark);
        }
        if let Some(list) = opaque.list.filter(|_| generic) {
            let remark = "a list of what is captured can leave out a lifetime that a parameter's items have";
            self.refuse(&rules::OUTLIVES, &list, remark);
        }
    }

    /// Finds a projection in the type of a value, except in the parameters and the result of an `impl Fn(…)`.
    fn projection_in_value(&self, kind: &Type) -> Option<Span> {
        match kind {
            Type::ImplTrait(_) => None,
            _ => self.projection_in(kind),
        }
    }

    /// A future or `impl Trait` names only its function's parameters, and would store its arguments.
    fn check_hidden(&mut self, signature: &syn::Signature, taken: Option<Span>, opaque: bool) {
        if let Some(span) = taken.filter(|_| opaque || signature.asyncness.is_some()) {
            self.refuse(&rules::PROJECTION, &span, "not in what an `async fn` or `-> impl Trait` takes");
        }
    }

    /// Checks a bound: `T: Trait<…>`, `impl Fn(…) -> …`.
    pub(super) fn check_bound(&mut self, bound: &TypeParamBound) {
        let TypeParamBound::Trait(bound) = bound else { return };
        for segment in &bound.path.segments {
            match &segment.arguments {
                PathArguments::None => {}
                PathArguments::AngleBracketed(arguments) => {
                    for argument in &arguments.args {
                        let kind = match argument {
                            GenericArgument::Type(kind) => kind,
                            GenericArgument::AssocType(is) => &is.ty,
                            _ => continue,
                        };
                        self.check_associated(kind);
                    }
                }
                PathArguments::Parenthesized(function) => self.check_function_bound(function),
            }
        }
    }

    fn check_function_bound(&mut self, function: &syn::ParenthesizedGenericArguments) {
        let (mut looked_at, mut taken) = (None, Vec::new());
        for input in function.inputs.iter().map(|input| &input.ty) {
            if let Some(span) = self.projection_under_lifetime(input, ElisionPolicy::Ignored) {
                self.refuse(&rules::PROJECTION, &span, "not behind a named lifetime");
            }
            looked_at = looked_at.or_else(|| self.projection_under_lifetime(input, ElisionPolicy::Counted));
            if self.projection_in(input).is_some() {
                taken.push(input);
            }
        }
        self.defer_inputs(&taken);
        let ReturnType::Type(_, output) = &function.output else { return };
        if let Some(span) = self.projection_under_lifetime(output, ElisionPolicy::Counted) {
            self.refuse(&rules::PROJECTION, &span, "not behind a lifetime");
        }
        let mut lifetimes = LifetimeCounter::default();
        lifetimes.visit_type(output);
        self.defer_result(output, looked_at.is_some());
        if let Some(span) = looked_at.filter(|_| lifetimes.count > 0) {
            self.refuse(&rules::PROJECTION, &span, "not where the function gives a reference");
        }
    }
}

/// Counts references without a named lifetime in a function's parameters.
fn elided_lifetimes(signature: &syn::Signature) -> usize {
    let mut lifetimes = LifetimeCounter::default();
    for input in &signature.inputs {
        lifetimes.visit_fn_arg(input);
    }
    lifetimes.elided
}

/// Finds a projection under a lifetime; `under` starts above 0 to find any.
struct ProjectionFinder<'w, 'a> {
    walk: &'w SyntaxWalk<'a>,
    elided: ElisionPolicy,
    under: usize,
    found: Option<Span>,
}

impl ProjectionFinder<'_, '_> {
    fn inside(&mut self, counts: bool, look: impl FnOnce(&mut Self)) {
        self.under += usize::from(counts);
        look(self);
        self.under -= usize::from(counts);
    }
}

impl<'ast> Visit<'ast> for ProjectionFinder<'_, '_> {
    fn visit_type_reference(&mut self, found: &'ast syn::TypeReference) {
        let counts = found.lifetime.is_some() || self.elided == ElisionPolicy::Counted;
        self.inside(counts, |finder| finder.visit_type(&found.elem));
    }

    fn visit_type_path(&mut self, found: &'ast syn::TypePath) {
        if self.under > 0 && self.found.is_none() && self.walk.is_projection(found) {
            self.found = Some(found.span());
        }
        visit::visit_type_path(self, found);
    }

    fn visit_angle_bracketed_generic_arguments(&mut self, found: &'ast syn::AngleBracketedGenericArguments) {
        let counts = found.args.iter().any(|argument| matches!(argument, GenericArgument::Lifetime(_)));
        self.inside(counts, |finder| visit::visit_angle_bracketed_generic_arguments(finder, found));
    }
}

/// Finds a type parameter that is not one of a type's own, or an associated type that is no part of an iterator's type.
struct ForeignParameterFinder<'w, 'a> {
    walk: &'w SyntaxWalk<'a>,
    own: &'w [String],
    found: Option<Span>,
}

impl<'ast> Visit<'ast> for ForeignParameterFinder<'_, '_> {
    fn visit_type_path(&mut self, found: &'ast syn::TypePath) {
        let words: Vec<String> = found.path.segments.iter().map(|segment| name(&segment.ident)).collect();
        let of = match &found.qself {
            Some(qself) => match &*qself.ty {
                Type::Path(inside) if inside.qself.is_none() => inside.path.get_ident().map(name),
                _ => None,
            },
            None => words.first().cloned(),
        };
        let of = of.unwrap_or_default();
        let projection =
            found.qself.is_some() || (words.len() > 1 && (of == "Self" || self.walk.is_type_parameter(&of)));
        let becomes = words.last().is_some_and(|last| is_one_of(&lists::BECOMES, last)) && of != "Self";
        let foreign = self.walk.is_type_parameter(&of) && !self.own.contains(&of);
        if foreign || (projection && !becomes) {
            self.found = self.found.or(Some(found.span()));
        }
        if found.qself.is_none() {
            visit::visit_type_path(self, found);
        }
    }
}

/// Parameters inside of a `Peekable<…>` or `Flatten<…>`, and whether they are all that is inside.
struct BufferedParameters {
    parameters: Vec<(syn::Ident, bool)>,
}

impl<'ast> Visit<'ast> for BufferedParameters {
    fn visit_path_segment(&mut self, found: &'ast syn::PathSegment) {
        if is_one_of(&lists::KEEPING, &name(&found.ident)) {
            let mut words = IdentCollector(Vec::new());
            words.visit_path_arguments(&found.arguments);
            let alone = words.0.len() == 1;
            self.parameters.extend(words.0.into_iter().map(|word| (word, alone)));
        }
        visit::visit_path_segment(self, found);
    }
}

struct IdentCollector(Vec<syn::Ident>);

impl<'ast> Visit<'ast> for IdentCollector {
    fn visit_ident(&mut self, found: &'ast syn::Ident) {
        self.0.push(found.clone());
    }
}

/// Looks for `impl Trait`, its bound by a lifetime, and its list of what it may hold.
#[derive(Default)]
struct OpaqueTypeFinder {
    any: bool,
    bound: Option<Span>,
    list: Option<Span>,
}

impl OpaqueTypeFinder {
    fn of(input: &syn::FnArg) -> OpaqueTypeFinder {
        let mut opaque = OpaqueTypeFinder::default();
        opaque.visit_fn_arg(input);
        opaque
    }
}

impl<'ast> Visit<'ast> for OpaqueTypeFinder {
    fn visit_type_impl_trait(&mut self, found: &'ast syn::TypeImplTrait) {
        self.any = true;
        for bound in &found.bounds {
            match bound {
                TypeParamBound::Lifetime(lifetime) => self.bound = self.bound.or(Some(lifetime.span())),
                TypeParamBound::PreciseCapture(list) => self.list = self.list.or(Some(list.span())),
                _ => {}
            }
        }
        visit::visit_type_impl_trait(self, found);
    }
}

/// Counts lifetimes, and those among them without a name.
#[derive(Default)]
struct LifetimeCounter {
    count: usize,
    elided: usize,
}

impl<'ast> Visit<'ast> for LifetimeCounter {
    fn visit_type_reference(&mut self, found: &'ast syn::TypeReference) {
        if found.lifetime.is_none() {
            self.count += 1;
            self.elided += 1;
        }
        visit::visit_type_reference(self, found);
    }

    fn visit_receiver(&mut self, found: &'ast syn::Receiver) {
        if let syn::ReceiverKind::Reference(_, None, _) = &found.kind {
            self.count += 1;
            self.elided += 1;
        }
        visit::visit_receiver(self, found);
    }

    fn visit_lifetime(&mut self, found: &'ast syn::Lifetime) {
        self.count += 1;
        self.elided += usize::from(found.ident == "_");
    }

    fn visit_parenthesized_generic_arguments(&mut self, _: &'ast syn::ParenthesizedGenericArguments) {}
}
