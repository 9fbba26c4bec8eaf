//! `sandstorm ext …`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Subcommand};
use sandstorm_builder::{Artifact, ExtensionTemplate, MANIFEST_FILE, PushedModule, PushedSource, TEMPLATES};
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{
    Budget, Control, DeniedToNative, Deploy, DurationStats, ExtensionSort, ExtensionSource, ExtensionSourceFile,
    ExtensionStatus, ExtensionSummary, LatencyRow, NativeRemedy, PushOutcome, RecheckSpec,
};
use sandstorm_client::schema::{ExtensionSchema, TypeBody, ValueType};
use sandstorm_net::{CodeOrigin, CodeTier};

use super::ext_calls::{self, CallsArgs};
use super::ext_dev::{self, ExtDevArgs};
use super::ext_generate::{self, GenerateArgs};
use super::ext_logs::{self, LogsArgs};
use super::ext_offline;
use super::ext_versions::{self, tier};
use super::folder_arg::FolderArg;
use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns, fields, format_bytes, rendered};
use super::profile::{self, ProfileArgs};
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
        /// What to begin with
        #[arg(long, value_name = "TEMPLATE", default_value = TEMPLATES[0].name,
              value_parser = PossibleValuesParser::new(TEMPLATES.map(|template| template.name))
                  .map(|name| ExtensionTemplate::by_name(&name).unwrap_or(&TEMPLATES[0])))]
        template: &'static ExtensionTemplate,
    },
    /// Check and compile an extension as a server would, and show the tiers in which it passes. Needs rustc, no server
    Check {
        #[command(flatten)]
        folder: FolderArg,
        /// Check a WebAssembly module that was made elsewhere, instead of source
        #[arg(long, value_name = "FILE", conflicts_with = "folder")]
        wasm: Option<PathBuf>,
    },
    /// Check an extension as a server would, then run its tests against a store in memory. Needs rustc, no server
    Test {
        #[command(flatten)]
        folder: FolderArg,
        /// The tier, as the tenant's policy asks for it: sandboxed or native
        #[arg(long, value_name = "TIER", default_value_t)]
        code: CodeTier,
        /// Arguments to the tests, such as a name to filter by
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Watch an extension's folder: after each change of a file, test and push it. Follows its log, too
    Dev(ExtDevArgs),
    /// Write rust-project.json, with which an editor that has rust-analyzer understands the extension
    Editor {
        #[command(flatten)]
        folder: FolderArg,
    },
    /// Send an extension's source to the server, which checks, compiles and loads it. It replaces an older version
    Push {
        #[command(flatten)]
        folder: FolderArg,
        /// Send an artifact that `sandstorm builder build` made, instead of source
        #[arg(long, value_name = "FILE", conflicts_with = "folder")]
        artifact: Option<PathBuf>,
        /// Send a WebAssembly module that was made elsewhere, instead of source
        #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "artifact"])]
        wasm: Option<PathBuf>,
        /// The extension's name, if it is another than the module's file's
        #[arg(long, requires = "wasm")]
        name: Option<String>,
        /// Load it, but go on calling the old version. `ext rollback` or `ext deploy` calls the new one
        #[arg(long)]
        stage: bool,
    },
    /// List the kept versions of an extension, each with its calls, kills and latency
    Versions {
        /// Name of the extension
        name: String,
        /// Also those that are gone
        #[arg(long)]
        all: bool,
    },
    /// Call another kept version of an extension from now on. Calls under way end in the version that they began with
    Rollback {
        /// Name of the extension
        name: String,
        /// The version's number [default: the newest below the one that is called]
        version: Option<u64>,
    },
    /// Try a kept version on a share of the calls. A key always goes to the same version. The server ends the trial if
    /// that version is killed or fails more often than the other, or is slower
    Deploy {
        /// The extension and the number of the version, NAME@7
        #[arg(value_name = "NAME@VERSION", value_parser = ext_versions::named_version)]
        version: (String, u64),
        /// Its share of the keys, in percent. 100 calls it alone from now on, 0 ends the trial
        #[arg(long, value_parser = clap::value_parser!(u32).range(0..=100))]
        percent: u32,
    },
    /// List the extensions that are loaded
    List(ListArgs),
    /// Show one extension: versions, budget, counters
    Show {
        /// Name of the extension
        name: String,
    },
    /// Write a client of a typed extension in another language
    Generate(GenerateArgs),
    /// Show the lines that extensions have written: error!, warn!, info!, debug!
    Logs(LogsArgs),
    /// List the calls under way, with --where at which lines they are
    Calls(CallsArgs),
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
    /// Accept calls of a suspended extension again
    Resume {
        /// Name of the extension
        name: String,
    },
    /// Forbid a pattern of code in native extensions, and look for it in all that are loaded (operator's token)
    ///
    /// For the time between a new hole of the compiler and a rule against it: docs/security.md, \"The hour after a new
    /// hole\".
    Revoke(RevokeArgs),
    /// Check all loaded native code again, and build what a restart has left out (operator's token)
    Recheck {
        /// What to do with an extension that does not pass: sandbox (build it for the sandboxed tier) or suspend
        #[arg(long, value_name = "REMEDY", value_parser = remedy, default_value = "sandbox")]
        then: NativeRemedy,
    },
    /// Set what one call of an extension may use, in place of its tenant's quotas (operator's token)
    Budget(BudgetArgs),
    /// Sample where an extension's code spends its time, and show the lines or write a flame graph
    Profile(ProfileArgs),
}

