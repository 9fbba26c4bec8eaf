//! `sandstorm token …` and `sandstorm operator …`: tokens as such, and the operator's own.

use std::io::{IsTerminal, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use sandstorm_accounts::{TokenHash, token};
use sandstorm_catalog::limits::OLD_TOKEN_GRACE_MAX;
use sandstorm_client::control::TokenRotated;
use sandstorm_control::config::read_operator_token;
use serde_json::json;

use super::output::{Failure, Out, fields};
use super::session::Session;

/// Tokens as such; asks no server.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token, and print it with its token_hash for the configuration file; no server is asked
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

/// A time with its unit: `90s`, `30m`, `1h`, `7d`; a bare number is seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
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

/// How long an old token may work on: a time that is not above what a server takes.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let grace = time(text)?;
    if grace > OLD_TOKEN_GRACE_MAX {
        let days = OLD_TOKEN_GRACE_MAX.as_secs() / 86_400;
        return Err(format!("longer than {days}d; give less, and rotate again when it is over"));
    }
    Ok(grace)
}

/// What became of the old token, in words.
pub(super) fn fate_of_old(until_ms: Option<u64>) -> String {
    match until_ms {
        None => "the old one is void".to_owned(),
        Some(until_ms) => format!("the old one works for {} more", left(until_ms)),
    }
}

/// The time left until then, in words.
pub(super) fn left(until_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let seconds = (u128::from(until_ms).saturating_sub(now)).div_ceil(1000);
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=5399 => format!("{} min", seconds.div_ceil(60)),
        5400..=172_799 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

pub(super) fn run(command: &TokenCommand, out: &Out) -> Result<(), Failure> {
    let (token, kept) = match command {
        TokenCommand::New => {
            let token = token::generate();
            let kept = TokenHash::of(token.as_bytes());
            (Some(token), kept)
        }
        TokenCommand::Hash => (None, hash()?),
    };
    let kept = kept.to_text();
    if out.json {
        return out.json(&json!({"token": token, "token_hash": kept}));
    }
    match token {
        Some(token) => out.line(&format!("token: {token}\ntoken_hash: {kept}")),
        None => out.line(&kept),
    }
}

fn hash() -> Result<TokenHash, Failure> {
    if std::io::stdin().is_terminal() {
        // Not as an argument: other users of the machine see those.
        eprintln!("paste the token, then press return and ctrl-d");
    }
    let mut text = String::new();
    std::io::stdin().take(1 + 2 * token::MAX_TOKEN_LEN as u64).read_to_string(&mut text)?;
    TokenHash::of_chosen(text.trim()).ok_or_else(|| {
        Failure::new("what was read is no token").hint("20 to 256 printable characters without blanks, on one line")
    })
}

pub(super) fn operator(session: &Session, command: &OperatorCommand, out: &Out) -> Result<(), Failure> {
    let control = session.control();
    match command {
        OperatorCommand::Show => out.show(&control.operator()?, |operator| {
            fields(&[(
                "old token",
                operator.old_until_ms.map_or("none".to_owned(), |ms| format!("works for {} more", left(ms))),
            )])
        }),
        OperatorCommand::Rotate { revoke_old: true, .. } => {
            control.revoke_old_operator_token()?;
            out.done("the old token is void")
        }
        OperatorCommand::Rotate { grace, .. } => {
            let rotated = control.rotate_operator(*grace)?;
            out.show(&rotated, |rotated: &TokenRotated| {
                // On the server's machine its file has it already: no reason to show it.
                let kept = read_operator_token(session.state()).is_ok_and(|token| token == rotated.token);
                let token = if kept { "kept in the state directory" } else { &rotated.token };
                format!("token: {token}\n{}\n", fate_of_old(rotated.old_until_ms))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| time(text).map(|time| time.as_secs()).ok();
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
