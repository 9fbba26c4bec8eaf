//! Refuses types that make the compiler believe wrong facts about how long values live ("witnesses").
//!
//! `Option<&'long T>` in a signature says that `T` lives long, as `T: 'long` does, without stating it. The compiler
//! applies that to `T::Item`, for which it need not hold when `T` is made of a closure (rust-lang issue 84366). It also
//! believes a closure's declared result (151637). The belief does harm where a value changes its type's lifetime for
//! another, and that needs code that knows the lifetime: an implementation of a trait. So a trait of the tenant's own
//! takes no witness, is no bound of an associated type, and is not implemented for a type that only a closure's result
//! names.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{GenericArgument, ReturnType, Token, Type, TypeParamBound};

use super::names::UncertainType;
use super::rules;
use super::syntax::{is_harmless_bound, name};
use super::walk::SyntaxWalk;

const SELF_NAMED: &str = "leave the lifetime out, or take `&self`";
const SELF_BEHIND: &str = "take `&self`, `Self` or `&Self`";
const SELF_HIDDEN: &str =
    "this type may hide a lifetime: take core's own, or a struct without lifetimes that you import by its name";
const SELF_OUTPUT: &str = "give a type without lifetimes";
const FUNCTION_HIDDEN: &str = "this type may hide a lifetime: import one without by its name";
const FUNCTION_OUTPUT: &str =
    "not where what the function gives may hide a lifetime: import a type without by its name";
const CLOSURE: &str = "leave the type out, it is inferred";
const CLOSURE_HIDDEN: &str = "this type may hide a lifetime: leave it out, it is inferred";

/// The longest lifetime around a position.
#[derive(Clone, Copy, Default, PartialEq, PartialOrd)]
enum EnclosingLifetime {
    #[default]
    None,
    /// `&T`, `Wrap<'_, T>`.
    Anonymous,
    /// `&'a T`.
    Named,
    /// `&'static T`.
    Static,
}

impl EnclosingLifetime {
    fn of(lifetime: Option<&syn::Lifetime>) -> EnclosingLifetime {
        match lifetime {
            Some(lifetime) if lifetime.ident == "static" => EnclosingLifetime::Static,
            Some(lifetime) if lifetime.ident != "_" => EnclosingLifetime::Named,
            _ => EnclosingLifetime::Anonymous,
        }
    }
}

/// The parameters to look for in a type.
#[derive(Clone, Copy, PartialEq)]
enum ParameterKinds {
    /// `Self` and its associated types.
    Own,
    /// Type parameters too, and types that are left to inference.
    Any,
}

/// Finds the positions of `Self` or of type parameters in a type, and the types around them.
struct ParameterPositions<'w, 'a> {
    walk: &'w SyntaxWalk<'a>,
    of: ParameterKinds,
    under: EnclosingLifetime,
    /// Whether it is in an `Fn(…)`'s parameters: their own lifetimes are for all, and witness nothing.
    function: bool,
    /// Enclosing types that may hide lifetimes.
    around: Vec<(String, bool, Span)>,
    found: Vec<(EnclosingLifetime, Span)>,
    hiding: Vec<(String, bool, Span)>,
    /// A lifetime anywhere.
    lifetime: Option<Span>,
    /// Names of all types.
    names: Vec<(String, bool, Span)>,
}

impl<'w, 'a> ParameterPositions<'w, 'a> {
    fn of(walk: &'w SyntaxWalk<'a>, of: ParameterKinds, kind: &Type) -> ParameterPositions<'w, 'a> {
        let mut positions = ParameterPositions {
            walk,
            of,
            under: EnclosingLifetime::None,
            function: false,
            around: Vec::new(),
            found: Vec::new(),
            hiding: Vec::new(),
            lifetime: None,
            names: Vec::new(),
        };
        positions.visit_type(kind);
        positions
    }

    fn note(&mut self, span: Span) {
        self.found.push((self.under, span));
        self.hiding.extend(self.around.iter().cloned());
    }

    fn inside(&mut self, under: EnclosingLifetime, look: impl FnOnce(&mut Self)) {
        let before = self.under;
        if under > before && !(self.function && under == EnclosingLifetime::Anonymous) {
            self.under = under;
        }
        look(self);
        self.under = before;
    }

