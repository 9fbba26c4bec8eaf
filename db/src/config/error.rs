//! What is wrong with a configuration.

/// What is wrong with the configuration: one line that says where, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(super) String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> ConfigError {
        let text: String = text.into();
        ConfigError(text.lines().map(str::trim).collect::<Vec<_>>().join(" "))
    }
}
