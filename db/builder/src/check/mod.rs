//! The checker: allow-lists over the syntax tree decide what a tenant's source may contain.
//!
//! [`rules`] is the table of refusals, their tiers and their reasons; `walk` finds them in the tree, and `macros` in
//! the tokens of macros, which are none. A source is parsed in a thread with a large stack, after its tokens have shown
//! how deep the tree can become.

mod advice;
mod awaits;
mod depth;
mod guards;
mod jumps;
mod lists;
mod macros;
mod names;
mod projections;
pub mod rules;
mod scope;
mod shapes;
mod syntax;
#[cfg(test)]
mod tests;
mod tokens;
mod walk;
mod witnesses;

use std::collections::{HashMap, HashSet, VecDeque};
use std::str::FromStr;

use proc_macro2::TokenStream;
use sandstorm_net::CodeTier;

use super::diagnostic::Diagnostic;
use super::{BuildError, PushedSource, ROOT_FILE, SourceFile, limits};
pub(super) use lists::PRIMITIVES;
use rules::Rule;
use walk::{SyntaxWalk, TraitNames};

/// Stack of the parsing thread, bytes: the depth that `depth` allows, several times over.
const STACK_BYTES: usize = 256 << 20;

/// Checks a whole source by the rules of a tier; `libraries` are the crate names that it may use besides the API.
///
/// # Errors
/// `Refused` with every refused place, in the order of files and lines; `Internal` when no thread can be started.
pub fn check(source: &PushedSource, libraries: &[String], tier: CodeTier) -> Result<(), BuildError> {
    let found = with_a_deep_stack(|| SourceCheck::new(source, libraries, tier).run())?;
    if found.is_empty() { Ok(()) } else { Err(BuildError::Refused(found)) }
}

/// The names of all type parameters of a source that passed, for the audit of the compiler's output.
///
/// # Errors
/// `Internal` when no thread can be started.
pub(super) fn type_parameters(source: &PushedSource) -> Result<HashSet<String>, BuildError> {
    let collect = || {
        let mut parameters = HashSet::new();
        for file in &source.files {
            let shallow = depth::too_deep_text(&file.text).is_none();
            let tokens = TokenStream::from_str(&file.text)
                .ok()
                .filter(|tokens| shallow && depth::too_deep_tokens(tokens).is_none());
            let Some(tokens) = tokens else { continue };
            // They are found in two ways, and one needs no syntax tree: a place that the walk of the tree does not
            // reach hides none.
            parameters.extend(tokens::type_parameters(&tokens));
            if let Ok(parsed) = syn::parse2::<syn::File>(tokens) {
                let mut walk = SyntaxWalk::new(CodeTier::Native, &[], false, false);
                walk.file(&parsed);
                parameters.extend(walk.finish().2.parameters);
            }
        }
        parameters
    };
    with_a_deep_stack(collect)
}

/// Runs work on a stack for syntax that nests as deep as [`check`] lets pass.
pub(super) fn with_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, BuildError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("checker".to_owned()).stack_size(STACK_BYTES);
        thread
            .spawn_scoped(scope, work)
            .map_err(|error| BuildError::io("starting the checker's thread", error))?
            .join()
            .map_err(|_| BuildError::Internal("the checker panicked".to_owned()))
    })
}

/// A refused place of a file: rule, bytes, and a remark that adds to the rule's reason.
pub(super) struct RuleViolation {
    pub(super) rule: &'static Rule,
    pub(super) span: std::ops::Range<usize>,
    pub(super) remark: String,
}

/// A `mod name;` that another file must define.
pub(super) struct ModuleDeclaration {
    /// Path of the module in the file: names of the inline modules around it, and its own.
    pub(super) path: Vec<String>,
    pub(super) span: std::ops::Range<usize>,
    /// Whether it contains only tests.
    pub(super) test: bool,
}

