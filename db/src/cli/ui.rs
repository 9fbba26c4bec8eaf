//! `sandstorm ui`: where the page is, and a code that signs in once. No token gets into the browser, nor anything
//! secret into an address.

use std::process::{Command, Stdio};

use clap::Args;
use serde_json::json;

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;

/// The page in a browser.
#[derive(Debug, Args)]
pub(super) struct UiArgs {
    /// Open it in this machine's browser, too (by xdg-open)
    #[arg(long)]
    open: bool,
}

pub(super) fn run(session: &CliSession, args: &UiArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let made = session.control().page_code()?;
    let address = format!("{}{}", session.url().trim_end_matches('/'), made.path);
    let groups: Vec<String> =
        made.code.as_bytes().chunks(4).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let code = groups.join("-");
    if out.json {
        out.json(&json!({"address": address, "code": code, "lifetime_s": made.lifetime_s}))?;
    } else {
        out.line(&format!("page: {address}\ncode: {code}\n(it signs in once, within {} s)", made.lifetime_s))?;
    }
    if args.open {
        let opened = Command::new("xdg-open").arg(&address).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        opened.map_err(|error| {
            CliError::new(format!("no browser could be opened: {error}")).hint("open the address above by hand")
        })?;
    }
    Ok(())
}
