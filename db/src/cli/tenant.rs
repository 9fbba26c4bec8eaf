//! `sandstorm tenant …`

use std::time::Duration;

use clap::Subcommand;
use sandstorm_client::control::{QuotaMap, RotatedToken, TenantPatch, TenantSpec, TenantStatus};
use sandstorm_net::CodePolicy;
use serde_json::json;

use super::output::{CliError, OutputPrinter, columns, fields, format_bytes};
use super::rebuild;
use super::session::CliSession;
use super::token::{describe_old_token, describe_time_left, grace};

/// Tenants.
#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Create a tenant; prints its token, which is not shown again
    Create {
        /// Name of the new tenant: 1 to 64 letters, digits, '_', '-' and '.'
        name: String,
        /// Let clients use its data without a token; for servers on loopback
        #[arg(long)]
        open: bool,
        /// Its number, as clients send it [default: the next free one]
        #[arg(long)]
        id: Option<u32>,
        /// Number of the worker that serves it from now on, from 0 [default: assigned by turns; it follows the load]
        #[arg(long, value_name = "WORKER")]
        home: Option<u32>,
        /// The code that it may push and call: sandboxed; native, for authors that you trust not to look for holes in
        /// the compiler; or none [default: the server's, sandboxed unless configured]
        #[arg(long, value_name = "TIER")]
        code: Option<CodePolicy>,
        /// A quota, such as memory_bytes=1GB; may be repeated. `sandstorm tenant show` lists all of them
        #[arg(long = "quota", value_name = "NAME=VALUE", value_parser = quota)]
        quotas: Vec<(String, u64)>,
    },
    /// List the tenants
    List,
    /// Show one tenant: id, quotas, and how much of them is used
    Show {
        /// Name of the tenant
        name: String,
    },
    /// Change a tenant's quotas or settings; changes hold at once
    Set {
        /// Name of the tenant
        name: String,
        /// Whether clients use its data without a token
        #[arg(long)]
        open: Option<bool>,
        /// Number of the worker that serves it from now on, from 0; `auto`: it follows the load again
        #[arg(long, value_name = "WORKER", value_parser = home_choice)]
        home: Option<HomeChoice>,
        /// The code that it may push and call: sandboxed, native or none. Its extensions are built for that tier while
        /// the old ones serve; those that cannot be are suspended, and listed
        #[arg(long, value_name = "TIER")]
        code: Option<CodePolicy>,
        /// A quota, such as total_us=20000; may be repeated. `sandstorm tenant show` lists all of them
        #[arg(long = "quota", value_name = "NAME=VALUE", value_parser = quota)]
        quotas: Vec<(String, u64)>,
    },
    /// Delete a tenant with all its tables and extensions
    Delete {
        /// Name of the tenant
        name: String,
    },
    /// Give a tenant a new token at once: the old one stops working (for one that is lost or leaked)
    Token {
        /// Name of the tenant
        name: String,
    },
    /// Give a tenant a new token; the old one goes on working for --grace
    Rotate {
        /// Name of the tenant
        name: String,
        /// How long the old token goes on working: 90s, 30m, 1h, 7d, or 0 [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = grace)]
        grace: Option<Duration>,
        /// Make no new token; stop the old one from working now
        #[arg(long, conflicts_with = "grace")]
        revoke_old: bool,
    },
}

/// Where a tenant's home worker is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HomeChoice {
    /// At that worker, whatever the load.
    Fixed(u32),
    /// Where the load has it.
    Auto,
}

fn home_choice(text: &str) -> Result<HomeChoice, String> {
    match text {
        "auto" => Ok(HomeChoice::Auto),
        number => {
            let number = number.parse().map_err(|_| "write the number of a worker, or auto".to_owned())?;
            Ok(HomeChoice::Fixed(number))
        }
    }
}

/// Parses `name=value`.
pub(super) fn quota(text: &str) -> Result<(String, u64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as slice_us=500")?;
    let value = size(value).ok_or_else(|| format!("{value:?} is no number"))?;
    Ok((name.to_owned(), value))
}

/// Parses a number, or one with a unit: `64KiB`, `10MB`, `1G` (K, M, G, T: powers of 1024; with B: of 1000).
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number: u64 = text[..digits].replace('_', "").parse().ok()?;
    let factor: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// As [`size`], for an argument.
pub(super) fn size_argument(text: &str) -> Result<u64, String> {
    size(text).ok_or_else(|| "write a number of bytes, or one with a unit, such as 64MiB".to_owned())
}