    fn longest(&self) -> EnclosingLifetime {
        self.found
            .iter()
            .fold(EnclosingLifetime::None, |longest, (under, _)| if *under > longest { *under } else { longest })
    }
}

impl<'ast> Visit<'ast> for ParameterPositions<'_, '_> {
    fn visit_type_reference(&mut self, found: &'ast syn::TypeReference) {
        self.lifetime = self.lifetime.or(Some(found.span()));
        self.inside(EnclosingLifetime::of(found.lifetime.as_ref()), |positions| positions.visit_type(&found.elem));
    }

    fn visit_lifetime(&mut self, found: &'ast syn::Lifetime) {
        self.lifetime = self.lifetime.or(Some(found.span()));
    }

    fn visit_type_infer(&mut self, found: &'ast syn::TypeInfer) {
        if self.of == ParameterKinds::Any {
            self.note(found.span());
        }
    }

    fn visit_type_path(&mut self, found: &'ast syn::TypePath) {
        if let Some(qself) = &found.qself {
            self.visit_type(&qself.ty);
        }
        let first = found.path.segments.first().map(|segment| name(&segment.ident)).unwrap_or_default();
        if first == "Self" || (found.qself.is_none() && self.walk.is_type_parameter(&first)) {
            if first == "Self" || self.of == ParameterKinds::Any {
                self.note(found.span());
            }
            return;
        }
        let behind = found.path.segments.len() > 1 || found.qself.is_some();
        let last = found.path.segments.last().map(|segment| name(&segment.ident)).unwrap_or_default();
        let named = (last, behind, found.path.span());
        self.names.push(named.clone());
        let before = self.around.len();
        if !self.function {
            self.around.push(named);
        }
        visit::visit_path(self, &found.path);
        self.around.truncate(before);
    }

    fn visit_angle_bracketed_generic_arguments(&mut self, found: &'ast syn::AngleBracketedGenericArguments) {
        let lifetimes = found.args.iter().filter_map(|argument| match argument {
            GenericArgument::Lifetime(lifetime) => Some(EnclosingLifetime::of(Some(lifetime))),
            _ => None,
        });
        let under = lifetimes.fold(EnclosingLifetime::None, |longest, one| if one > longest { one } else { longest });
        self.inside(under, |positions| visit::visit_angle_bracketed_generic_arguments(positions, found));
    }

    fn visit_parenthesized_generic_arguments(&mut self, found: &'ast syn::ParenthesizedGenericArguments) {
        let before = std::mem::replace(&mut self.function, true);
        visit::visit_parenthesized_generic_arguments(self, found);
        self.function = before;
    }
}

/// Returns whether a type is `&Self` or `&mut Self::Item`, without a named lifetime.
fn is_look(kind: &Type) -> bool {
    let Type::Reference(reference) = kind else { return false };
    let of_self = matches!(&*reference.elem, Type::Path(path)
        if path.qself.is_none() && path.path.segments.first().is_some_and(|first| first.ident == "Self"));
    of_self && EnclosingLifetime::of(reference.lifetime.as_ref()) == EnclosingLifetime::Anonymous
}

