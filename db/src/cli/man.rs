//! `sandstorm man FOLDER`: manual pages, made from the commands themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};

use super::CommandLine;
use super::output::{CliError, OutputPrinter};

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder for them, which is made if it is not there
    folder: PathBuf,
}

pub(super) fn run(args: &ManArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let folder = &args.folder;
    fs::create_dir_all(folder)?;
    let count = write_pages(CommandLine::command().disable_help_subcommand(true), "sandstorm", folder)?;
    out.done(&format!("wrote {count} pages to {}", folder.display()))
}

/// Writes the page of a command and those of its own; returns how many.
fn write_pages(command: Command, name: &str, folder: &Path) -> io::Result<usize> {
    let inner: Vec<Command> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned().collect();
    let mut page = Vec::new();
    // A page's name is the whole command, as `git-log` is.
    clap_mangen::Man::new(command.display_name(name)).title(name).render(&mut page)?;
    fs::write(folder.join(format!("{name}.1")), page)?;
    let mut count = 1;
    for command in inner {
        let name = format!("{name}-{}", command.get_name());
        count += write_pages(command.disable_help_subcommand(true), &name, folder)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let count = write_pages(CommandLine::command(), "sandstorm", folder.path()).expect("room");
        assert!(count > 60, "{count} pages");
        for (page, text) in
            [("sandstorm", "tenants"), ("sandstorm-token-create", "expires"), ("sandstorm-serve", "control")]
        {
            let found = fs::read_to_string(folder.path().join(format!("{page}.1"))).expect("a page");
            assert!(found.contains(".TH") && found.contains(text), "{page}: {found}");
        }
    }
}
