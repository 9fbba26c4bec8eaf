//! `[[webhooks]]`: where events are sent.

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;
use super::push_target::{check_url, trust_of};
use crate::events::EventCode;
use crate::limits::WEBHOOKS;
use sandstorm_net::trust::Trust;

/// Bytes of a webhook's secret, at least: as many as a token's characters.
const SECRET_MIN_BYTES: usize = 20;

/// A webhook, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookSection {
    url: String,
    secret_file: PathBuf,
    #[serde(default)]
    codes: Vec<String>,
    ca: Option<PathBuf>,
    fingerprint: Option<String>,
}

/// A place to which events are sent.
#[derive(Clone)]
pub struct WebhookSettings {
    /// Where, with `http://` or `https://`.
    pub url: String,
    /// The key that bodies are signed with.
    pub secret: Vec<u8>,
    /// Codes of the events that are sent, or their first words; none: all.
    pub codes: Vec<String>,
    /// The certificate that is believed.
    pub trust: Trust,
}

impl std::fmt::Debug for WebhookSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookSettings").field("url", &self.url).field("codes", &self.codes).finish_non_exhaustive()
    }
}

/// Checks all of them.
pub(super) fn build(sections: Vec<WebhookSection>) -> Result<Vec<WebhookSettings>, ConfigError> {
    if sections.len() > WEBHOOKS {
        return Err(ConfigError::new(format!("there are {} webhooks, and at most {WEBHOOKS}", sections.len()))
            .at(&[format!("webhooks.{WEBHOOKS}.url")]));
    }
    let mut webhooks: Vec<WebhookSettings> = Vec::new();
    for (number, section) in sections.into_iter().enumerate() {
        let at = |key: &str| [format!("webhooks.{number}.{key}")];
        let webhook = section.settings().map_err(|(key, text)| ConfigError::new(text).at(&at(key)))?;
        if webhooks.iter().any(|other| other.url == webhook.url) {
            return Err(ConfigError::new(format!("webhook {} is there twice", webhook.url)).at(&at("url")));
        }
        webhooks.push(webhook);
    }
    Ok(webhooks)
}

impl WebhookSection {
    /// The settings, or the key that is wrong and why.
    fn settings(self) -> Result<WebhookSettings, (&'static str, String)> {
        let WebhookSection { url, secret_file, codes, ca, fingerprint } = self;
        check_url("webhook", &url, "bodies are signed with secret_file").map_err(|text| ("url", text))?;
        let is_known = |code: &String| {
            let starts = |known: &str| known.strip_prefix(code.as_str()).is_some_and(|rest| rest.starts_with('.'));
            EventCode::ALL.iter().any(|known| known.name() == code || starts(known.name()))
        };
        if let Some(unknown) = codes.iter().find(|code| !is_known(code)) {
            return Err(("codes", format!("no event has the code {unknown:?}: docs/operations.md lists them")));
        }
        let unreadable = |error: std::io::Error| {
            let text = format!("webhook {url}: {}: {error}", secret_file.display());
            ("secret_file", text)
        };
        let mut secret = std::fs::read(&secret_file).map_err(unreadable)?;
        while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            secret.pop();
        }
        if secret.len() < SECRET_MIN_BYTES {
            let text = format!(
                "webhook {url}: the secret in {} has {} bytes, and needs {SECRET_MIN_BYTES}: `sandstorm token new` makes one",
                secret_file.display(),
                secret.len()
            );
            return Err(("secret_file", text));
        }
        let trust = trust_of(ca, fingerprint)?;
        Ok(WebhookSettings { url, secret, codes, trust })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{CliOverrides, ServerSettings};

    #[test]
    fn what_is_wrong_with_a_webhook_is_said_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let parse = |text: &str| {
            let text = text.replace("FILE", &file.display().to_string());
            ServerSettings::parse(&text, "c.toml", &CliOverrides::default())
        };
        std::fs::write(&file, "0123456789012345678901234567890123456789\n").unwrap();
        let good = "[[webhooks]]\nurl = 'https://ops.example/hook'\nsecret_file = 'FILE'\ncodes = ['extension', 'call.killed']\n";
        let settings = parse(good).unwrap();
        assert_eq!((settings.webhooks.len(), settings.webhooks[0].secret.len()), (1, 40));
        assert!(!format!("{settings:?}").contains("0123456789"), "the secret is in no log");
        for (from, to, line, why) in [
            ("https://ops", "ops", 2, "write http://"),
            ("https://ops", "https://me:pw@ops", 2, "has no password"),
            ("call.killed", "call.kiled", 4, "no event has the code"),
            ("FILE", "/none", 3, "/none"),
        ] {
            let error = parse(&good.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("c.toml:{line}: ")) && error.contains(why), "{error}");
        }
        let twice = parse(&format!("{good}{good}")).unwrap_err().to_string();
        assert!(twice.contains("is there twice"), "{twice}");
        std::fs::write(&file, "short\n").unwrap();
        assert!(parse(good).unwrap_err().to_string().contains("needs 20"));
    }
}