impl SyntaxWalk<'_> {
    fn defer(&mut self, rule: &'static rules::Rule, remark: &'static str, names: Vec<(String, bool, Span)>) {
        for (name, behind, span) in names {
            if !self.test {
                self.names.uncertain.push(UncertainType { rule, remark, name, behind, span: span.byte_range() });
            }
        }
    }

    /// Checks a method of a trait of the tenant's own: no lifetime around `Self` except the receiver's.
    pub(super) fn check_method_of_trait(&mut self, signature: &syn::Signature) {
        let receiver = signature.inputs.iter().find_map(|input| match input {
            syn::FnArg::Receiver(receiver) => Some(receiver),
            syn::FnArg::Typed(_) => None,
        });
        let borrowed = receiver.map_or(EnclosingLifetime::None, |receiver| self.borrowed(receiver));
        let mut others = false;
        for input in &signature.inputs {
            let syn::FnArg::Typed(typed) = input else { continue };
            if is_look(&typed.ty) {
                others = true;
                continue;
            }
            let positions = ParameterPositions::of(self, ParameterKinds::Own, &typed.ty);
            others |= !positions.found.is_empty();
            let (longest, hiding) = (positions.longest(), positions.hiding);
            match longest {
                EnclosingLifetime::None => self.defer(&rules::SELF_LIFETIME, SELF_HIDDEN, hiding),
                EnclosingLifetime::Anonymous => self.refuse(&rules::SELF_LIFETIME, &typed.ty, SELF_BEHIND),
                EnclosingLifetime::Named | EnclosingLifetime::Static => {
                    self.refuse(&rules::SELF_LIFETIME, &typed.ty, SELF_NAMED)
                }
            }
        }
        if let Some(receiver) = receiver.filter(|_| others && borrowed > EnclosingLifetime::Anonymous) {
            self.refuse(&rules::SELF_LIFETIME, receiver, "leave the lifetime's name out");
        }
        self.check_result_of_method(&signature.output, borrowed, others);
    }

    /// The longest lifetime of a receiver.
    fn borrowed(&self, receiver: &syn::Receiver) -> EnclosingLifetime {
        match &receiver.kind {
            syn::ReceiverKind::Value => EnclosingLifetime::None,
            syn::ReceiverKind::Reference(_, lifetime, _) => EnclosingLifetime::of(lifetime.as_ref()),
            syn::ReceiverKind::Typed(_, kind) => {
                let positions = ParameterPositions::of(self, ParameterKinds::Own, kind);
                // The type may have any name.
                if positions.hiding.is_empty() || positions.longest() > EnclosingLifetime::None {
                    positions.longest()
                } else {
                    EnclosingLifetime::Anonymous
                }
            }
            _ => EnclosingLifetime::Static,
        }
    }

    fn check_result_of_method(&mut self, output: &ReturnType, borrowed: EnclosingLifetime, others: bool) {
        let ReturnType::Type(_, output) = output else { return };
        let by_reference = borrowed > EnclosingLifetime::None;
        let positions = ParameterPositions::of(self, ParameterKinds::Own, output);
        let (longest, hiding, lifetime, names) =
            (positions.longest(), positions.hiding, positions.lifetime, positions.names);
        match longest {
            EnclosingLifetime::Named | EnclosingLifetime::Static => {
                self.refuse(&rules::SELF_LIFETIME, output, SELF_NAMED)
            }
            EnclosingLifetime::Anonymous if !by_reference => self.refuse(&rules::SELF_LIFETIME, output, SELF_OUTPUT),
            _ if !by_reference => self.defer(&rules::SELF_LIFETIME, SELF_HIDDEN, hiding),
            _ => {}
        }
        // A witness for one value of `Self` must not let another value into the result.
        if others && !(by_reference && is_look(output)) {
            match lifetime {
                Some(span) => self.refuse(&rules::SELF_LIFETIME, &span, SELF_OUTPUT),
                None => self.defer(&rules::SELF_LIFETIME, SELF_OUTPUT, names),
            }
        }
        let mut hidden = ImplTraitBounds(Vec::new());
        hidden.visit_type(output);
        for bounds in hidden.0 {
            self.check_associated_bounds(bounds);
        }
    }

    /// Checks the bounds of an associated type: traits of core by their names, which no trait of the tenant's own may
    /// have.
    pub(super) fn check_associated_bounds(&mut self, bounds: &Punctuated<TypeParamBound, Token![+]>) {
        for bound in bounds {
            let TypeParamBound::Trait(bound) = bound else { continue };
            let last = bound.path.segments.last().map(|segment| name(&segment.ident)).unwrap_or_default();
            if !is_harmless_bound(&last) {
                self.refuse(&rules::ASSOCIATED_BOUND, &bound.path, "");
            }
        }
    }

    /// Checks `|…| -> Option<&'static T> { … }`: the compiler assumes that this type is well-formed.
    pub(super) fn check_closure(&mut self, closure: &syn::ExprClosure) {
        let ReturnType::Type(_, output) = &closure.output else { return };
        let positions = ParameterPositions::of(self, ParameterKinds::Any, output);
        let (longest, hiding) = (positions.longest(), positions.hiding);
        match longest {
            EnclosingLifetime::None => self.defer(&rules::CLOSURE_RESULT, CLOSURE_HIDDEN, hiding),
            _ => self.refuse(&rules::CLOSURE_RESULT, output, CLOSURE),
        }
    }

    /// Refuses a parameter that only the result of an `Fn(…)` names: it is not checked where the implementation is
    /// used.
    pub(super) fn check_impl_parameters(&mut self, item: &syn::ItemImpl) {
        let Some((path, _)) = &item.trait_ else { return };
        let mut own = IdentifierNames::default();
        own.visit_type(&item.self_ty);
        own.visit_path(path);
        let mut results = ResultNames::default();
        results.visit_generics(&item.generics);
        for parameter in &item.generics.params {
            let (ident, word) = match parameter {
                syn::GenericParam::Type(found) => (found.ident.span(), name(&found.ident)),
                syn::GenericParam::Lifetime(found) => {
                    (found.lifetime.span(), format!("'{}", name(&found.lifetime.ident)))
                }
                syn::GenericParam::Const(_) => continue,
            };
            if results.0.0.contains(&word) && !own.0.contains(&word) {
                self.refuse(&rules::IMPL_PARAMETER, &ident, "");
            }
        }
    }

    /// Refuses `type Wrap<T> = Option<&'static T>`, which would hide a lifetime from all other checks.
    pub(super) fn check_alias(&mut self, item: &syn::ItemType) {
        if !self.test {
            self.names.types.declare(&item.ident, super::names::is_plain_alias(item));
        }
        if ParameterPositions::of(self, ParameterKinds::Any, &item.ty).longest() == EnclosingLifetime::Static {
            self.refuse(&rules::ALIAS, &*item.ty, "");
        }
    }

    /// Records an `Fn(…)`'s parameters that hold an associated type. A struct with a lifetime would be a witness for
    /// it, and take the result.
    pub(super) fn defer_inputs(&mut self, inputs: &[&Type]) {
        let hiding: Vec<_> =
            inputs.iter().flat_map(|input| ParameterPositions::of(self, ParameterKinds::Any, input).hiding).collect();
        self.defer(&rules::PROJECTION, FUNCTION_HIDDEN, hiding);
    }

    /// Records the result of an `Fn(…)`; `looked_at`: it takes an associated type behind a lifetime.
    pub(super) fn defer_result(&mut self, output: &Type, looked_at: bool) {
        if looked_at {
            let names = ParameterPositions::of(self, ParameterKinds::Any, output).names;
            self.defer(&rules::PROJECTION, FUNCTION_OUTPUT, names);
        }
    }
}

