//! The tiers in which tenants' code runs, and the policy that gives each tenant one. They are here because the server,
//! the builder and clients all name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The way in which an extension's machine code is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeTier {
    /// It addresses nothing but a memory of its own; the server verifies that in the machine code.
    #[default]
    Sandboxed,
    /// It runs in the server's address space; the checker and rustc keep it from what is not its tenant's.
    Native,
}

impl CodeTier {
    /// Its name in configurations, journals, answers and command lines.
    pub fn name(self) -> &'static str {
        match self {
            CodeTier::Sandboxed => "sandboxed",
            CodeTier::Native => "native",
        }
    }
}

impl fmt::Display for CodeTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CodeTier {
    type Err = ParseCodeError;

    fn from_str(text: &str) -> Result<CodeTier, ParseCodeError> {
        match text {
            "sandboxed" => Ok(CodeTier::Sandboxed),
            "native" => Ok(CodeTier::Native),
            _ => Err(ParseCodeError { found: text.to_owned(), allowed: "sandboxed or native" }),
        }
    }
}

/// What a version of an extension was built from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodeOrigin {
    /// Rust source.
    #[default]
    Source,
    /// A WebAssembly module that was made elsewhere: it runs in the sandboxed tier, whatever its tenant's policy is.
    Module,
}

impl CodeOrigin {
    /// Whether it is Rust source, which journals and answers leave out.
    pub fn is_source(&self) -> bool {
        *self == CodeOrigin::Source
    }
}

/// The code that a tenant may push and call, set by the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodePolicy {
    /// Code of the sandboxed tier.
    #[default]
    Sandboxed,
    /// Code of the native tier.
    Native,
    /// No code: pushes and calls are refused.
    None,
}

impl CodePolicy {
    /// Its name in configurations, journals, answers and command lines.
    pub fn name(self) -> &'static str {
        match self.tier() {
            Some(tier) => tier.name(),
            None => "none",
        }
    }

    /// The tier in which the tenant's code runs; `None` if the tenant may have no code.
    pub fn tier(self) -> Option<CodeTier> {
        match self {
            CodePolicy::Sandboxed => Some(CodeTier::Sandboxed),
            CodePolicy::Native => Some(CodeTier::Native),
            CodePolicy::None => None,
        }
    }
}

impl From<CodeTier> for CodePolicy {
    fn from(tier: CodeTier) -> CodePolicy {
        match tier {
            CodeTier::Sandboxed => CodePolicy::Sandboxed,
            CodeTier::Native => CodePolicy::Native,
        }
    }
}

impl fmt::Display for CodePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CodePolicy {
    type Err = ParseCodeError;

    fn from_str(text: &str) -> Result<CodePolicy, ParseCodeError> {
        match text {
            "none" => Ok(CodePolicy::None),
            _ => text
                .parse()
                .map(CodeTier::into)
                .map_err(|error| ParseCodeError { allowed: "sandboxed, native or none", ..error }),
        }
    }
}

/// A text that names no tier, or no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no value for code: write {allowed}")]
pub struct ParseCodeError {
    found: String,
    allowed: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused_with_those_that_there_are() {
        for tier in [CodeTier::Sandboxed, CodeTier::Native] {
            assert_eq!(tier.to_string().parse(), Ok(tier));
            assert_eq!(CodePolicy::from(tier).tier(), Some(tier));
        }
        for policy in [CodePolicy::Sandboxed, CodePolicy::Native, CodePolicy::None] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(
            (CodeTier::default(), CodePolicy::default().tier()),
            (CodeTier::Sandboxed, Some(CodeTier::Sandboxed))
        );
        assert_eq!(CodePolicy::None.tier(), None);
        let refused = "Native".parse::<CodeTier>().expect_err("names are lower case").to_string();
        assert_eq!(refused, "\"Native\" is no value for code: write sandboxed or native");
        let refused = "wasm".parse::<CodePolicy>().expect_err("no policy").to_string();
        assert_eq!(refused, "\"wasm\" is no value for code: write sandboxed, native or none");
    }
}
