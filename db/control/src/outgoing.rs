//! The common part of requests to other operators' servers: deliveries of events, and pushes of metrics.

use std::time::Duration;

use ureq::config::ConfigBuilder;
use ureq::typestate::AgentScope;

/// The settings of an agent. Neither a proxy of the environment nor a redirect decides where secrets go.
pub(crate) fn agent_config(timeout: Duration) -> ConfigBuilder<AgentScope> {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .proxy(None)
        .max_redirects(0)
        .user_agent(concat!("sandstorm/", env!("CARGO_PKG_VERSION")))
}

/// The pause after so many failures in a row: `first`, and twice as much after each further one, up to `most`.
pub(crate) fn pause_after(failures: u32, first: Duration, most: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(most)
}