/// What to deny, or to deny no more.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args(["rule", "end", "list"]))]
pub(super) struct RevokeArgs {
    /// The pattern: a form of syntax such as match-guard, an identifier, a path, or Rust tokens, where $_ is any token
    /// and $* any number of them
    #[arg(long, value_name = "PATTERN")]
    rule: Option<String>,
    /// Allow this pattern again; `sandstorm tenant set NAME --code native` brings back what was moved for it
    #[arg(long, value_name = "PATTERN")]
    end: Option<String>,
    /// List the forbidden patterns
    #[arg(long)]
    list: bool,
    /// What to do with an extension that does not pass: sandbox (build it for the sandboxed tier, while the old version
    /// serves) or suspend (at once)
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
    /// CPU microseconds of a call before other calls have their turn [default: the tenant's slice_us]
    #[arg(long)]
    slice_us: Option<u64>,
    /// CPU microseconds of a call in all [default: the tenant's total_us]
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
        ExtCommand::New { folder, name, template } => ext_offline::new(&folder, name, template, out),
        ExtCommand::Check { wasm: Some(file), .. } => ext_offline::check_module(&file, out),
        ExtCommand::Check { folder, .. } => ext_offline::check(&folder.folder, out),
        ExtCommand::Test { folder, code, args } => ext_offline::test(&folder.folder, code, &args, out),
        ExtCommand::Dev(args) => ext_dev::run(session(), &args, out),
        ExtCommand::Editor { folder } => ext_offline::editor(&folder.folder, out),
        ExtCommand::Push { wasm: Some(file), name, stage, .. } => {
            push_module(&session(), (&file, name.as_deref()), stage, out)
        }
        ExtCommand::Push { artifact: Some(file), stage, .. } => push_artifact(&session(), &file, stage, out),
        ExtCommand::Push { folder, stage, .. } => push(&session(), &folder.folder, stage, out),
        ExtCommand::Versions { name, all } => ext_versions::list(&session(), &name, all, out),
        ExtCommand::Deploy { version: (name, version), percent } => {
            ext_versions::deploy(&session(), &name, Deploy { version, percent }, out)
        }
        ExtCommand::Rollback { name, version } => ext_versions::roll_back(&session(), &name, version, out),
        ExtCommand::List(args) if args.all => list_all(&session(), &args, out),
        ExtCommand::List(_) => {
            let session = session();
            let tenant = session.tenant()?;
            out.show(&session.control().extensions(&tenant)?, |extensions| list(extensions))
        }
        ExtCommand::Show { name } => {
            let session = session();
            let tenant = session.tenant()?;
            out.show(&session.control().extension(&tenant, &name)?, show)
        }
        ExtCommand::Generate(args) => ext_generate::run(&session, &args, out),
        ExtCommand::Logs(args) => ext_logs::run(&session(), args, out),
        ExtCommand::Calls(args) => ext_calls::run(&session(), &args, out),
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
        ExtCommand::Profile(args) => profile::run(&session(), &args, out),
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

/// The connection for a push.
fn pushing(session: &CliSession, stage: bool) -> Control {
    if stage { session.control().staging() } else { session.control().clone() }
}

fn push(session: &CliSession, folder: &Path, stage: bool, out: &OutputPrinter) -> Result<(), CliError> {
    // Read and checked here, so that a source that cannot be pushed fails without a server.
    let source = PushedSource::read(folder)?;
    let path = folder.join(MANIFEST_FILE);
    let manifest = std::fs::read_to_string(&path)
        .map_err(|error| CliError::new(format!("cannot read {}: {error}", path.display())))?;
    let files = source.files.into_iter().map(|file| ExtensionSourceFile { path: file.path, text: file.text }).collect();
    let tenant = session.tenant()?;
    let pushed = pushing(session, stage).push(&tenant, &source.manifest.name, &ExtensionSource { manifest, files })?;
    show_pushed(&pushed, &tenant, out)
}

fn push_artifact(session: &CliSession, file: &Path, stage: bool, out: &OutputPrinter) -> Result<(), CliError> {
    let bytes = std::fs::read(file)
        .map_err(|error| CliError::new(format!("cannot read {}: {error}", file.display())).code("io"))?;
    // Only the name is read here; the server verifies the file.
    let artifact = Artifact::decode(&bytes)
        .map_err(|error| CliError::new(format!("{}: {error}", file.display())).hint(error.hint()).code(error.code()))?;
    let tenant = session.tenant()?;
    let pushed = pushing(session, stage).push_artifact(&tenant, &artifact.header.name, &bytes)?;
    show_pushed(&pushed, &tenant, out)
}

fn push_module(
    session: &CliSession,
    (file, name): (&Path, Option<&str>),
    stage: bool,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    // Read and checked here, as a source is.
    let module = PushedModule::read(file, name)?;
    let tenant = session.tenant()?;
    show_pushed(&pushing(session, stage).push_module(&tenant, &module.name, &module.wasm)?, &tenant, out)
}

fn show_pushed(pushed: &PushOutcome, tenant: &str, out: &OutputPrinter) -> Result<(), CliError> {
    out.show(pushed, |pushed| {
        let ExtensionStatus { name, version: called, versions, .. } = &pushed.extension;
        // A server that stages nothing does not say the number.
        let version = if pushed.version == 0 { *called } else { pushed.version };
        let bytes = versions.iter().find(|row| row.version == version).map_or(0, |row| row.library_bytes);
        let (warnings, size) = (rendered(&pushed.diagnostics), format_bytes(bytes));
        let done = if version == *called { "pushed" } else { "staged" };
        let called = if version == *called { String::new() } else { format!("; version {called} is called on") };
        format!(
            "{warnings}{done} {name} version {version} to tenant {tenant} in {} ms ({size}){called}\n",
            pushed.build_ms
        )
    })
}

/// Which extensions are listed.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Those of all tenants, or of the tenant that is named
    #[arg(long)]
    all: bool,
    /// Order, largest first: cpu, calls, kills, p50, p99, or by name
    #[arg(long, value_enum, default_value_t, requires = "all")]
    sort: ListOrder,
    /// Extensions to show, at most
    #[arg(long, default_value_t = 100, requires = "all")]
    limit: usize,
}

