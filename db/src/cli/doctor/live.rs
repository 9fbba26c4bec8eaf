//! `sandstorm doctor --live`: what is wrong with the running server now.

use sandstorm_client::control::LiveFinding;
use sandstorm_terminal::escape_one_line;

use crate::cli::output::{CliError, OutputPrinter};
use crate::cli::session::CliSession;

pub(in crate::cli) fn run(session: &CliSession, out: &OutputPrinter) -> Result<(), CliError> {
    let found = session.control().findings()?;
    out.show(&found, |found| match found.len() {
        0 => "nothing that needs a look\n".to_owned(),
        _ => found.iter().map(text).collect(),
    })
}

/// A finding as two lines; names in it were chosen by tenants.
fn text(finding: &LiveFinding) -> String {
    let LiveFinding { severity, title, text, advice, .. } = finding;
    let symbol = if severity == "bad" { "BAD " } else { "mind" };
    format!("{symbol}  {}\n      -> {}\n", escape_one_line(&format!("{title} {text}")), escape_one_line(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_two_lines_whatever_names_are_in_it() {
        let finding = LiveFinding {
            severity: "bad".into(),
            title: "A table is full.".into(),
            text: "a/\u{1b}[2J\nt".into(),
            advice: "See it.".into(),
            ..LiveFinding::default()
        };
        assert_eq!(text(&finding), "BAD   A table is full. a/\\u{1b}[2J\\nt\n      -> See it.\n");
    }
}
