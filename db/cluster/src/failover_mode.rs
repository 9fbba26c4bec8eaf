//! Whether a server takes the place of another one by itself.

use std::fmt;
use std::str::FromStr;

/// When a server takes the place of another one that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailoverMode {
    /// By itself, where no table loses a record by that.
    #[default]
    Automatic,
    /// By an operator's command only.
    ByCommand,
}

impl fmt::Display for FailoverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailoverMode::Automatic => "automatic",
            FailoverMode::ByCommand => "by-command",
        })
    }
}

impl FromStr for FailoverMode {
    type Err = String;

    fn from_str(text: &str) -> Result<FailoverMode, String> {
        [FailoverMode::Automatic, FailoverMode::ByCommand]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| format!("{text:?} is none of automatic, by-command"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written_and_nothing_else_is() {
        for mode in [FailoverMode::Automatic, FailoverMode::ByCommand] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!(FailoverMode::default(), FailoverMode::Automatic);
        assert!("never".parse::<FailoverMode>().is_err_and(|why| why.contains("by-command")));
    }
}