struct SourceCheck<'a> {
    tier: CodeTier,
    files: HashMap<&'a str, &'a SourceFile>,
    order: Vec<&'a str>,
    libraries: &'a [String],
    /// Refusals by file.
    refused: HashMap<&'a str, Vec<RuleViolation>>,
    /// Names of traits in all files.
    names: TraitNames,
    /// Types that must hide no lifetime, by file.
    uncertain: Vec<(&'a str, Vec<names::UncertainType>)>,
    /// `dyn E`, by file.
    objects: Vec<(&'a str, String, std::ops::Range<usize>)>,
    /// Called macros that must be the tenant's own, by file.
    called: Vec<(&'a str, String, std::ops::Range<usize>)>,
    /// Futures that are never awaited, by file.
    unawaited: Vec<(&'a str, awaits::UnawaitedFutures)>,
}

impl<'a> SourceCheck<'a> {
    fn new(source: &'a PushedSource, libraries: &'a [String], tier: CodeTier) -> SourceCheck<'a> {
        let files: HashMap<&str, &SourceFile> = source.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let mut order: Vec<&str> = files.keys().copied().collect();
        order.sort_unstable();
        SourceCheck {
            tier,
            files,
            order,
            libraries,
            refused: HashMap::new(),
            names: TraitNames::default(),
            uncertain: Vec::new(),
            objects: Vec::new(),
            called: Vec::new(),
            unawaited: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Diagnostic> {
        // The modules of a module of tests are tests too; a file that is also reached otherwise is checked in full.
        let mut waiting = VecDeque::from([(ROOT_FILE, false)]);
        let mut seen: HashSet<(&str, bool)> = HashSet::new();
        while let Some((path, test)) = waiting.pop_front() {
            if !seen.insert((path, test)) {
                continue;
            }
            let Some(file) = self.files.get(path).copied() else { continue };
            let (mut refusals, modules, names) = check_file(file, self.libraries, self.tier, test);
            self.names.renamed.extend(names.renamed);
            self.names.others.extend(names.others);
            self.names.types.add(names.types);
            self.names.macros.extend(names.macros);
            self.called.extend(names.called.into_iter().map(|(name, span)| (file.path.as_str(), name, span)));
            self.uncertain.push((file.path.as_str(), names.uncertain));
            self.objects.extend(names.objects.into_iter().map(|(name, span)| (file.path.as_str(), name, span)));
            self.unawaited.push((file.path.as_str(), names.unawaited));
            for module in modules {
                match self.answer(path, &module.path) {
                    Some(answer) => waiting.push_back((answer, module.test || test)),
                    None => {
                        let remark = String::new();
                        refusals.push(RuleViolation { rule: &rules::MODULE_FILE, span: module.span, remark });
                    }
                }
            }
            self.refused.entry(file.path.as_str()).or_default().extend(refusals);
        }
        for path in &self.order {
            if !seen.iter().any(|(reached, _)| reached == path) {
                let remark = "no `mod` item leads to this file".to_owned();
                let refusal = RuleViolation { rule: &rules::MODULE_FILE, span: 0..0, remark };
                self.refused.entry(path).or_default().push(refusal);
            }
        }
        self.check_objects();
        self.check_held();
        self.check_called();
        self.check_awaited();
        self.report()
    }

    /// Checks `dyn E`: `E` may only be a well-known trait of core by another name, and nothing else in any file.
    fn check_objects(&mut self) {
        for (path, name, span) in std::mem::take(&mut self.objects) {
            if !self.names.renamed.contains(&name) || self.names.others.contains(&name) {
                self.refuse(path, RuleViolation { rule: &rules::DYN, span, remark: String::new() });
            }
        }
    }

    /// Checks the types that must hide no lifetime, by the declarations of their names in all files.
    fn check_held(&mut self) {
        for (path, uncertain) in std::mem::take(&mut self.uncertain) {
            let refused: Vec<RuleViolation> = self
                .names
                .types
                .refused(uncertain.iter(), self.libraries)
                .into_iter()
                .map(|one| RuleViolation { rule: one.rule, span: one.span.clone(), remark: one.remark.to_owned() })
                .collect();
            refused.into_iter().for_each(|violation| self.refuse(path, violation));
        }
    }

    /// Checks that macros which are not on the list are the tenant's own, by the definitions in all files.
    fn check_called(&mut self) {
        for (path, name, span) in std::mem::take(&mut self.called) {
            if !self.names.macros.contains(&name) {
                let remark = advice::instead_of_macro(&name);
                self.refuse(path, RuleViolation { rule: &rules::MACRO, span, remark });
            }
        }
    }

    /// Checks what is thrown away before it was awaited, by the functions of all files.
    fn check_awaited(&mut self) {
        let all = std::mem::take(&mut self.unawaited);
        let is_async = |name: &String| {
            all.iter().any(|(_, one)| one.async_names.contains(name))
                && !all.iter().any(|(_, one)| one.other_names.contains(name))
        };
        for (path, found) in &all {
            let own = found.by_name.iter().filter(|(_, name)| is_async(name));
            let own = own.map(|(span, name)| (span.clone(), format!("`{name}`")));
            for (span, remark) in found.certain.iter().cloned().chain(own) {
                self.refuse(path, RuleViolation { rule: &rules::AWAIT, span, remark });
            }
        }
    }

    fn refuse(&mut self, path: &'a str, violation: RuleViolation) {
        if violation.rule.applies(self.tier) {
            self.refused.entry(path).or_default().push(violation);
        }
    }

    /// The file that defines a `mod` item of another file.
    fn answer(&self, path: &str, module: &[String]) -> Option<&'a str> {
        let (folder, name) = path.rsplit_once('/')?;
        let stem = name.strip_suffix(".rs")?;
        let base = if path == ROOT_FILE || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
        let inside = format!("{base}/{}", module.join("/"));
        let answers: Vec<&'a str> = [format!("{inside}.rs"), format!("{inside}/mod.rs")]
            .iter()
            .filter_map(|candidate| self.files.get_key_value(candidate.as_str()).map(|(path, _)| *path))
            .collect();
        // Two candidates are an error that the compiler explains well.
        answers.first().copied()
    }

    fn report(mut self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        for path in &self.order {
            let Some(file) = self.files.get(path) else { continue };
            let mut refusals = self.refused.remove(path).unwrap_or_default();
            refusals.sort_by(|a, b| (a.span.start, a.rule.id).cmp(&(b.span.start, b.rule.id)));
            refusals.dedup_by(|a, b| a.span == b.span && a.rule.id == b.rule.id);
            for refusal in refusals {
                let mut message = refusal.rule.reason.to_owned();
                if !refusal.remark.is_empty() {
                    message = format!("{message}: {}", refusal.remark);
                }
                found.push(Diagnostic::refused(path, &file.text, refusal.span, refusal.rule.id, &message));
            }
        }
        if found.len() > limits::MAX_DIAGNOSTICS {
            let more = found.len() - limits::MAX_DIAGNOSTICS;
            found.truncate(limits::MAX_DIAGNOSTICS);
            found.push(Diagnostic::plain(&format!("{more} more places are refused")));
        }
        found
    }
}

/// Checks one file. `test`: it is only compiled for tests, so it is parsed, but nothing in it is refused.
fn check_file(
    file: &SourceFile,
    libraries: &[String],
    tier: CodeTier,
    test: bool,
) -> (Vec<RuleViolation>, Vec<ModuleDeclaration>, TraitNames) {
    let refuse = |rule, span, remark| (vec![RuleViolation { rule, span, remark }], Vec::new(), TraitNames::default());
    if let Some(at) = depth::too_deep_text(&file.text) {
        return refuse(&rules::DEPTH, at..at + 1, String::new());
    }
    let tokens = match TokenStream::from_str(&file.text) {
        Ok(tokens) => tokens,
        Err(error) => {
            let remark = "a bracket, quote or comment is not closed, or not opened, from here on";
            return refuse(&rules::SYNTAX, error.span().byte_range(), remark.to_owned());
        }
    };
    if let Some(span) = depth::too_deep_tokens(&tokens) {
        return refuse(&rules::DEPTH, span.byte_range(), String::new());
    }
    if let Some(span) = tokens::non_ascii_name(&tokens).filter(|_| !test) {
        return refuse(&rules::IDENTIFIER, span.byte_range(), String::new());
    }
    let parsed = match syn::parse2::<syn::File>(tokens) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&rules::SYNTAX, error.span().byte_range(), error.to_string()),
    };
    let mut walk = SyntaxWalk::new(tier, libraries, file.path == ROOT_FILE, test);
    walk.file(&parsed);
    let (refused, modules, mut names) = walk.finish();
    if !test {
        names.unawaited = awaits::find(&parsed);
    }
    (refused, modules, names)
}
