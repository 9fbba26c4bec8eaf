//! What a client logs in with, and what the server says of itself then.

/// Who logs in.
#[derive(Clone)]
pub(crate) struct LoginCredentials {
    pub(crate) tenant: u32,
    pub(crate) token: String,
    /// Whether in a sealed session; then the time in milliseconds since 1970 at which `now_us` is 0.
    pub(crate) sealed_clock_ms: Option<u64>,
}

/// What the server says of itself at log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerTopology {
    pub(crate) workers: u32,
    pub(crate) home_worker: u32,
}
