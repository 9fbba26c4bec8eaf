//! Errors of control requests.

use super::types::{BuildDiagnostic, ControlErrorBody};
use thiserror::Error;

/// The reason why a control request has no answer. Its text says what to do.
#[derive(Debug, Error)]
pub enum ControlError {
    /// No server answers at the address.
    #[error("no answer from {address}: {reason}; is the server running (sandstorm serve), and is the address right?")]
    Unreachable {
        /// The control address.
        address: String,
        /// The system's error message.
        reason: String,
    },
    /// The address takes connections, perhaps, but nothing answers in time.
    #[error("no answer from {address} for {seconds} s; {}", TIMEOUT_HINT)]
    TimedOut {
        /// The control address.
        address: String,
        /// Seconds that were waited.
        seconds: u64,
    },
    /// The connection ended before the answer came. A request that changes nothing has been sent twice by then.
    #[error("the connection to {address} was lost before the answer came: {reason}; {}", CONNECTION_LOST_HINT)]
    ConnectionLost {
        /// The control address.
        address: String,
        /// The system's error message.
        reason: String,
    },
    /// The token is missing, wrong, or not for this.
    #[error("not authenticated: {message}{}", hint_suffix(hint))]
    Unauthenticated {
        /// The server's words.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// The builder refused the extension: the checker's or the compiler's remarks.
    #[error("the extension was refused: {message}{}", render_diagnostics(diagnostics))]
    Refused {
        /// A line that sums it up.
        message: String,
        /// Each remark, in the order of the source.
        diagnostics: Vec<BuildDiagnostic>,
    },
    /// There is no such tenant, table or extension.
    #[error("not found: {message}{}", hint_suffix(hint))]
    NotFound {
        /// What is not there, for programs, such as `unknown_table`; `not_found` of what has no name of its own, and
        /// from older servers.
        code: String,
        /// Names what does not exist.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// There is one of that name already.
    #[error("exists already: {message}{}", hint_suffix(hint))]
    Exists {
        /// Names what exists already.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// A quota refuses the request.
    #[error("over quota: {message}{}", hint_suffix(hint))]
    OverQuota {
        /// Names the limit or quota.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// Any other error that the server answered with.
    #[error("{message}{}", hint_suffix(hint))]
    Server {
        /// HTTP status.
        status: u16,
        /// The word for programs; empty when the body was not ours.
        code: String,
        /// The server's words.
        message: String,
        /// Advice.
        hint: Option<String>,
    },
    /// The server's certificate is not to be believed, or TLS fails otherwise. Nothing was sent to it.
    #[error("{address}: {reason}; {hint}")]
    Tls {
        /// The control address.
        address: String,
        /// A description of the failure.
        reason: String,
        /// Advice.
        hint: &'static str,
    },
    /// The answer is not what this client expects.
    #[error("answer of {address} not understood: {reason}; is this a sandstorm control port of this version?")]
    Protocol {
        /// The control address.
        address: String,
        /// Describes what did not fit.
        reason: String,
    },
}

/// Possible causes where no server answers.
const TIMEOUT_HINT: &str = "is the server overloaded, stopped or without free file descriptors (its log says), or something between that drops \
    packets? a change may have been made all the same; --timeout SECONDS waits longer";

/// Advice where nothing listens: a server may have been started a moment ago.
const STARTING_HINT: &str = "a server that was just started answers once it has printed its ports: its first start takes some seconds. Else start \
    one (`sandstorm serve`); HOST:PORT is its control port (7399, if nothing else was said to it)";

/// Advice for a lost connection.
const CONNECTION_LOST_HINT: &str =
    "look whether the change was made before you ask for it again, and whether the server still runs";

fn render_diagnostics(diagnostics: &[BuildDiagnostic]) -> String {
    let mut text = String::new();
    for diagnostic in diagnostics {
        text.push('\n');
        if diagnostic.rendered.is_empty() {
            let BuildDiagnostic { severity, file, line, column, message, .. } = diagnostic;
            text.push_str(&format!("{severity}: {message}\n  --> {file}:{line}:{column}"));
        } else {
            text.push_str(diagnostic.rendered.trim_end());
        }
    }
    text
}

fn hint_suffix(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default()
}

impl ControlError {
    /// The error that an answer of `status` with `body` means.
    pub(super) fn from_answer(status: u16, body: &str) -> ControlError {
        let ControlErrorBody { code, message, hint, diagnostics, .. } = serde_json::from_str(body).unwrap_or_default();
        let message = if message.is_empty() { plain_body_message(status, body) } else { message };
        match (status, code.as_str()) {
            // The last two are what older servers say, and what stands before a server.
            (401, _) | (403, "unauthenticated" | "unauthorised" | "") => {
                ControlError::Unauthenticated { message, hint }
            }
            (_, "refused") => ControlError::Refused { message, diagnostics },
            (_, "over_quota") => ControlError::OverQuota { message, hint },
            (404, _) => {
                let code = if code.is_empty() { "not_found".to_owned() } else { code };
                ControlError::NotFound { code, message, hint }
            }
            (409, "exists") => ControlError::Exists { message, hint },
            _ => ControlError::Server { status, code, message, hint },
        }
    }

    /// Returns a description of the failure, without the advice and without the remarks on a refused source.
    pub fn message(&self) -> String {
        match self {
            ControlError::Unauthenticated { message, .. }
            | ControlError::Refused { message, .. }
            | ControlError::NotFound { message, .. }
            | ControlError::Exists { message, .. }
            | ControlError::OverQuota { message, .. }
            | ControlError::Server { message, .. } => message.clone(),
            ControlError::Unreachable { address, reason } => format!("no answer from {address}: {reason}"),
            ControlError::TimedOut { address, seconds } => format!("no answer from {address} for {seconds} s"),
            ControlError::ConnectionLost { address, reason } => {
                format!("the connection to {address} was lost before the answer came: {reason}")
            }
            ControlError::Tls { address, reason, .. } => format!("{address}: {reason}"),
            ControlError::Protocol { address, reason } => format!("answer of {address} not understood: {reason}"),
        }
    }

    /// Returns the advice.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ControlError::Unauthenticated { hint, .. }
            | ControlError::NotFound { hint, .. }
            | ControlError::Exists { hint, .. }
            | ControlError::OverQuota { hint, .. }
            | ControlError::Server { hint, .. } => hint.as_deref(),
            ControlError::Refused { .. } => None,
            ControlError::Unreachable { reason, .. } if reason.contains("refused") => Some(STARTING_HINT),
            ControlError::Unreachable { .. } => Some(
                "is the server running (`sandstorm serve`), and is HOST:PORT its control port (7399, if nothing else \
                     was said to it)?",
            ),
            ControlError::TimedOut { .. } => Some(TIMEOUT_HINT),
            ControlError::ConnectionLost { .. } => Some(CONNECTION_LOST_HINT),
            ControlError::Tls { hint, .. } => Some(hint),
            ControlError::Protocol { .. } => Some("is this a sandstorm control port of this version?"),
        }
    }

    /// What [`ControlError::code`] said in the release before, where it says something else now.
    pub fn old_code(&self) -> Option<&'static str> {
        matches!(self, ControlError::Unauthenticated { .. }).then_some("unauthorised")
    }

    /// The word for programs, as the command line prints it with `--json`.
    pub fn code(&self) -> &str {
        match self {
            ControlError::Unreachable { .. } => "unreachable",
            ControlError::TimedOut { .. } => "timeout",
            ControlError::ConnectionLost { .. } => "lost",
            ControlError::Unauthenticated { .. } => "unauthenticated",
            ControlError::Refused { .. } => "refused",
            ControlError::NotFound { code, .. } => code,
            ControlError::Exists { .. } => "exists",
            ControlError::OverQuota { .. } => "over_quota",
            ControlError::Server { code, .. } if !code.is_empty() => code,
            ControlError::Server { .. } => "server",
            ControlError::Tls { .. } => "tls",
            ControlError::Protocol { .. } => "protocol",
        }
    }
}

/// For a body that is not an [`ControlErrorBody`]: its first line, cut short.
fn plain_body_message(status: u16, body: &str) -> String {
    let line: String = body.lines().next().unwrap_or("").chars().take(200).collect();
    if line.is_empty() { format!("http status {status}") } else { format!("http status {status}: {line}") }
}
