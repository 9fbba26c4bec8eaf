//! A client's credentials, and the server's answer to a log-in.

/// Credentials of a client.
#[derive(Clone)]
pub(crate) struct LoginCredentials {
    pub(crate) tenant: u32,
    pub(crate) token: String,
    /// For a sealed session, the time in milliseconds since 1970 at which `now_us` is 0; else `None`.
    pub(crate) sealed_clock_ms: Option<u64>,
}

/// The server's answer at log-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerTopology {
    pub(crate) workers: u32,
    pub(crate) home_worker: u32,
}
