//! `sandstorm ext …`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use clap::{ArgGroup, Args, Subcommand};
use sandstorm_builder::offline::{TierAnswer, check_dir, new_extension, test_dir};
use sandstorm_builder::{Artifact, BuildError, Diagnostic, MANIFEST_FILE, PushedSource};
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{
    Budget, DeniedToNative, ExtensionSource, ExtensionSourceFile, ExtensionStatus, NativeRemedy, PushOutcome,
    RecheckSpec,
};
use sandstorm_net::CodeTier;
use serde_json::json;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes, rendered};
use super::rebuild;
use super::session::CliSession;
use super::tenant::size_argument;

/// Extensions.
#[derive(Debug, Subcommand)]
pub(super) enum ExtCommand {
    /// Write a new extension, with comments and tests, that can be pushed as it is
    New {
        /// The folder to write; its last part is the extension's name
        folder: PathBuf,
        /// The name, if it is another than the folder's
        #[arg(long)]
        name: Option<String>,
    },
    /// Check and compile an extension as a server would, and tell in which tiers it passes; needs rustc, and no server
    Check(FolderArg),
    /// Run an extension's own tests against a stand-in of the store; needs rustc, and no server
    Test {
        #[command(flatten)]
        folder: FolderArg,
        /// Arguments to the tests, such as a name to filter by
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Send an extension's source to the server, which checks, compiles and loads it, in place of an older version
    Push {
        #[command(flatten)]
        folder: FolderArg,
        /// Send an artifact that `sandstorm builder build` made, instead of source
        #[arg(long, value_name = "FILE", conflicts_with = "folder")]
        artifact: Option<PathBuf>,
    },
    /// List the extensions that are loaded
    List,
    /// Show one extension: versions, budget, counters
    Show {
        /// Name of the extension
        name: String,
    },
    /// Unload an extension
    Unload {
        /// Name of the extension
        name: String,
    },
    /// Refuse calls of an extension until it is resumed
    Suspend {
        /// Name of the extension
        name: String,
    },
    /// Let calls of a suspended extension through again
    Resume {
        /// Name of the extension
        name: String,
    },
    /// Deny a shape of code to native extensions, and look for it in all that is loaded (with the operator's token)
    ///
    /// For the time between a new hole of the compiler and a rule against it: docs/security.md, \"The hour after a new
    /// hole\".
    Revoke(RevokeArgs),
    /// Check again all native code that is loaded, and build what a restart left out (with the operator's token)
    Recheck {
        /// What becomes of what does not pass: sandbox (built for the sandboxed tier) or suspend
        #[arg(long, value_name = "REMEDY", value_parser = remedy, default_value = "sandbox")]
        then: NativeRemedy,
    },
    /// Set what one call of an extension may use, in place of its tenant's quotas (with the operator's token)
    Budget(BudgetArgs),
}

/// Where an extension's source is.
#[derive(Debug, Args)]
pub(super) struct FolderArg {
    /// Folder with extension.toml and src/
    #[arg(default_value = ".")]
    folder: PathBuf,
}

/// What to deny, or to deny no more.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args(["rule", "end", "list"]))]
pub(super) struct RevokeArgs {
    /// A shape of syntax such as match-guard, an identifier, a path, or Rust tokens with $_ for one token and $* for
    /// any number
    #[arg(long, value_name = "PATTERN")]
    rule: Option<String>,
    /// Deny this pattern no more; `sandstorm tenant set NAME --code native` brings back what was moved for it
    #[arg(long, value_name = "PATTERN")]
    end: Option<String>,
    /// List what is denied
    #[arg(long)]
    list: bool,
    /// What becomes of what does not pass: sandbox (built for the sandboxed tier, while the old version serves) or
    /// suspend (at once)
    #[arg(long, value_name = "REMEDY", value_parser = remedy, default_value = "sandbox", conflicts_with_all = ["end", "list"])]
    then: NativeRemedy,
}

/// Parses what becomes of code that does not pass.
fn remedy(text: &str) -> Result<NativeRemedy, String> {
    match text {
        "sandbox" => Ok(NativeRemedy::Sandbox),
        "suspend" => Ok(NativeRemedy::Suspend),
        _ => Err("write sandbox or suspend".to_owned()),
    }
}

/// A budget; what is left out is the tenant's.
#[derive(Debug, Args)]
pub(super) struct BudgetArgs {
    /// Name of the extension
    name: String,
    /// CPU microseconds that a call may compute before others have their turn [default: the tenant's slice_us]
    #[arg(long)]
    slice_us: Option<u64>,
    /// CPU microseconds that a call may compute in all [default: the tenant's total_us]
    #[arg(long)]
    total_us: Option<u64>,
    /// Bytes of memory of a call, such as 16MiB [default: the tenant's arena_bytes]
    #[arg(long, value_parser = size_argument)]
    arena_bytes: Option<u64>,
    /// Bytes of a call's reply, at most [default: the tenant's reply_bytes]
    #[arg(long, value_parser = size_argument)]
    reply_bytes: Option<u64>,
}

pub(super) fn run(session: impl Fn() -> CliSession, command: ExtCommand, out: &OutputPrinter) -> Result<(), CliError> {
    match command {
        ExtCommand::New { folder, name } => new(&folder, name, out),
        ExtCommand::Check(FolderArg { folder }) => check(&folder, out),
        ExtCommand::Test { folder, args } => test(&folder.folder, &args, out),
        ExtCommand::Push { folder, artifact: None } => push(&session(), &folder.folder, out),
        ExtCommand::Push { artifact: Some(file), .. } => push_artifact(&session(), &file, out),
        ExtCommand::List => {
            let session = session();
            let tenant = session.tenant()?;
            out.show(&session.control().extensions(&tenant)?, |extensions| list(extensions))
        }
        ExtCommand::Show { name } => {
            let session = session();
            let tenant = session.tenant()?;
            out.show(&session.control().extension(&tenant, &name)?, show)
        }
        ExtCommand::Unload { name } => {
            let session = session();
            session.control().unload(&session.tenant()?, &name)?;
            out.done(&format!("unloaded {name}"))
        }
        ExtCommand::Suspend { name } => {
            let session = session();
            session.control().suspend(&session.tenant()?, &name)?;
            out.done(&format!("suspended {name}: its calls are refused"))
        }
        ExtCommand::Resume { name } => {
            let session = session();
            let tenant = session.tenant()?;
            if !session.control().extension(&tenant, &name)?.suspended {
                return out.done(&format!("{name} is not suspended: its calls are taken"));
            }
            session.control().resume(&tenant, &name)?;
            out.done(&format!("resumed {name}"))
        }
        ExtCommand::Revoke(args) => revoke(&session(), args, out),
        ExtCommand::Recheck { then } => recheck(&session(), None, then, out),
        ExtCommand::Budget(args) => {
            let session = session();
            let BudgetArgs { name, slice_us, total_us, arena_bytes, reply_bytes } = args;
            let budget = Budget { slice_us, total_us, arena_bytes, reply_bytes };
            session.control().set_budget(&session.tenant()?, &name, &budget)?;
            let own = [slice_us, total_us, arena_bytes, reply_bytes].iter().any(Option::is_some);
            let whose = if own { "a budget of its own" } else { "the budget that its tenant's quotas give it" };
            out.done(&format!("{name} has {whose}"))
        }
    }
}

fn revoke(session: &CliSession, args: RevokeArgs, out: &OutputPrinter) -> Result<(), CliError> {
    match args {
        RevokeArgs { rule: Some(rule), then, .. } => recheck(session, Some(rule), then, out),
        RevokeArgs { end: Some(pattern), .. } => {
            session.control().end_denied(&pattern)?;
            out.done(&format!("{pattern} is no longer denied to native code"))
        }
        RevokeArgs { .. } => out.show(&session.control().denied()?, |denied| {
            let since = |one: &DeniedToNative| match one.since_ms {
                Some(since_ms) => format_utc(since_ms),
                None => "the configuration".to_owned(),
            };
            let rows: Vec<_> = denied.iter().map(|one| vec![one.pattern.clone(), since(one)]).collect();
            columns(&["DENIED", "SINCE (UTC)"], &rows)
        }),
    }
}

fn recheck(
    session: &CliSession,
    rule: Option<String>,
    then: NativeRemedy,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let control = session.control();
    let begun = control.recheck(&RecheckSpec { rule, then })?;
    let ended = rebuild::wait(control, begun.id)?;
    out.show(&ended, |ended| format!("{}\n{}", ended.reason, rebuild::describe(ended)))
}

fn new(folder: &Path, name: Option<String>, out: &OutputPrinter) -> Result<(), CliError> {
    let last = || folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.or_else(last).ok_or_else(|| CliError::new("the folder has no name").hint("give --name NAME"))?;
    new_extension(folder, &name).map_err(|error| match error {
        BuildError::Refused(remarks) => {
            let reason = remarks.first().map_or("it is refused", |remark| remark.message.as_str());
            CliError::new(format!("{name:?} cannot be an extension's name: {reason}"))
                .hint("name another folder, or give --name NAME")
        }
        error => error.into(),
    })?;
    let shown = folder.display();
    out.show(&json!({"name": name, "folder": folder}), |_| {
        format!(
            "wrote {shown}: extension.toml, src/lib.rs, README.md\n\
             next: sandstorm ext test {shown}; sandstorm table create visits; sandstorm ext push {shown}; \
             sandstorm invoke {name} home\n"
        )
    })
}

/// Returns a printer of progress lines to standard error; none for programs (`--json`).
fn progress_printer(out: &OutputPrinter) -> Option<fn(&str)> {
    (!out.json).then_some(|line| eprintln!("{line}"))
}

fn check(folder: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let started = Instant::now();
    let [sandboxed, native] = check_dir(folder, None, progress_printer(out))?;
    let ms = started.elapsed().as_millis() as u64;
    let (passed, failed): (Vec<_>, Vec<_>) = [&sandboxed, &native].into_iter().partition(|one| one.outcome.is_ok());
    // What passes in no tier has one answer: that of the tier which refuses less.
    let Some(TierAnswer { outcome: Ok(warnings), .. }) = passed.first() else {
        return sandboxed.outcome.map(|_| ()).map_err(CliError::from);
    };
    let against = |answer: &&TierAnswer| {
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

fn test(folder: &Path, args: &[OsString], out: &OutputPrinter) -> Result<(), CliError> {
    // With `--json`, standard output is for the outcome alone.
    let stdout = if out.json { std::io::stderr().into() } else { Stdio::inherit() };
    let status = test_dir(folder, None, args, stdout, progress_printer(out))?;
    if status.success() {
        return if out.json { out.json(&json!({"ok": true})) } else { Ok(()) };
    }
    Err(CliError::new("the tests did not pass").code("tests"))
}

fn push(session: &CliSession, folder: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    // Read and checked here, so that a source that cannot be pushed fails without a server.
    let source = PushedSource::read(folder)?;
    let path = folder.join(MANIFEST_FILE);
    let manifest = std::fs::read_to_string(&path)
        .map_err(|error| CliError::new(format!("cannot read {}: {error}", path.display())))?;
    let files = source.files.into_iter().map(|file| ExtensionSourceFile { path: file.path, text: file.text }).collect();
    let tenant = session.tenant()?;
    let pushed = session.control().push(&tenant, &source.manifest.name, &ExtensionSource { manifest, files })?;
    show_pushed(&pushed, &tenant, out)
}

fn push_artifact(session: &CliSession, file: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let bytes = std::fs::read(file)
        .map_err(|error| CliError::new(format!("cannot read {}: {error}", file.display())).code("io"))?;
    // Only the name is read here; the server verifies the file.
    let artifact = Artifact::decode(&bytes)
        .map_err(|error| CliError::new(format!("{}: {error}", file.display())).hint(error.hint()).code(error.code()))?;
    let tenant = session.tenant()?;
    let pushed = session.control().push_artifact(&tenant, &artifact.header.name, &bytes)?;
    show_pushed(&pushed, &tenant, out)
}

fn show_pushed(pushed: &PushOutcome, tenant: &str, out: &OutputPrinter) -> Result<(), CliError> {
    out.show(pushed, |pushed| {
        let ExtensionStatus { name, version, library_bytes, .. } = &pushed.extension;
        let warnings = rendered(&pushed.diagnostics);
        format!(
            "{warnings}pushed {name} version {version} to tenant {tenant} in {} ms ({})\n",
            pushed.build_ms,
            format_bytes(*library_bytes)
        )
    })
}

fn list(extensions: &[ExtensionStatus]) -> String {
    let row = |extension: &ExtensionStatus| {
        let stats = &extension.stats;
        vec![
            extension.name.clone(),
            extension.version.to_string(),
            tier(extension.tier).to_owned(),
            state(extension),
            stats.invocations.to_string(),
            stats.ok.to_string(),
            stats.failed.to_string(),
            stats.killed.to_string(),
            stats.cpu_us.to_string(),
        ]
    };
    let rows: Vec<_> = extensions.iter().map(row).collect();
    columns(&["NAME", "VERSION", "TIER", "STATE", "CALLS", "OK", "FAILED", "KILLED", "CPU_US"], &rows)
}

/// The tier's name; servers that do not name it have one.
fn tier(tier: Option<CodeTier>) -> &'static str {
    tier.map_or("native", CodeTier::name)
}

fn state(extension: &ExtensionStatus) -> String {
    match (extension.suspended, extension.slowed_to_per_s) {
        (true, _) => "suspended".to_owned(),
        (false, 0) => "loaded".to_owned(),
        (false, rate) => format!("slowed to {rate}/s"),
    }
}

fn show(extension: &ExtensionStatus) -> String {
    let ExtensionStatus { stats, budget, .. } = extension;
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let causes: Vec<String> = stats.killed_by.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    let mut text = fields(&[
        ("name", extension.name.clone()),
        ("version", format!("{} (manifest {})", extension.version, extension.manifest_version)),
        ("tier", tier(extension.tier).to_owned()),
        ("state", state(extension)),
        ("notice", extension.notice.clone().unwrap_or_else(|| "-".to_owned())),
        ("source", format!("sha256 {}", extension.source_digest)),
        (
            "source kept",
            if extension.source_kept {
                "yes"
            } else {
                "no (it was uploaded as an artifact, or pushed to an earlier server)"
            }
            .to_owned(),
        ),
        ("library", format_bytes(extension.library_bytes)),
        ("slice_us", number(budget.slice_us)),
        ("total_us", number(budget.total_us)),
        ("arena_bytes", number(budget.arena_bytes)),
        ("reply_bytes", number(budget.reply_bytes)),
        ("calls", format!("{}: {} ok, {} failed, {} killed", stats.invocations, stats.ok, stats.failed, stats.killed)),
        ("killed by", if causes.is_empty() { "-".to_owned() } else { causes.join(", ") }),
        ("cpu_us", stats.cpu_us.to_string()),
        (
            "transactions",
            format!("{} committed, {} run again, {} conflicts", stats.commits, stats.retries, stats.conflicts),
        ),
    ]);
    let row = |version: &sandstorm_client::control::ExtensionVersion| {
        vec![
            version.version.to_string(),
            tier(version.tier).to_owned(),
            version.state.clone(),
            version.manifest_version.clone(),
            version.source_digest.chars().take(12).collect(),
            format_bytes(version.library_bytes),
        ]
    };
    let rows: Vec<_> = extension.versions.iter().map(row).collect();
    text.push('\n');
    text.push_str(&columns(&["VERSION", "TIER", "STATE", "MANIFEST", "SOURCE", "LIBRARY"], &rows));
    text
}
