//! The templates of `sandstorm ext new`: small applications that work as they are.

use std::fmt::Write as _;

/// A table that a template's extension needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateTable {
    /// Its name.
    pub name: &'static str,
    /// Its keys are kept in order.
    pub ordered: bool,
}

/// An application to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtensionTemplate {
    /// Its name, as `ext new --template` has it.
    pub name: &'static str,
    /// What it is, to be read after "an extension, ".
    pub about: &'static str,
    /// Its source.
    pub(super) source: &'static str,
    /// The tables that it uses.
    pub tables: &'static [TemplateTable],
    /// Arguments of a first call; of a typed function after a dot and its name.
    pub call: &'static str,
}

const fn hashed(name: &'static str) -> TemplateTable {
    TemplateTable { name, ordered: false }
}

const fn ordered(name: &'static str) -> TemplateTable {
    TemplateTable { name, ordered: true }
}

/// All templates; the first is the default.
pub const TEMPLATES: [ExtensionTemplate; 10] = [
    ExtensionTemplate {
        name: "counter",
        about: "which counts visits",
        source: include_str!("template/counter.rs.txt"),
        tables: &[hashed("visits")],
        call: "home",
    },
    ExtensionTemplate {
        name: "leaderboard",
        about: "a leaderboard",
        source: include_str!("template/leaderboard.rs.txt"),
        tables: &[hashed("players"), ordered("places")],
        call: r#".add {"player": "ann", "points": 10}"#,
    },
    ExtensionTemplate {
        name: "sessions",
        about: "which keeps sessions",
        source: include_str!("template/sessions.rs.txt"),
        tables: &[hashed("sessions")],
        call: "open ann",
    },
    ExtensionTemplate {
        name: "rate-limiter",
        about: "a rate limiter",
        source: include_str!("template/rate-limiter.rs.txt"),
        tables: &[hashed("limits")],
        call: "ann 10 60",
    },
    ExtensionTemplate {
        name: "index",
        about: "users with a secondary index",
        source: include_str!("template/index.rs.txt"),
        tables: &[hashed("users"), ordered("by_city")],
        call: "put 1 Rome Ann",
    },
    ExtensionTemplate {
        name: "queue",
        about: "a job queue",
        source: include_str!("template/queue.rs.txt"),
        tables: &[ordered("jobs"), ordered("given_up")],
        call: r#".add {"work": "send a letter"}"#,
    },
    ExtensionTemplate {
        name: "graph",
        about: "a graph of followers",
        source: include_str!("template/graph.rs.txt"),
        tables: &[ordered("edges")],
        call: "follow ann bob",
    },
    ExtensionTemplate {
        name: "shop",
        about: "a shop with stock, money and orders",
        source: include_str!("template/shop.rs.txt"),
        tables: &[hashed("stock"), hashed("prices"), hashed("accounts"), ordered("orders")],
        call: r#".offer {"name": "tea", "price": 250, "count": 10}"#,
    },
    ExtensionTemplate {
        name: "chat",
        about: "a chat with rooms",
        source: include_str!("template/chat.rs.txt"),
        tables: &[ordered("messages")],
        call: r#".say {"room": "tea", "author": "ann", "text": "hello"}"#,
    },
    ExtensionTemplate {
        name: "features",
        about: "a feature store",
        source: include_str!("template/features.rs.txt"),
        tables: &[hashed("features")],
        call: r#".observe {"user": "ann", "amount": 12.5}"#,
    },
];

impl ExtensionTemplate {
    /// Returns the template of that name.
    pub fn by_name(name: &str) -> Option<&'static ExtensionTemplate> {
        TEMPLATES.iter().find(|template| template.name == name)
    }

    /// The commands that create its tables.
    pub fn table_commands(&self) -> impl Iterator<Item = String> {
        let command = |table: &TemplateTable| {
            format!("sandstorm table create {}{}", table.name, if table.ordered { " --ordered" } else { "" })
        };
        self.tables.iter().map(command)
    }

    /// The command that calls an extension made of it.
    pub fn call_command(&self, name: &str) -> String {
        let (function, call) = match self.call.split_once(' ') {
            Some((function, call)) if function.starts_with('.') => (function, call),
            _ => ("", self.call),
        };
        let name = format!("{name}{function}");
        // Its words are one argument.
        if call.contains(' ') {
            format!("sandstorm invoke {name} '{call}'")
        } else {
            format!("sandstorm invoke {name} {call}")
        }
    }

    /// What the server calls.
    fn entry(&self) -> &'static str {
        if self.call.starts_with('.') {
            "The server calls each `pub async fn` of `src/lib.rs` whose first parameter is a `Db`, by its name. Callers\n\
             give and get JSON, or structs of a client that `sandstorm ext generate NAME --lang python` writes (or\n\
             typescript, go, rust)."
        } else {
            "`src/lib.rs` holds the one function that the server calls, `run`."
        }
    }

    /// The page beside its source.
    pub(super) fn readme(&self, name: &str) -> String {
        let mut tables = String::new();
        for command in self.table_commands() {
            let _never_fails = writeln!(tables, "    {command}");
        }
        let page = include_str!("template/README.md").replace("TABLES", &tables);
        page.replace("ENTRY", self.entry())
            .replace("CALL", &self.call_command(name))
            .replace("ABOUT", self.about)
            .replace("NAME", name)
    }
}
