//! `sandstorm token …` and `sandstorm operator …`: tokens as such, and the operator's own.

use std::io::{IsTerminal, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use sandstorm_accounts::{TokenHash, token};
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;
use sandstorm_client::control::RotatedToken;
use sandstorm_control::config::read_operator_token;
use serde_json::json;

use super::output::{CliError, OutputPrinter, fields};
use super::session::CliSession;

/// Makes tokens; contacts no server.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token, and print it with its token_hash for the configuration file; contacts no server
    New,
    /// Read a token from standard input, and print its token_hash for the configuration file
    Hash,
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

pub(super) fn run(command: &TokenCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let (token, stored) = match command {
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