/// The order of extensions.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum ListOrder {
    /// By tenant and name
    #[default]
    Name,
    /// By CPU time since the first push
    Cpu,
    /// By calls since then
    Calls,
    /// By kills since then
    Kills,
    /// By the median of how long calls took, since it was loaded
    P50,
    /// By the 99th percentile
    P99,
}

fn list_all(session: &CliSession, args: &ListArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let sort = match args.sort {
        ListOrder::Name => ExtensionSort::Name,
        ListOrder::Cpu => ExtensionSort::Cpu,
        ListOrder::Calls => ExtensionSort::Calls,
        ListOrder::Kills => ExtensionSort::Kills,
        ListOrder::P50 => ExtensionSort::P50,
        ListOrder::P99 => ExtensionSort::P99,
    };
    let all = session.control().all_extensions(session.named_tenant(), sort, args.limit)?;
    let row = |one: &ExtensionSummary| {
        let head = [one.tenant.clone(), one.name.clone(), one.version.to_string(), tier(one.tier).to_owned()];
        let counts = [one.stats.invocations, one.stats.failed, one.stats.killed, one.stats.cpu_us];
        let state = std::iter::once(state(one.suspended, one.slowed_to_per_s));
        let durations = [one.p50_ns, one.p99_ns].map(format_duration);
        head.into_iter().chain(state).chain(counts.map(|count| count.to_string())).chain(durations).collect()
    };
    out.show(&all, |all| {
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        let head = ["TENANT", "NAME", "VERSION", "TIER", "STATE", "CALLS", "FAILED", "KILLED", "CPU_US", "P50", "P99"];
        columns(&head, &rows)
    })
}

