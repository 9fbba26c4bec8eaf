//! What Tab offers: commands and options of the tree of commands, and the tenant's tables, extensions and functions.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use clap::{Command, CommandFactory};

use super::super::CommandLine;
use super::super::session::CliSession;
use super::line_editor::Completions;
use sandstorm_terminal::needs_escape;

/// Names of the server are asked for again after that.
const NAMES_LIFETIME: Duration = Duration::from_secs(5);
/// Words of the shell itself.
const OWN: [&str; 6] = ["use", "begin", "commit", "abort", "help", "exit"];

/// Completes lines, with the names that the server has.
pub(super) struct ShellNames<'s> {
    session: &'s CliSession,
    tree: Command,
    tenant: Option<String>,
    names: RefCell<Option<(Instant, ServerNames)>>,
}

/// Names that a server has.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerNames {
    pub(super) tenants: Vec<String>,
    pub(super) tables: Vec<String>,
    pub(super) extensions: Vec<String>,
    /// As `EXTENSION.FUNCTION`.
    pub(super) functions: Vec<String>,
}

impl<'s> ShellNames<'s> {
    pub(super) fn new(session: &'s CliSession) -> ShellNames<'s> {
        let mut tree = CommandLine::command();
        tree.build();
        ShellNames { session, tree, tenant: None, names: RefCell::new(None) }
    }

    /// Sets the tenant that `use` has named.
    pub(super) fn set_tenant(&mut self, tenant: Option<String>) {
        if self.tenant != tenant {
            (self.tenant, self.names) = (tenant, RefCell::new(None));
        }
    }

    /// What may stand where a line ends.
    pub(super) fn completions(&self, line: &str) -> Completions {
        let mut letters = line.char_indices().rev();
        let space = letters.find(|(_, letter)| letter.is_whitespace());
        let start = space.map_or(0, |(at, letter)| at + letter.len_utf8());
        let before: Vec<&str> = line[..start].split_whitespace().collect();
        (start, candidates(&self.tree, &before, &line[start..], &|| self.server_names()))
    }

    /// The server's names; none of those that it does not tell.
    fn server_names(&self) -> ServerNames {
        let mut names = self.names.borrow_mut();
        if let Some((read, known)) = &*names
            && read.elapsed() < NAMES_LIFETIME
        {
            return known.clone();
        }
        let known = self.ask();
        *names = Some((Instant::now(), known.clone()));
        known
    }

    fn ask(&self) -> ServerNames {
        let control = self.session.control();
        let tenants = control.tenants().unwrap_or_default().into_iter().map(|tenant| tenant.name).collect();
        let tenant = self.tenant.clone().map_or_else(|| self.session.tenant().ok(), Some);
        let Some(tenant) = tenant else { return ServerNames { tenants, ..ServerNames::default() } };
        let control = self.session.control_as(&tenant);
        let tables = control.tables(&tenant).unwrap_or_default().into_iter().map(|table| table.name).collect();
        let (mut extensions, mut functions) = (Vec::new(), Vec::new());
        for extension in control.extensions(&tenant).unwrap_or_default() {
            let typed = extension.schema.iter().flat_map(|schema| &schema.functions);
            functions.extend(typed.map(|function| format!("{}.{}", extension.name, function.name)));
            extensions.push(extension.name);
        }
        ServerNames { tenants, tables, extensions, functions }
    }
}

/// What may stand where a line ends, after these words.
pub(super) fn candidates(tree: &Command, before: &[&str], word: &str, names: &dyn Fn() -> ServerNames) -> Vec<String> {
    let (mut command, mut path, mut positional) = (tree, Vec::new(), 0);
    let mut words = before.iter();
    while let Some(one) = words.next() {
        match command.find_subcommand(one) {
            Some(found) if positional == 0 => {
                command = found;
                path.push(*one);
            }
            // With its value, if that is a word of its own.
            _ if takes_a_word(command, one) => drop(words.next()),
            _ if one.starts_with('-') => {}
            _ => positional += 1,
        }
    }
    let mut found: Vec<String> = Vec::new();
    if word.starts_with('-') {
        let options = command.get_arguments().filter_map(|option| option.get_long().filter(|_| !option.is_hide_set()));
        found.extend(options.map(|long| format!("--{long}")));
    } else if let Some(option) = before.last().and_then(|last| last.strip_prefix("--")) {
        let option = command.get_arguments().find(|one| one.get_long() == Some(option));
        found.extend(option.into_iter().flat_map(|one| one.get_possible_values()).map(|one| one.get_name().to_owned()));
        if option.is_some_and(|one| one.get_id() == "tenant") {
            found.extend(names().tenants);
        }
    }
    if found.is_empty() && !word.starts_with('-') {
        found.extend(command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name().to_owned()));
        match (path.as_slice(), before) {
            ([], []) => {
                found.extend(OWN.map(str::to_owned));
                found.extend(names().functions);
            }
            (_, ["use"]) => found = names().tenants,
            // A step of a transaction.
            (_, ["check"]) => found = names().tables,
            (["invoke"], _) if positional == 0 => {
                let ServerNames { extensions, functions, .. } = names();
                found.extend(extensions.into_iter().chain(functions));
            }
            (["ext", _], _) => found.extend(names().extensions),
            ([], _) => {}
            _ if command.get_subcommands().next().is_none() && positional == 0 => found.extend(names().tables),
            _ => {}
        }
    }
    // A server says what it likes: what is no word, or not fit for a terminal, is none of its names.
    let is_word = |one: &str| !one.chars().any(|letter| letter.is_whitespace() || needs_escape(letter));
    found.retain(|one| one.starts_with(word) && is_word(one));
    found.sort();
    found.dedup();
    found
}

