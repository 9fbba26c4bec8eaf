//! Where each key of the file stands, so that what is wrong with a value is said with its line.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{CliOverrides, ConfigError};

/// Who says what a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyLocation {
    /// The file, in this line.
    Line(usize),
    /// The command line, whatever the file says.
    CommandLine,
}

/// The keys of a configuration and where they stand. A key within others is written with dots, and one of a list by its
/// number from 0: `tenants.0.quotas.weight`.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyLocations {
    /// What the file is called in errors.
    origin: String,
    keys: BTreeMap<String, KeyLocation>,
}

impl KeyLocations {
    /// Those of a file's text, which parses, and of what the command line says over it.
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
            // A table that is named in several heads stands where it is named first.
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

    /// The error with where it is: the line of the first of its keys that is there, else of what the first of them
    /// would be in.
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

    /// Where the nearest thing stands that a key is in.
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

/// Where the lines of a text begin.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn of(text: &str) -> LineStarts {
        LineStarts(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1).collect())
    }

    /// The number, from 1, of the line that a byte is in.
    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|start| *start <= byte) + 1
    }
}

impl CliOverrides {
    /// The keys that the command line says.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        let net = &self.net;
        [
            ("data", self.data.is_some()),
            ("control", self.control.is_some()),
            ("workers", self.workers.is_some()),
            ("state", self.state.is_some()),
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
            // What is not there is where it would be.
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
