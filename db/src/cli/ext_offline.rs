//! `sandstorm ext new`, `check` and `test`: a tenant's work on its own machine, without a server.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use sandstorm_builder::editor_project::write_editor_project;
use sandstorm_builder::offline::{self, CheckedModule, TierAnswer, check_dir, check_dir_in_tier, new_extension};
use sandstorm_builder::test_build::{build_tests, test_dir};
use sandstorm_builder::{
    BuildError, BuiltLibrary, Diagnostic, ExtensionTemplate, PushedSource, api_fingerprint, schema_of,
};
use sandstorm_control::triggers::check_manifest;
use sandstorm_extension::{ExtensionLibrary, LoadError};
use sandstorm_net::CodeTier;
use serde_json::json;

use super::output::{CliError, OutputPrinter, format_bytes};
use super::shell::given_options;
use super::test_runner::run_tests;

/// The name that commands are typed with.
const PROGRAM: &str = "sandstorm";

pub(super) fn new(
    folder: &Path,
    name: Option<String>,
    template: &ExtensionTemplate,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let last = || folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.or_else(last).ok_or_else(|| CliError::new("the folder has no name").hint("give --name NAME"))?;
    new_extension(folder, &name, template).map_err(|error| match error {
        BuildError::Refused(remarks) => {
            let reason = remarks.first().map_or("it is refused", |remark| remark.message.as_str());
            CliError::new(format!("{name:?} cannot be an extension's name: {reason}"))
                .hint("name another folder, or give --name NAME")
        }
        error => error.into(),
    })?;
    let shown = folder.display();
    let given = repeated(&given_options()?);
    out.show(&json!({"name": name, "folder": folder, "template": template.name}), |_| {
        let (test, push) = (format!("sandstorm ext test {shown}"), format!("sandstorm ext push {shown}"));
        let commands = [test].into_iter().chain(template.table_commands()).chain([push, template.call_command(&name)]);
        let commands: Vec<String> = commands.map(|command| with_options(&command, &given)).collect();
        format!("wrote {shown}: extension.toml, src/lib.rs, README.md\nnext: {}\n", commands.join("; "))
    })
}

/// A command of this program with options of every command.
fn with_options(command: &str, given: &str) -> String {
    command.strip_prefix(PROGRAM).map_or_else(|| command.to_owned(), |rest| format!("{PROGRAM}{given}{rest}"))
}

