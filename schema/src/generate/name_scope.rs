//! Names that a file gives away, each once: what a tenant calls its types and functions may be a word of the language,
//! or become the same as another name once it is written as the language has names.

use std::collections::{HashMap, HashSet};

use crate::NamedType;

/// The names of one scope of a file.
#[derive(Debug, Default)]
pub(super) struct NameScope {
    taken: HashSet<String>,
}

impl NameScope {
    /// A scope that has these names already.
    pub(super) fn with<S: Into<String>>(names: impl IntoIterator<Item = S>) -> NameScope {
        NameScope { taken: names.into_iter().map(Into::into).collect() }
    }

    /// That name, or with `_` behind it until no other one is the same.
    pub(super) fn claim(&mut self, mut wanted: String) -> String {
        while !self.taken.insert(wanted.clone()) {
            wanted.push('_');
        }
        wanted
    }

    /// Names for the types of a schema, by what the schema calls them.
    pub(super) fn claim_types(
        &mut self,
        types: &[NamedType],
        natural: impl Fn(&str) -> String,
    ) -> HashMap<String, String> {
        types.iter().map(|one| (one.name.clone(), self.claim(natural(&one.name)))).collect()
    }
}

/// A name without `_` in front, where that means something: `__init__` is `init__`. One that then begins with no letter
/// gets one.
pub(super) fn without_leading_underscores(name: &str) -> String {
    let rest = name.trim_start_matches('_');
    if rest.starts_with(|first: char| first.is_ascii_alphabetic()) { rest.to_owned() } else { format!("x{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice() {
        let mut scope = NameScope::with(["class"]);
        let given = ["class", "class_", "class", "order", "order"].map(|name| scope.claim(name.to_owned()));
        assert_eq!(given, ["class_", "class__", "class___", "order", "order_"]);
        let names = ["__init__", "_a", "__", "_1", "a_"].map(without_leading_underscores);
        assert_eq!(names, ["init__", "a", "x", "x1", "a_"]);
    }
}
