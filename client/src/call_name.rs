//! The names by which functions are called.

/// What a name such as `bank.transfer@7` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallName<'n> {
    /// The extension.
    pub extension: &'n str,
    /// The function, if the name has one.
    pub function: Option<&'n str>,
    /// The version that is called; 0: the newest.
    pub version: u64,
}

impl<'n> CallName<'n> {
    /// Reads `extension`, `extension.function`, and either with `@version` behind it. What follows an `@` and is no
    /// number belongs to the name, which is then none of an extension.
    pub fn parse(name: &'n str) -> CallName<'n> {
        let (name, version) = match name.rsplit_once('@').map(|(name, digits)| (name, digits.parse())) {
            Some((name, Ok(version))) => (name, version),
            _ => (name, 0),
        };
        match name.split_once('.') {
            Some((extension, function)) => CallName { extension, function: Some(function), version },
            None => CallName { extension: name, function: None, version },
        }
    }
}

/// The extension and the function of a name such as `bank.transfer`.
pub fn split_name(name: &str) -> (&str, Option<&str>) {
    let CallName { extension, function, .. } = CallName::parse(name);
    (extension, function)
}

#[cfg(test)]
mod tests {
    use super::CallName;

    #[test]
    fn a_name_has_an_extension_and_perhaps_a_function_and_a_version() {
        let parse = |name| {
            let CallName { extension, function, version } = CallName::parse(name);
            (extension, function, version)
        };
        assert_eq!(parse("bank"), ("bank", None, 0));
        assert_eq!(parse("bank.transfer"), ("bank", Some("transfer"), 0));
        assert_eq!(parse("bank@7"), ("bank", None, 7));
        assert_eq!(parse("bank.transfer@12"), ("bank", Some("transfer"), 12));
        for no_version in ["bank@", "bank@new", "bank@-1", "bank@99999999999999999999"] {
            assert_eq!(parse(no_version), (no_version, None, 0), "it is a name that no extension has");
        }
    }
}