/// Whether a word is an option whose value is the next one.
fn takes_a_word(command: &Command, word: &str) -> bool {
    let named = word.strip_prefix("--").and_then(|long| {
        command.get_arguments().find(|one| one.get_long() == Some(long)).map(|one| one.get_action().takes_values())
    });
    named.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ServerNames {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        ServerNames {
            tenants: texts(&["shop", "lab"]),
            tables: texts(&["items", "prices", "it\u{1b}[2J", "it em"]),
            extensions: texts(&["bank", "sum"]),
            functions: texts(&["bank.deposit", "bank.transfer"]),
        }
    }

    #[test]
    fn commands_options_and_names_of_the_server_are_offered() {
        let mut tree = CommandLine::command();
        tree.build();
        let offered = |line: &str| {
            let mut words: Vec<&str> = line.split(' ').collect();
            let word = words.pop().unwrap_or_default();
            candidates(&tree, &words, word, &names)
        };
        assert_eq!(offered("tab"), ["table"]);
        assert_eq!(offered("bank.t"), ["bank.transfer"]);
        assert_eq!(offered("use "), ["lab", "shop"]);
        assert_eq!(offered("get it"), ["items"]);
        assert_eq!(offered("get items it"), Vec::<String>::new());
        assert_eq!(offered("check pr"), ["prices"]);
        assert_eq!(offered("com"), ["commit", "completions"]);
        assert_eq!(offered("table dr"), ["drop"]);
        assert_eq!(offered("table drop p"), ["prices"]);
        assert_eq!(offered("invoke ba"), ["bank", "bank.deposit", "bank.transfer"]);
        assert_eq!(offered("ext show s"), ["sum"]);
        assert_eq!(offered("put items a 3 --if-a"), ["--if-absent"]);
        assert!(offered("table create x --mode c").contains(&"cache".to_owned()));
        assert_eq!(offered("get --tenant s"), ["shop"]);
        assert_eq!(offered("get --tenant shop it"), ["items"]);
        assert_eq!(offered("get --json it"), ["items"]);
        assert!(offered("").contains(&"use".to_owned()) && offered("").contains(&"ext".to_owned()));
    }
}