fn list(extensions: &[ExtensionStatus]) -> String {
    let row = |extension: &ExtensionStatus| {
        let stats = &extension.stats;
        vec![
            extension.name.clone(),
            extension.version.to_string(),
            tier(extension.tier).to_owned(),
            state(extension.suspended, extension.slowed_to_per_s),
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

/// What an extension was built from.
fn origin(origin: CodeOrigin) -> &'static str {
    match origin {
        CodeOrigin::Source => "Rust source",
        CodeOrigin::Module => "a WebAssembly module",
    }
}

fn state(suspended: bool, slowed_to_per_s: u32) -> String {
    match (suspended, slowed_to_per_s) {
        (true, _) => "suspended".to_owned(),
        (false, 0) => "loaded".to_owned(),
        (false, rate) => format!("slowed to {rate}/s"),
    }
}

/// The functions and types of an extension, as in Rust.
fn types(schema: &ExtensionSchema) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    for function in &schema.functions {
        let args = if function.args == ValueType::Unit { String::new() } else { function.args.to_string() };
        line(format!("fn {}({args}) -> {}", function.name, function.reply));
    }
    for one in &schema.types {
        match &one.body {
            TypeBody::Struct(body) => {
                let fields: Vec<String> =
                    body.fields.iter().map(|field| format!("{}: {}", field.name, field.value)).collect();
                line(format!("struct {} {{ {} }}", one.name, fields.join(", ")));
            }
            TypeBody::Enum(body) => {
                let variants: Vec<String> = body.variants.iter().map(ToString::to_string).collect();
                line(format!("enum {} {{ {} }}", one.name, variants.join(", ")));
            }
        }
    }
    text
}

/// How long the calls of the version that runs took.
fn distributions(latency: &LatencyRow) -> String {
    let row = |name: &str, part: &DurationStats| {
        let durations = [part.p50_ns, part.p90_ns, part.p99_ns, part.p999_ns].map(format_duration);
        std::iter::once(name.to_owned()).chain(durations).collect()
    };
    let mut rows = vec![row("cpu", &latency.service), row("waiting", &latency.waiting), row("wall", &latency.total)];
    // Of some calls, behind their time.
    if latency.sending.count > 0 {
        rows.push(row("sending", &latency.sending));
    }
    let calls = format!("{} CALLS", latency.total.count);
    columns(&[calls.as_str(), "P50", "P90", "P99", "P99.9"], &rows)
}

fn show(extension: &ExtensionStatus) -> String {
    let ExtensionStatus { stats, budget, .. } = extension;
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let causes: Vec<String> = stats.killed_by.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    let mut text = fields(&[
        ("name", extension.name.clone()),
        (
            "version",
            match extension.manifest_version.as_str() {
                "" => extension.version.to_string(),
                manifest => format!("{} (manifest {manifest})", extension.version),
            },
        ),
        ("tier", tier(extension.tier).to_owned()),
        (
            "tried",
            extension.deployment.map_or_else(
                || "-".to_owned(),
                |tried| format!("version {} on {} % of the keys", tried.version, tried.percent),
            ),
        ),
        ("built from", origin(extension.origin).to_owned()),
        ("state", state(extension.suspended, extension.slowed_to_per_s)),
        ("notice", extension.notice.clone().unwrap_or_else(|| "-".to_owned())),
        (if extension.origin.is_source() { "source" } else { "module" }, format!("sha256 {}", extension.source_digest)),
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
    if let Some(schema) = &extension.schema {
        text.push('\n');
        text.push_str(&types(schema));
    }
    if let Some(latency) = &extension.latency {
        text.push('\n');
        text.push_str(&distributions(latency));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_replies_were_sent_is_a_row_where_it_was_measured() {
        let part = |count| DurationStats { count, p99_ns: 1_500, ..DurationStats::default() };
        let latency = LatencyRow { total: part(32), ..LatencyRow::default() };
        assert!(!distributions(&latency).contains("sending"));
        let text = distributions(&LatencyRow { sending: part(2), ..latency });
        assert!(text.lines().any(|line| line.starts_with("sending ") && line.contains("1.50us")), "{text}");
    }
}
