//! `sandstorm token …` and `sandstorm operator …`: tokens as such, those of viewers, and the operator's own.

use std::io::{IsTerminal, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Subcommand, ValueEnum};
use sandstorm_accounts::{TokenHash, token};
use sandstorm_catalog::format_utc;
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;
use sandstorm_client::control::{AccessTokenSpec, AccessTokenStatus, CreatedAccessToken, RotatedToken};
use sandstorm_control::config::read_operator_token;
use serde_json::json;

use super::output::{CliError, OutputPrinter, columns, fields};
use super::session::CliSession;

/// Makes tokens.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token, and print it with its token_hash for the configuration file; contacts no server
    New,
    /// Read a token from standard input, and print its token_hash for the configuration file
    Hash,
    /// Make a viewer's token, and print it: it sees counters, events, kills and names, and changes nothing
    Create {
        /// Name of the token, such as prometheus
        name: String,
        /// What it sees: the server, or the tenant of --tenant
        #[arg(long, value_enum, default_value_t = ViewerRole::Viewer)]
        role: ViewerRole,
        /// How long it works: 90s, 30m, 1h, 7d [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
    },
    /// List viewers' tokens, without the tokens themselves: all, or those of the viewers of --tenant
    List,
    /// Revoke a viewer's token: it is void at once, with the sessions of the page that began with it
    Revoke {
        /// Name of the token
        name: String,
        /// Whose it is: of a viewer of the server, or of the tenant of --tenant
        #[arg(long, value_enum, default_value_t = ViewerRole::Viewer)]
        role: ViewerRole,
    },
}

/// The roles that tokens are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ViewerRole {
    /// Sees the whole server.
    Viewer,
    /// Sees one tenant.
    TenantViewer,
}

/// The operator's token.
#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Show whether the token before the last rotation still works
    Show,
    /// Make a new token, and write it into the server's state directory
    Rotate {
        /// How long the old token goes on working: 90s, 30m, 1h, 7d, or 0 [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = grace)]
        grace: Option<Duration>,
        /// Make no new token; stop the old one from working now
        #[arg(long, conflicts_with = "grace")]
        revoke_old: bool,
    },
}

/// Parses a duration with its unit: `90s`, `30m`, `1h`, `7d`; a bare number is seconds.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write a number and a unit, such as 90s, 30m, 1h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses the time for which an old token still works, up to the server's limit.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let grace = parse_duration(text)?;
    if grace > OLD_TOKEN_GRACE_MAX {
        let days = OLD_TOKEN_GRACE_MAX.as_secs() / 86_400;
        return Err(format!("longer than {days}d; give less, and rotate again when it is over"));
    }
    Ok(grace)
}

/// Describes the state of the old token.
pub(super) fn describe_old_token(until_ms: Option<u64>) -> String {
    match until_ms {
        None => "the old one is void".to_owned(),
        Some(until_ms) => format!("the old one works for {} more", describe_time_left(until_ms)),
    }
}

/// Describes the time that is left until then.
pub(super) fn describe_time_left(until_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let seconds = (u128::from(until_ms).saturating_sub(now)).div_ceil(1000);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=5399 => format!("{} min", seconds.div_ceil(60)),
        5400..=172_799 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

pub(super) fn run(
    session: impl FnOnce() -> CliSession,
    command: &TokenCommand,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let (token, stored) = match command {
        TokenCommand::Create { .. } | TokenCommand::List | TokenCommand::Revoke { .. } => {
            return viewers(&session(), command, out);
        }
        TokenCommand::New => {
            let token = token::generate();
            let stored = TokenHash::of(token.as_bytes());
            (Some(token), stored)
        }
        TokenCommand::Hash => (None, hash()?),
    };
    let stored = stored.to_text();
    if out.json {
        return out.json(&json!({"token": token, "token_hash": stored}));
    }
    match token {
        Some(token) => out.line(&format!("token: {token}\ntoken_hash: {stored}")),
        None => out.line(&stored),
    }
}

/// The tokens of viewers.
fn viewers(session: &CliSession, command: &TokenCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    let tenant_of = |role: ViewerRole| match role {
        ViewerRole::Viewer => Ok(None),
        ViewerRole::TenantViewer => session.tenant().map(Some),
    };
    match command {
        TokenCommand::New | TokenCommand::Hash => Ok(()),
        TokenCommand::Create { name, role, expires } => {
            let spec = AccessTokenSpec { name: name.clone(), expires_s: expires.map(|expires| expires.as_secs()) };
            let created = control.create_access_token(tenant_of(*role)?.as_deref(), &spec)?;
            out.show(&created, |created: &CreatedAccessToken| {
                format!("token: {}\n(a {}; it is not shown again)\n", created.token, created.access.role)
            })
        }
        TokenCommand::List => out.show(&control.access_tokens(session.named_tenant())?, |tokens| {
            let row = |token: &AccessTokenStatus| {
                let ends = token.expires_ms.map_or("when revoked".to_owned(), format_utc);
                let tenant = token.tenant.clone().unwrap_or_default();
                vec![token.name.clone(), token.role.clone(), tenant, format_utc(token.created_ms), ends]
            };
            let rows: Vec<Vec<String>> = tokens.iter().map(row).collect();
            columns(&["NAME", "ROLE", "TENANT", "MADE (UTC)", "ENDS (UTC)"], &rows)
        }),
        TokenCommand::Revoke { name, role } => {
            control.revoke_access_token(tenant_of(*role)?.as_deref(), name)?;
            out.done(&format!("the token {name} is void"))
        }
    }
}

fn hash() -> Result<TokenHash, CliError> {
    if std::io::stdin().is_terminal() {
        // Not as an argument: other users of the machine see those.
        eprintln!("paste the token, then press return and ctrl-d");
    }
    let mut text = String::new();
    std::io::stdin().take(1 + 2 * token::MAX_TOKEN_LEN as u64).read_to_string(&mut text)?;
    TokenHash::of_chosen(text.trim()).ok_or_else(|| {
        CliError::new("what was read is no token").hint("20 to 256 printable characters without blanks, on one line")
    })
}

pub(super) fn operator(session: &CliSession, command: &OperatorCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    match command {
        OperatorCommand::Show => out.show(&control.operator()?, |operator| {
            fields(&[(
                "old token",
                operator
                    .old_until_ms
                    .map_or("none".to_owned(), |ms| format!("works for {} more", describe_time_left(ms))),
            )])
        }),
        OperatorCommand::Rotate { revoke_old: true, .. } => {
            control.revoke_old_operator_token()?;
            out.done("the old token is void")
        }
        OperatorCommand::Rotate { grace, .. } => {
            let rotated = control.rotate_operator(*grace)?;
            out.show(&rotated, |rotated: &RotatedToken| {
                // On the server's machine its file holds it already: no reason to print it.
                let stored = read_operator_token(session.state()).is_ok_and(|token| token == rotated.token);
                let token = if stored { "kept in the state directory" } else { &rotated.token };
                format!("token: {token}\n{}\n", describe_old_token(rotated.old_until_ms))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| parse_duration(text).map(|time| time.as_secs()).ok();
        assert_eq!(
            ["0", "90s", "30m", "1h", "7d"].map(seconds),
            [Some(0), Some(90), Some(1800), Some(3600), Some(604_800)]
        );
        assert_eq!(
            ["", "h", "1w", "-1s", "1.5h", "99999999999999999999s", "9999999999999999999d"].map(seconds),
            [None; 7]
        );
    }
}