pub(super) fn run(session: &CliSession, command: TenantCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    match command {
        TenantCommand::Create { name, open, id, home, code, quotas } => {
            let quotas: QuotaMap = quotas.into_iter().collect();
            let new = TenantSpec { name, open, id, home_worker: home, code, quotas, ..TenantSpec::default() };
            let created = control.create_tenant(&new)?;
            let kept = session.save_token(&created.tenant.name, &created.token);
            out.show(&created, |created| {
                let note = if kept { "kept in the state directory" } else { "write it down: it is not shown again" };
                format!(
                    "created tenant {} (id {})\ntoken: {}\n({note})\n",
                    created.tenant.name, created.tenant.id, created.token
                )
            })
        }
        TenantCommand::List => out.show(&control.tenants()?, |tenants| list(tenants)),
        TenantCommand::Show { name } => out.show(&control.tenant(&name)?, show),
        TenantCommand::Set { name, open, home, code, quotas } => {
            let (home_worker, home_fixed) = match home {
                Some(HomeChoice::Fixed(worker)) => (Some(worker), Some(true)),
                Some(HomeChoice::Auto) => (None, Some(false)),
                None => (None, None),
            };
            let change = TenantPatch { open, home_worker, home_fixed, code, quotas: quotas.into_iter().collect() };
            let changed = control.change_tenant(&name, &change)?;
            let Some(id) = changed.rebuild else { return out.show(&changed, show) };
            let rebuild = rebuild::wait(control, id)?;
            out.show(&json!({"tenant": changed, "rebuild": rebuild}), |_| {
                let note = changed.not_everywhere.iter().map(|why| format!("{why}\n")).collect::<String>();
                format!("tenant {name} has code = {}\n{}{note}", code_of(&changed), rebuild::describe(&rebuild))
            })
        }
        TenantCommand::Delete { name } => {
            control.delete_tenant(&name)?;
            session.forget_token(&name);
            out.done(&format!("deleted tenant {name}"))
        }
        TenantCommand::Token { name } => {
            let rotated = control.rotate_token(&name)?;
            session.save_token(&name, &rotated.token);
            out.show(&rotated, describe_rotated)
        }
        TenantCommand::Rotate { name, revoke_old: true, .. } => {
            control.revoke_old_token(&name)?;
            out.done(&format!("the old token of tenant {name} is void"))
        }
        TenantCommand::Rotate { name, grace, .. } => {
            let rotated = control.rotate_with_grace(&name, grace)?;
            session.save_token(&name, &rotated.token);
            out.show(&rotated, describe_rotated)
        }
    }
}

fn describe_rotated(rotated: &RotatedToken) -> String {
    let old = describe_old_token(rotated.old_until_ms);
    let not_everywhere = rotated.not_everywhere.iter().map(|why| format!("{why}\n"));
    format!("token: {}\n{old}\n{}", rotated.token, not_everywhere.collect::<String>())
}

fn list(tenants: &[TenantStatus]) -> String {
    let row = |tenant: &TenantStatus| {
        vec![
            tenant.name.clone(),
            tenant.id.to_string(),
            if tenant.open { "yes" } else { "no" }.to_owned(),
            tenant.home_worker.to_string(),
            code_of(tenant),
            tenant.tables.to_string(),
            tenant.extensions.to_string(),
            format_bytes(tenant.memory_bytes),
            tenant.running.to_string(),
        ]
    };
    let rows: Vec<_> = tenants.iter().map(row).collect();
    columns(&["NAME", "ID", "OPEN", "HOME", "CODE", "TABLES", "EXTENSIONS", "MEMORY", "RUNNING"], &rows)
}

/// The tenant's code policy; servers that do not name it have one tier.
fn code_of(tenant: &TenantStatus) -> String {
    tenant.code.map_or("native", CodePolicy::name).to_owned()
}

fn show(tenant: &TenantStatus) -> String {
    let mut rows = vec![
        ("name", tenant.name.clone()),
        ("id", tenant.id.to_string()),
        ("open", tenant.open.to_string()),
        ("home worker", format!("{}{}", tenant.home_worker, if tenant.home_fixed { ", fixed" } else { "" })),
        ("code", code_of(tenant)),
        ("tables", tenant.tables.to_string()),
        ("extensions", tenant.extensions.to_string()),
        ("grants given", tenant.grants_given.to_string()),
        ("grants received", tenant.grants_received.to_string()),
        ("memory", format_bytes(tenant.memory_bytes)),
        ("running", tenant.running.to_string()),
    ];
    if let Some(until_ms) = tenant.old_token_until_ms {
        rows.push(("old token", format!("works for {} more", describe_time_left(until_ms))));
    }
    rows.extend(tenant.not_everywhere.iter().map(|why| ("note", why.clone())));
    rows.push(("quotas", String::new()));
    let quotas: Vec<(String, String)> = tenant
        .quotas
        .iter()
        .map(|(name, value)| {
            let unlimited = name == "requests_per_s" && *value == 0;
            let shown = match tenant.used.get(name) {
                Some(used) => format!("{value} (used: {used})"),
                None if unlimited => "unlimited".to_owned(),
                None => value.to_string(),
            };
            (format!("  {name}"), shown)
        })
        .collect();
    rows.extend(quotas.iter().map(|(name, value)| (name.as_str(), value.clone())));
    fields(&rows)
}