/// Bounds of `impl Trait`s.
struct ImplTraitBounds<'t>(Vec<&'t Punctuated<TypeParamBound, Token![+]>>);

impl<'ast> Visit<'ast> for ImplTraitBounds<'ast> {
    fn visit_type_impl_trait(&mut self, found: &'ast syn::TypeImplTrait) {
        self.0.push(&found.bounds);
        visit::visit_type_impl_trait(self, found);
    }
}

/// Names and lifetimes.
#[derive(Default)]
struct IdentifierNames(Vec<String>);

impl<'ast> Visit<'ast> for IdentifierNames {
    fn visit_ident(&mut self, found: &'ast syn::Ident) {
        self.0.push(name(found));
    }

    fn visit_lifetime(&mut self, found: &'ast syn::Lifetime) {
        self.0.push(format!("'{}", name(&found.ident)));
    }
}

/// Names and lifetimes in results of `Fn(…)`.
#[derive(Default)]
struct ResultNames(IdentifierNames);

impl<'ast> Visit<'ast> for ResultNames {
    fn visit_parenthesized_generic_arguments(&mut self, found: &'ast syn::ParenthesizedGenericArguments) {
        self.0.visit_return_type(&found.output);
        visit::visit_parenthesized_generic_arguments(self, found);
    }
}
