//! `[builder]`: the compiler, its limits, builders elsewhere, keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, in_range, seconds};
use sandstorm_builder::limits::{DENIED_PATTERNS, MAX_COMPILERS, default_compilers};
use sandstorm_builder::{CompileLimits, DeniedPattern, PublicKey, RemoteCertificate, RemoteConfig};

/// Settings of the builder.
#[derive(Clone, Debug)]
pub struct BuilderSettings {
    /// The compiler; `None`: the one on the path.
    pub rustc: Option<PathBuf>,
    /// The operator's own vetted libraries: package name to directory.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Whether compilers may run unconfined where the kernel offers no sandbox.
    pub allow_unsandboxed: bool,
    /// Whether there is a builder. Without one the server stores and serves, and refuses pushes of source.
    pub enabled: bool,
    /// The limits of one compilation.
    pub compile: CompileLimits,
    /// Compilations that may run at the same time.
    pub compilers: usize,
    /// A builder on another host, in place of one here.
    pub remote: Option<RemoteConfig>,
    /// Keys of builders elsewhere whose artifacts are loaded.
    pub trusted_keys: Vec<PublicKey>,
    /// Patterns that native sources must not have, beside the checker's rules.
    pub deny: Vec<String>,
}

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BuilderSection {
    pub(super) rustc: Option<PathBuf>,
    libraries: BTreeMap<String, PathBuf>,
    pub(super) enabled: Option<bool>,
    allow_unsandboxed: bool,
    cpu_s: Option<u64>,
    wall_s: Option<u64>,
    memory_bytes: Option<u64>,
    compilers: Option<usize>,
    remote: Option<String>,
    remote_token_file: Option<PathBuf>,
    remote_ca: Option<PathBuf>,
    remote_fingerprint: Option<String>,
    remote_plain: bool,
    trusted_keys: Vec<String>,
    deny: Vec<String>,
}

impl BuilderSection {
    /// The settings, with the command line's overrides.
    pub(super) fn settings(
        mut self,
        rustc: Option<PathBuf>,
        enabled: Option<bool>,
    ) -> Result<BuilderSettings, ConfigError> {
        let default = CompileLimits::default();
        let compile = CompileLimits {
            cpu: seconds("builder.cpu_s", self.cpu_s, default.cpu)?,
            wall: seconds("builder.wall_s", self.wall_s, default.wall)?,
            memory_bytes: in_range(
                "builder.memory_bytes",
                self.memory_bytes.unwrap_or(default.memory_bytes),
                512 << 20,
                1 << 40,
            )?,
            ..default
        };
        let trusted = |(number, text): (usize, &String)| {
            trusted(text).map_err(|error| error.at(&[format!("builder.trusted_keys.{number}")]))
        };
        let trusted_keys = self.trusted_keys.iter().enumerate().map(trusted).collect::<Result<Vec<_>, _>>()?;
        let deny = denied(&self.deny)?;
        let remote = self.remote.take().map(|url| self.remote(url, trusted_keys.is_empty())).transpose();
        let remote =
            remote.map_err(|error| if error.keys.is_empty() { error.at(&["builder.remote"]) } else { error })?;
        Ok(BuilderSettings {
            rustc: rustc.or(self.rustc),
            libraries: self.libraries,
            allow_unsandboxed: self.allow_unsandboxed,
            enabled: enabled.or(self.enabled).unwrap_or(true),
            compile,
            compilers: in_range(
                "builder.compilers",
                self.compilers.unwrap_or_else(default_compilers),
                1,
                MAX_COMPILERS,
            )?,
            remote,
            trusted_keys,
            deny,
        })
    }

    fn remote(&self, url: String, no_keys: bool) -> Result<RemoteConfig, ConfigError> {
        if no_keys {
            return Err(ConfigError::new(
                "builder.remote needs builder.trusted_keys: put there what `sandstorm builder key` prints on its host",
            ));
        }
        let Some(token_file) = self.remote_token_file.clone() else {
            return Err(ConfigError::new(
                "builder.remote needs builder.remote_token_file: a file with the token that `sandstorm builder serve` names",
            ));
        };
        let certificate = match (self.remote_ca.clone(), self.remote_fingerprint.clone()) {
            (Some(_), Some(_)) => {
                return Err(ConfigError::new(
                    "builder.remote_ca and builder.remote_fingerprint say each which certificate is believed; leave one out",
                )
                .at(&["builder.remote_ca"]));
            }
            (Some(file), None) => RemoteCertificate::Ca(file),
            (None, Some(fingerprint)) => RemoteCertificate::Fingerprint(fingerprint),
            (None, None) => RemoteCertificate::Public,
        };
        certificate
            .check()
            .map_err(|error| ConfigError::new(error).at(&["builder.remote_ca", "builder.remote_fingerprint"]))?;
        let remote = RemoteConfig { url, token_file, certificate };
        if remote.certificate != RemoteCertificate::Public && !remote.is_sealed() {
            return Err(ConfigError::new(format!(
                "builder.remote = {:?} is not https, but a certificate is named for it (remote_ca or \
                 remote_fingerprint); say https:// there",
                remote.url
            )));
        }
        if !remote.is_sealed() && !remote.is_local() && !self.remote_plain {
            return Err(ConfigError::new(format!(
                "builder.remote = {:?} is not https: sources and the token would cross the network in the clear; say \
                 remote_plain = true if the network is your own",
                remote.url
            )));
        }
        Ok(remote)
    }
}

/// The patterns of a list, if each is one.
fn denied(texts: &[String]) -> Result<Vec<String>, ConfigError> {
    if texts.len() > DENIED_PATTERNS {
        let text = format!("builder.deny has {} patterns, at most {DENIED_PATTERNS} are allowed", texts.len());
        return Err(ConfigError::new(text).at(&["builder.deny"]));
    }
    let read = |(number, text): (usize, &String)| match DeniedPattern::parse(text) {
        Ok(pattern) => Ok(pattern.text().to_owned()),
        Err(why) => {
            let error = ConfigError::new(format!("builder.deny: {text:?} cannot be denied: {why}"));
            Err(error.at(&[format!("builder.deny.{number}")]))
        }
    };
    texts.iter().enumerate().map(read).collect()
}

fn trusted(text: &str) -> Result<PublicKey, ConfigError> {
    PublicKey::from_hex(text).ok_or_else(|| {
        ConfigError::new(format!(
            "builder.trusted_keys: {text:?} is no key; it takes the 64 hexadecimal digits that `sandstorm builder key` prints"
        ))
    })
}
