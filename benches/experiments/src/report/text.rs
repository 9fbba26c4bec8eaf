//! Findings for a terminal.

use std::fmt::Write;

use super::{ExperimentFindings, RatioResult, ReportTable, RoundSpread};
use sandstorm_terminal::output::columns;

/// Formats a number with about three significant digits.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if magnitude >= 1000.0 {
        let digits = format!("{magnitude:.0}");
        let mut text = String::from(if value < 0.0 { "-" } else { "" });
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        text
    } else if magnitude >= 100.0 || value == value.trunc() {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.2e}")
    }
}

/// Minimum and maximum, where there was more than one round.
pub(super) fn range(spread: &RoundSpread) -> Option<String> {
    (spread.rounds.len() > 1).then(|| format!("{} to {}", number(spread.least), number(spread.most)))
}

fn table(table: &ReportTable) -> String {
    let head: Vec<&str> = [table.of.as_str()].into_iter().chain(table.columns.iter().map(String::as_str)).collect();
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| [row.name.clone()].into_iter().chain(row.cells.iter().map(|cell| number(cell.median))).collect())
        .collect();
    columns(&head, &rows)
}

fn ratio(ratio: &RatioResult) -> String {
    let RatioResult { what, ratio: spread, sides: [first, second], unit, target, reached } = ratio;
    let mut text = format!("{what}: {}", number(spread.median));
    let range = range(spread).map_or(String::new(), |range| format!("{range}; "));
    // Writing to a string does not fail.
    let _written = write!(text, " ({range}{} and {} {unit})", number(*first), number(*second));
    if let (Some(target), Some(reached)) = (target, reached) {
        let _written = write!(text, "; target {target}: {}", if *reached { "reached" } else { "NOT reached" });
    }
    text
}

pub(super) fn findings(findings: &ExperimentFindings) -> String {
    let mut text = format!("\n== {}: {}\n", findings.name, findings.about);
    for one in &findings.tables {
        let title = if one.title.is_empty() { String::new() } else { format!("{}\n", one.title) };
        text.push_str(&format!("\n{title}{}", table(one)));
    }
    if !findings.ratios.is_empty() {
        text.push('\n');
    }
    findings.ratios.iter().for_each(|one| text.push_str(&format!("{}\n", ratio(one))));
    findings.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}

/// Escapes text for an element or for a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // These characters are illegal in a page, escaped or not.
            '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
