//! Errors of a configuration, one line each, and the range checks that return them.

use std::time::Duration;

/// An error of the configuration: one line with its location, its cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(super) text: String,
    /// The keys that it concerns, as [`Places`](super::key_locations::KeyLocations) has them.
    pub(super) keys: Vec<String>,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// One line, whatever the text; without keys.
    pub fn new(text: impl Into<String>) -> ConfigError {
        let text: String = text.into();
        ConfigError { text: text.lines().map(str::trim).collect::<Vec<_>>().join(" "), keys: Vec::new() }
    }

    /// Adds the keys that it concerns: the reader has to look at their lines.
    pub(super) fn at<S: AsRef<str>>(mut self, keys: &[S]) -> ConfigError {
        self.keys = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        self
    }
}

/// Returns the value if it is in the range of that key.
pub(super) fn in_range<T: PartialOrd + std::fmt::Display>(
    name: &str,
    value: T,
    min: T,
    max: T,
) -> Result<T, ConfigError> {
    if value < min || value > max {
        return Err(ConfigError::new(format!("{name} = {value} is outside of {min} to {max}")).at(&[name]));
    }
    Ok(value)
}

pub(super) fn at_most(name: &str, value: Option<usize>, limit: usize) -> Result<usize, ConfigError> {
    in_range(name, value.unwrap_or(limit), 1, limit)
}

pub(super) fn seconds(name: &str, value: Option<u64>, default: Duration) -> Result<Duration, ConfigError> {
    let Some(value) = value else { return Ok(default) };
    in_range(name, value, 1, 3600).map(Duration::from_secs)
}

/// Makes one line from a parser's error: file, line, cause, and for an unknown key the nearest valid one.
pub(super) fn describe_parse_error(error: &toml::de::Error, text: &str, origin: &str) -> ConfigError {
    let line = error.span().map(|span| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1);
    let place = line.map_or_else(|| origin.to_owned(), |line| format!("{origin}:{line}"));
    let message = error.message();
    let mut names = message.split('`').skip(1).step_by(2);
    let said = match (message.starts_with("unknown field"), names.next()) {
        (true, Some(unknown)) => format!("unknown key `{unknown}`; {}", suggest(unknown, names)),
        _ => message.to_owned(),
    };
    ConfigError::new(format!("{place}: {said}"))
}

/// "did you mean …" with the nearest of the names, or all of them if none is near.
pub(crate) fn suggest<'a>(unknown: &str, valid: impl Iterator<Item = &'a str>) -> String {
    let valid: Vec<&str> = valid.collect();
    let near = valid.iter().map(|name| (edit_distance(unknown, name), name)).min();
    match near {
        Some((distance, name)) if distance <= 1 + name.len() / 3 => format!("did you mean `{name}`?"),
        Some(_) => format!("valid here: {}", valid.join(", ")),
        None => "no keys are valid here".to_owned(),
    }
}

/// The number of insertions, deletions and replacements that turn one into the other.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, l) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, r) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(l != *r);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
