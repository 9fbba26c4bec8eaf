//! A finding: something that is wrong with the running server.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// Requests fail, or records are at risk.
    Bad,
    /// It will be bad, or costs something.
    Mind,
}

/// Something that is wrong: what, by which number, why, and what changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerFinding {
    /// A stable word for programs.
    pub code: &'static str,
    /// How bad it is.
    pub severity: FindingSeverity,
    /// What is wrong, in a few words.
    pub title: String,
    /// With its number and its cause.
    pub text: String,
    /// What to do, with the setting.
    pub advice: String,
}
