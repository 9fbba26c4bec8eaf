//! `sandstorm ext dev`: an extension's folder is watched; what is saved there is tested, pushed and its log followed.
//!
//! Tests and pushes are commands of this program, in processes of their own: what they print is what they always print.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use clap::Args;
use sandstorm_builder::{MANIFEST_FILE, PushedSource};
use sandstorm_net::CodeTier;

use super::ext_logs::{self, LogsArgs};
use super::folder_arg::FolderArg;
use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use super::shell::given_options;

/// Time between two looks at the folder: shorter than a person waits for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A log that has ended, as while the server restarts, is followed again after this.
const FOLLOW_AGAIN: Duration = Duration::from_secs(2);
/// Files of an extension's folder, at most, that are looked at.
const MOST_FILES: usize = 1_000;

/// Work on an extension.
#[derive(Debug, Args)]
pub(super) struct ExtDevArgs {
    #[command(flatten)]
    pub(super) folder: FolderArg,
    /// The tier in which its tests run, as the tenant's policy asks for it: sandboxed or native
    #[arg(long, value_name = "TIER", default_value_t)]
    code: CodeTier,
    /// Push without running its tests
    #[arg(long)]
    no_test: bool,
    /// Keep what is pushed beside the version that is called
    #[arg(long)]
    stage: bool,
    /// Test and push once, and end
    #[arg(long)]
    once: bool,
}

/// What a folder looks like: its files with their sizes and times.
type FolderState = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

pub(super) fn run(session: CliSession, args: &ExtDevArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let work =
        DevWork { folder: &args.folder.folder, args, program: program()?, given: given_options()?, json: out.json };
    // It is no extension at all: nothing is waited for.
    let name = PushedSource::read(work.folder)?.manifest.name;
    if args.once {
        return match work.test_and_push()? {
            true => Ok(()),
            false => Err(CliError::new("it is not pushed").code("refused")),
        };
    }
    follow_log(session, name, out.json)?;
    let mut seen = FolderState::new();
    loop {
        let now = state_of(work.folder)?;
        if now != seen {
            seen = now;
            let pushed = work.test_and_push()?;
            if !out.json {
                out.line(if pushed { "-- pushed" } else { "-- not pushed: it is tried again when a file changes" })?;
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

struct DevWork<'a> {
    folder: &'a Path,
    args: &'a ExtDevArgs,
    program: PathBuf,
    /// The options of every command that this one was given, as the environment of those that it runs.
    given: Vec<(String, String)>,
    json: bool,
}

impl DevWork<'_> {
    fn command(&self, words: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(self.given.iter().map(|(name, value)| (name, value)));
        if self.json {
            command.arg("--json");
        }
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end; returns whether it succeeded.
    fn succeeds(&self, words: &[&OsStr]) -> Result<bool, CliError> {
        let ended = self.command(words).status();
        Ok(ended.map_err(|error| not_run(&self.program, &error))?.success())
    }

    fn test_and_push(&self) -> Result<bool, CliError> {
        let (folder, ext) = (self.folder.as_os_str(), OsStr::new("ext"));
        let tier = self.args.code.name();
        if !self.args.no_test
            && !self.succeeds(&[ext, OsStr::new("test"), folder, OsStr::new("--code"), OsStr::new(tier)])?
        {
            return Ok(false);
        }
        let stage = self.args.stage.then_some(OsStr::new("--stage"));
        let words: Vec<&OsStr> = [ext, OsStr::new("push"), folder].into_iter().chain(stage).collect();
        self.succeeds(&words)
    }
}

/// Prints the extension's log as it grows, for as long as this process lives.
fn follow_log(session: CliSession, name: String, json: bool) -> Result<(), CliError> {
    let follow = move || {
        let out = OutputPrinter { json };
        loop {
            // There is no extension yet, or no server at the moment: a push says so.
            let _ended = ext_logs::run(&session, LogsArgs::following(&name), &out);
            std::thread::sleep(FOLLOW_AGAIN);
        }
    };
    let spawned = std::thread::Builder::new().name("log".to_owned()).spawn(follow);
    spawned.map(drop).map_err(|error| CliError::new(format!("no thread for the log: {error}")))
}

fn not_run(program: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("running {}: {error}", program.display()))
}

fn program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|error| CliError::new(format!("this program's own file: {error}")))
}

/// The files of an extension: its manifest, and what is below `src`.
fn state_of(folder: &Path) -> Result<FolderState, CliError> {
    let mut found = FolderState::new();
    note(&folder.join(MANIFEST_FILE), &mut found);
    let mut folders = vec![folder.join("src")];
    while let Some(folder) = folders.pop() {
        // An editor may be replacing it just now: the next look sees it.
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.path().extension().is_some_and(|kind| kind == "rs") => note(&entry.path(), &mut found),
                _ => {}
            }
            if found.len() > MOST_FILES {
                return Err(CliError::new(format!("{} has over {MOST_FILES} files", folder.display())));
            }
        }
    }
    Ok(found)
}

fn note(path: &Path, found: &mut FolderState) {
    if let Ok(metadata) = std::fs::metadata(path) {
        found.insert(path.to_owned(), (metadata.len(), metadata.modified().ok()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_new_and_removed_files_are_seen_and_others_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        let state = || state_of(folder.path()).expect("few files");
        std::fs::create_dir_all(folder.path().join("src/inner")).expect("a folder");
        write("extension.toml", "name = \"x\"");
        write("src/lib.rs", "1");
        let mut before = state();
        let mut is_changed = || {
            let now = state();
            let is_changed = now != before;
            before = now;
            is_changed
        };
        assert!(!is_changed());
        write("README.md", "text");
        write("src/lib.rs.swp", "an editor's own");
        assert!(!is_changed());
        write("src/lib.rs", "12");
        assert!(is_changed());
        write("src/inner/mod.rs", "");
        assert!(is_changed());
        write("extension.toml", "name = \"other\"");
        assert!(is_changed());
        std::fs::remove_file(folder.path().join("src/inner/mod.rs")).expect("removed");
        assert!(is_changed() && !is_changed());
    }
}
