//! How findings are made and listed.

use crate::admin::finding::{FindingSeverity, ServerFinding};

/// Findings of one rule, at most: an operator reads the worst few, and their number.
const PER_RULE: usize = 5;

/// A finding.
pub(super) fn finding(
    code: &'static str,
    severity: FindingSeverity,
    title: impl Into<String>,
    text: String,
    advice: impl Into<String>,
) -> ServerFinding {
    ServerFinding { code, severity, title: title.into(), text, advice: advice.into() }
}

/// The worst few, by their measure, and how many more there are.
pub(super) fn worst(mut found: Vec<(f64, ServerFinding)>) -> Vec<ServerFinding> {
    found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let more = found.len().saturating_sub(PER_RULE);
    found.truncate(PER_RULE);
    let mut kept: Vec<ServerFinding> = found.into_iter().map(|(_, finding)| finding).collect();
    if let (true, Some(last)) = (more > 0, kept.last_mut()) {
        last.text.push_str(&format!(" ({more} more like this.)"));
    }
    kept
}
