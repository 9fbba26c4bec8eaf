//! The location of each key of the file, so that an error about a value names its line.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{CliOverrides, ConfigError};

/// The origin of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyLocation {
    /// This line of the file.
    Line(usize),
    /// The command line, which overrides the file.
    CommandLine,
}

/// The keys of a configuration and their locations. A nested key is written with dots, and one of a list with its index
/// from 0: `tenants.0.quotas.weight`.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyLocations {
    /// The name of the file in errors.
    origin: String,
    keys: BTreeMap<String, KeyLocation>,
}

impl KeyLocations {
    /// The locations in a file's text, which parses, and those of the command line's overrides.
    pub(super) fn of(text: &str, origin: &str, over: &CliOverrides) -> KeyLocations {
        let mut places = KeyLocations { origin: origin.to_owned(), keys: BTreeMap::new() };
        let lines = LineStarts::of(text);
        if let Ok(table) = DeTable::parse(text) {
            places.index_table("", table.get_ref(), &lines);
        }
        for key in over.keys() {
            places.keys.insert(key.to_owned(), KeyLocation::CommandLine);
        }
        places
    }

    fn index_table(&mut self, before: &str, table: &DeTable<'_>, lines: &LineStarts) {
        for (key, value) in table {
            let name = format!("{before}{}", key.get_ref());
            // A table that is named in several heads is at the first of them.
            self.keys.entry(name.clone()).or_insert(KeyLocation::Line(lines.at(key.span().start)));
            self.index_value(&name, value.get_ref(), lines);
        }
    }

    fn index_value(&mut self, name: &str, value: &DeValue<'_>, lines: &LineStarts) {
        match value {
            DeValue::Table(table) => self.index_table(&format!("{name}."), table, lines),
            DeValue::Array(array) => {
                for (number, value) in array.iter().enumerate() {
                    let name = format!("{name}.{number}");
                    self.keys.insert(name.clone(), KeyLocation::Line(lines.at(value.span().start)));
                    self.index_value(&name, value.get_ref(), lines);
                }
            }
            _ => {}
        }
    }

    /// Adds the location to an error: the line of the first of its keys that exists, else the line that the first of
    /// them would be below.
    pub(super) fn name(&self, error: ConfigError) -> ConfigError {
        let ConfigError { text, keys } = error;
        let mut found: Vec<KeyLocation> = keys.iter().filter_map(|key| self.keys.get(key).copied()).collect();
        if found.is_empty() {
            found.extend(keys.first().and_then(|key| self.around(key)));
        }
        let in_file = |place: &&KeyLocation| matches!(place, KeyLocation::Line(_));
        match found.iter().find(in_file).or(found.first()) {
            Some(KeyLocation::Line(line)) => ConfigError::new(format!("{}:{line}: {text}", self.origin)),
            Some(KeyLocation::CommandLine) => ConfigError::new(format!("the command line: {text}")),
            None => ConfigError::new(format!("{}: {text}", self.origin)),
        }
    }

    /// The location of the nearest table around a key.
    fn around(&self, key: &str) -> Option<KeyLocation> {
        let mut key = key;
        while let Some((outer, _)) = key.rsplit_once('.') {
            if let Some(place) = self.keys.get(outer) {
                return Some(*place);
            }
            key = outer;
        }
        None
    }
}

/// The byte offsets at which the lines of a text begin.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn of(text: &str) -> LineStarts {
        LineStarts(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1).collect())
    }

    /// The number, from 1, of the line that contains a byte.
    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte) + 1
    }
}

impl CliOverrides {
    /// The keys that the command line sets.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        let net = &self.net;
        [
            ("data", self.data.is_some()),
            ("control", self.control.is_some()),
            ("workers", self.workers.is_some()),
            ("state", self.state.is_some()),
            ("code", self.code.is_some()),
            ("net.driver", net.driver.is_some()),
            ("net.eal", net.eal.is_some()),
            ("net.device", net.device.is_some()),
            ("net.address", !net.address.is_empty()),
            ("net.gateway", !net.gateway.is_empty()),
            ("net.mtu", net.mtu.is_some()),
            ("net.isolate", net.isolate.is_some()),
            ("control_tls.certificate", self.control_tls.certificate.is_some()),
            ("control_tls.key", self.control_tls.key.is_some()),
            ("control_tls.self_signed", self.control_tls.self_signed),
            ("builder.rustc", self.rustc.is_some()),
            ("otlp.url", self.otlp.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, is_said)| is_said.then_some(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_found_in_whichever_form_the_file_has_it() {
        let text = "# first\nworkers = 3\nquotas.weight = 2\n[limits]\n\nkey_bytes = 1\n[[tenants]]\nname = 'a'\n\
                    quotas = { weight = 1,\n tables = 2 }\n[[tenants]]\nname = 'b'\n[tenants.quotas]\nslice_us = 3\n\
                    [[tenants.tables]]\nname = 't'\n[[tenants.tables]]\nname = 'u'\nquota_bytes = 7\n\
                    [builder]\ntrusted_keys = [\n 'one',\n 'two',\n]\n";
        let places = KeyLocations::of(text, "c.toml", &CliOverrides::default());
        let said = |keys: &[&str]| places.name(ConfigError::new("wrong").at(keys)).to_string();
        for (key, line) in [
            ("workers", 2),
            ("quotas.weight", 3),
            ("limits.key_bytes", 6),
            ("tenants.0.quotas.weight", 9),
            ("tenants.0.quotas.tables", 10),
            ("tenants.1.name", 12),
            ("tenants.1.quotas.slice_us", 14),
            ("tenants.1.tables.0.name", 16),
            ("tenants.1.tables.1.quota_bytes", 19),
            ("builder.trusted_keys.1", 23),
            // A missing key has the line at which it would be.
            ("limits.value_bytes", 4),
            ("tenants.1.tables.0.quota_bytes", 15),
            ("tenants.0.grants.0", 7),
        ] {
            assert_eq!(said(&[key]), format!("c.toml:{line}: wrong"), "{key}");
        }
        assert_eq!(said(&["data", "workers"]), "c.toml:2: wrong", "the first that is there");
        assert_eq!(said(&["data"]), "c.toml: wrong");
        assert_eq!(said(&[]), "c.toml: wrong");
    }

    #[test]
    fn a_value_of_the_command_line_is_not_looked_for_in_the_file() {
        let over = CliOverrides { workers: Some(99), ..CliOverrides::default() };
        let places = KeyLocations::of("workers = 3\ndata = '127.0.0.1:1'", "c.toml", &over);
        let said = |keys: &[&str]| places.name(ConfigError::new("wrong").at(keys)).to_string();
        assert_eq!(said(&["workers"]), "the command line: wrong");
        assert_eq!(said(&["workers", "data"]), "c.toml:2: wrong", "two that do not go together");
    }
}
