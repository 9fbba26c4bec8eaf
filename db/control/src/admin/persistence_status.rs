//! Whether changes of tenants and tables outlive the server, for `health`.

use sandstorm_catalog::{Directory, format_utc};

/// Whether changes are persisted, and why not. The reason contains a path, so it is for callers with a token.
pub(super) fn persistence_status(directory: &Directory, known: bool) -> String {
    match directory.not_kept() {
        Some((since_ms, why)) if known => format!("refused since {} UTC: {why}", format_utc(since_ms)),
        Some(_) => "refused".to_owned(),
        None if directory.has_journal() => "kept".to_owned(),
        None => "not kept".to_owned(),
    }
}
