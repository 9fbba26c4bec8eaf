//! Decides which types hide no lifetime, by the declarations of their names in all files together.
//!
//! `Wrap<Self>` may be `Wrap<'_, Self>`, and an alias may be anything. So where a lifetime is not allowed, a type must
//! be one of core's that has none, or a struct or enum of the tenant's own that is declared without one. Its name must
//! mean nothing else anywhere.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::syntax::{is_one_of, name};
use super::{lists, rules};

/// A type that is refused unless its name turns out to hide no lifetime.
pub(super) struct UncertainType {
    pub(super) rule: &'static rules::Rule,
    pub(super) remark: &'static str,
    pub(super) name: String,
    /// Whether the name is the end of a longer path: `module::Name`.
    pub(super) behind: bool,
    pub(super) span: Range<usize>,
}

/// The declarations of type names in the files.
#[derive(Default)]
pub(super) struct TypeDeclarations {
    /// Declared names, and whether no declaration of the name has a lifetime.
    declared: HashMap<String, bool>,
    /// `use before::used as name`.
    imports: Vec<(Vec<String>, String, String)>,
    /// `use before::*`.
    globs: Vec<Vec<String>>,
}

impl TypeDeclarations {
    pub(super) fn declare(&mut self, ident: &syn::Ident, without_lifetimes: bool) {
        let declared = self.declared.entry(name(ident)).or_insert(true);
        *declared &= without_lifetimes;
    }

    pub(super) fn import(&mut self, before: &[String], used: &str, renamed: &str) {
        self.imports.push((before.to_vec(), used.to_owned(), renamed.to_owned()));
    }

    pub(super) fn glob(&mut self, before: &[String]) {
        self.globs.push(before.to_vec());
    }

    pub(super) fn add(&mut self, other: TypeDeclarations) {
        for (name, without) in other.declared {
            *self.declared.entry(name).or_insert(true) &= without;
        }
        self.imports.extend(other.imports);
        self.globs.extend(other.globs);
    }

    /// Returns those of the types that are refused.
    pub(super) fn refused<'h>(
        &self,
        uncertain: impl Iterator<Item = &'h UncertainType>,
        libraries: &[String],
    ) -> Vec<&'h UncertainType> {
        // Names of modules and types of crates: a path through one of them is outside of the source.
        let is_crate = |part: &String| is_one_of(&lists::CRATES, part) || libraries.contains(part);
        let foreign: HashSet<&str> = self
            .imports
            .iter()
            .filter(|(before, ..)| before.iter().any(is_crate))
            .map(|(_, _, name)| name.as_str())
            .collect();
        let leads_out = |before: &[String]| before.iter().any(|part| is_crate(part) || foreign.contains(part.as_str()));
        let lost =
            self.globs.iter().any(|before| leads_out(before) && before.last().is_some_and(|last| last != "prelude"));
        let is_free = |uncertain: &&'h UncertainType| {
            let own = self.declared.get(&uncertain.name).copied();
            let known = is_one_of(&lists::WITHOUT_LIFETIMES, &uncertain.name);
            let mut imports = self.imports.iter().filter(|(.., name)| *name == uncertain.name);
            let strange = imports.any(|(before, used, name)| used != name || (leads_out(before) && !known));
            own != Some(false) && !strange && (known || (own == Some(true) && !uncertain.behind && !lost))
        };
        uncertain.filter(|uncertain| !is_free(uncertain)).collect()
    }
}

/// Returns whether an alias is of a type of core or alloc by its whole path, with arguments that hide no lifetime.
pub(super) fn is_plain_alias(item: &syn::ItemType) -> bool {
    let syn::Type::Path(path) = &*item.ty else { return false };
    let parts: Vec<String> = path.path.segments.iter().map(|segment| name(&segment.ident)).collect();
    let [first, .., last] = parts.as_slice() else { return false };
    let plain = |argument: &syn::GenericArgument| {
        matches!(argument, syn::GenericArgument::Type(syn::Type::Path(inside))
            if inside.qself.is_none() && inside.path.get_ident().is_some())
    };
    let arguments = path.path.segments.iter().all(|segment| match &segment.arguments {
        syn::PathArguments::None => true,
        syn::PathArguments::AngleBracketed(list) => list.args.iter().all(plain),
        syn::PathArguments::Parenthesized(_) => false,
    });
    path.qself.is_none()
        && is_one_of(&["alloc", "core"], first)
        && is_one_of(&lists::WITHOUT_LIFETIMES, last)
        && arguments
        && item.generics.lifetimes().next().is_none()
}