/// The options of every command that were given, as they are to be typed again, each behind a space. A token is left
/// out: it is a secret, and what is printed may be kept.
fn repeated(given: &[(String, String)]) -> String {
    let option = |(variable, value): &(String, String)| {
        let name = variable.strip_prefix("SANDSTORM_")?.to_lowercase();
        (name != "token").then(|| format!(" --{name} {}", quoted(value)))
    };
    given.iter().filter_map(option).collect()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@=,+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Writes the project file for editors.
pub(super) fn editor(folder: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let path = write_editor_project(folder, None)?;
    out.show(&json!({"file": path}), |_| {
        format!(
            "wrote {}: open the folder in an editor with rust-analyzer; keep the file out of repositories\n",
            path.display()
        )
    })
}

/// Returns a printer of progress lines to standard error; none for programs (`--json`).
fn progress_printer(out: &OutputPrinter) -> Option<fn(&str)> {
    (!out.json).then_some(|line| eprintln!("{line}"))
}

/// What would be loaded is loaded here as a server does it, which refuses some that compile; the compiler's warnings.
fn load(built: BuiltLibrary, tier: CodeTier) -> Result<Vec<Diagnostic>, BuildError> {
    let loaded = match tier {
        CodeTier::Native => ExtensionLibrary::load(&built.elf, api_fingerprint()),
        CodeTier::Sandboxed => ExtensionLibrary::load_sandboxed(&built.elf, api_fingerprint()),
    };
    match loaded {
        Ok(_) => Ok(built.warnings),
        Err(error @ (LoadError::Refused(_) | LoadError::TooLarge { .. })) => {
            Err(BuildError::Refused(vec![Diagnostic::plain(&error.to_string())]))
        }
        Err(error) => Err(BuildError::Internal(error.to_string())),
    }
}

/// Checks what the manifest declares beside what the source has, as a push does. Which tables there are, the server
/// knows.
fn check_triggers(folder: &Path) -> Result<(), BuildError> {
    let source = PushedSource::read(folder)?;
    let schema = schema_of(&source)?;
    let checked = check_manifest(&source.manifest.name, &source.manifest.triggers, schema.as_ref());
    checked.map_err(|why| BuildError::Refused(vec![Diagnostic::plain(&why)]))
}

/// The answer to a source in one tier: the compiler's warnings, or what stands against it.
struct PushAnswer {
    tier: CodeTier,
    outcome: Result<Vec<Diagnostic>, BuildError>,
}

impl From<TierAnswer> for PushAnswer {
    fn from(answer: TierAnswer) -> PushAnswer {
        let TierAnswer { tier, outcome } = answer;
        PushAnswer { tier, outcome: outcome.and_then(|built| load(built, tier)) }
    }
}

pub(super) fn check(folder: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let started = Instant::now();
    let [sandboxed, native] = check_dir(folder, None, progress_printer(out))?.map(PushAnswer::from);
    let ms = started.elapsed().as_millis() as u64;
    let (passed, failed): (Vec<_>, Vec<_>) = [&sandboxed, &native].into_iter().partition(|one| one.outcome.is_ok());
    // What passes in no tier has one answer: that of the tier which refuses less.
    let Some(PushAnswer { outcome: Ok(warnings), .. }) = passed.first() else {
        return sandboxed.outcome.map(|_| ()).map_err(CliError::from);
    };
    check_triggers(folder)?;
    let against = |answer: &&PushAnswer| {
        let error = answer.outcome.as_ref().err()?.clone();
        let diagnostics = error.diagnostics().to_vec();
        Some((answer.tier, CliError::from(error).message, diagnostics))
    };
    let tiers: Vec<CodeTier> = passed.iter().map(|answer| answer.tier).collect();
    let against: Vec<_> = failed.iter().filter_map(against).collect();
    let shown: Vec<_> = against
        .iter()
        .map(|(tier, message, diagnostics)| json!({"tier": tier, "error": message, "diagnostics": diagnostics}))
        .collect();
    out.show(&json!({"ok": true, "tiers": tiers, "diagnostics": warnings, "against": shown, "ms": ms}), |_| {
        let lines = |found: &[Diagnostic]| -> String {
            found.iter().map(|one| format!("{}\n", one.rendered.trim_end())).collect()
        };
        let mut text = lines(warnings);
        for (tier, message, diagnostics) in &against {
            text.push_str(&format!("{}against the {tier} tier: {message}\n", lines(diagnostics)));
        }
        let names: Vec<&str> = tiers.iter().map(|tier| tier.name()).collect();
        let tiers = if names.len() == 1 { "tier" } else { "tiers" };
        format!("{text}ok: it checks and compiles for the {tiers} {} ({ms} ms)\n", names.join(" and "))
    })
}

pub(super) fn test(folder: &Path, tier: CodeTier, args: &[OsString], out: &OutputPrinter) -> Result<(), CliError> {
    // What the tests pass, a push must not refuse.
    for warning in load(check_dir_in_tier(folder, tier, None, progress_printer(out))?, tier)? {
        eprintln!("{}", sandstorm_terminal::escape_lines(warning.rendered.trim_end()));
    }
    check_triggers(folder)?;
    let passed = match tier {
        CodeTier::Native => {
            // With `--json`, standard output is for the outcome alone.
            let stdout = if out.json { std::io::stderr().into() } else { Stdio::inherit() };
            test_dir(folder, None, args, stdout, progress_printer(out))?.success()
        }
        CodeTier::Sandboxed => match build_tests(folder, None, progress_printer(out))? {
            Ok(image) if out.json => run_tests(&image, args, &mut std::io::stderr())?,
            Ok(image) => run_tests(&image, args, &mut std::io::stdout())?,
            Err(_) => false,
        },
    };
    match (passed, out.json) {
        (true, true) => out.json(&json!({"ok": true})),
        (true, false) => Ok(()),
        (false, _) => Err(CliError::new("the tests did not pass").code("tests")),
    }
}

pub(super) fn check_module(file: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let started = Instant::now();
    let checked = offline::check_module(file, None, progress_printer(out))?;
    let ms = started.elapsed().as_millis() as u64;
    let CheckedModule { code_bytes, memory_bytes } = checked;
    out.show(&json!({"ok": true, "code_bytes": code_bytes, "memory_bytes": memory_bytes, "ms": ms}), |_| {
        let (code, memory) = (format_bytes(code_bytes), format_bytes(memory_bytes));
        format!("ok: it compiles for the tier sandboxed: {code} of machine code, {memory} of memory at the start ({ms} ms)\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_commands_repeat_the_options_that_were_given_and_no_token() {
        let given = [("SERVER", "db:7399"), ("TOKEN", "secret"), ("TENANT", "shop"), ("STATE", "/tmp/it's here")];
        let given = given.map(|(name, value)| (format!("SANDSTORM_{name}"), value.to_owned()));
        let options = repeated(&given);
        assert_eq!(options, r" --server db:7399 --tenant shop --state '/tmp/it'\''s here'");
        assert_eq!(with_options("sandstorm ext push sum", &options), format!("sandstorm{options} ext push sum"));
        assert_eq!(with_options("sandstorm ext push sum", &repeated(&[])), "sandstorm ext push sum");
    }
}
