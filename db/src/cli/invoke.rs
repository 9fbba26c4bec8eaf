//! `sandstorm invoke`: one call of an extension.

use std::ffi::OsString;

use clap::Args;
use sandstorm_client::schema::{ExtensionSchema, FunctionSchema, ValueType};
use sandstorm_client::{CallCost, CallName, MeasuredCall};
use serde_json::{Value, json};

use super::byte_args::{self, for_people, for_programs};
use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, fields, format_bytes};
use super::session::CliSession;

/// Call an extension.
#[derive(Debug, Args)]
#[command(after_help = byte_args::FORMS)]
pub(super) struct InvokeArgs {
    /// Extension, by name; of one with several typed functions EXTENSION.FUNCTION; of a kept version NAME@VERSION
    name: String,
    /// Arguments, joined without anything between them; of a typed function one, its JSON
    args: Vec<OsString>,
    /// Version to call [default: the newest]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    version: u64,
    /// In a cluster: call it at the server that has this key
    #[arg(long, value_name = "TABLE/KEY")]
    near: Option<String>,
    /// The key that the call is about: in a cluster it runs at the server that has it, and a version that is tried on a
    /// share of the calls gets all calls of the key, or none
    #[arg(long, conflicts_with = "near")]
    key: Option<String>,
    /// Tell what the call cost: CPU time, waiting, reads, tries of its transaction
    #[arg(long)]
    cost: bool,
    /// Print the reply's bytes as they are, without a line end
    #[arg(long)]
    raw: bool,
    /// Show the reply as these fields, such as u64,u32
    #[arg(long = "as", value_name = "FIELDS", conflicts_with = "raw")]
    layout: Option<String>,
}

impl InvokeArgs {
    /// The version that is called: of the option, or behind the name.
    fn version(&self) -> Result<u64, CliError> {
        match (CallName::parse(&self.name).version, self.version) {
            (named, 0) => Ok(named),
            (0, given) => Ok(given),
            (named, given) if named == given => Ok(given),
            (named, given) => {
                let text = format!("{} names version {named}, and --version {given}: give one of them", self.name);
                Err(CliError::new(text).code("usage"))
            }
        }
    }
}

pub(super) fn run(session: &CliSession, args: &InvokeArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (client, tenant) = session.data()?;
    let CallName { extension, .. } = CallName::parse(&args.name);
    let version = args.version()?;
    let typed = TypedCall::find(session, &tenant.name, args)?;
    let arguments = match &typed {
        Some(typed) => typed.arguments(&args.args)?,
        None => byte_args::parse_all(&args.args, &mut |table| session.table_id(&tenant.name, table))?,
    };
    let client = match (&args.near, &args.key) {
        (None, None) => client,
        (None, Some(key)) => client.calls_near(key.as_bytes()),
        (Some(near), _) => {
            let Some((table, key)) = near.split_once('/') else {
                return Err(CliError::new(format!("{near:?} names no key: write TABLE/KEY")).code("usage"));
            };
            client.near(session.table_id(&tenant.name, table)?, key.as_bytes())?
        }
    };
    let called = if args.cost {
        client.invoke_measured(extension, version, &arguments)
    } else {
        let result = client.invoke_version(extension, version, &arguments);
        Ok(MeasuredCall { result, cost: None })
    };
    let MeasuredCall { result, cost } = called.map_err(|error| not_invoked(error, &tenant.name, args))?;
    if let Some(cost) = cost.filter(|_| !out.json) {
        // Beside the reply, which may be another program's input.
        eprint!("{}", cost_text(&cost));
    }
    let reply = result.map_err(|error| not_invoked(error, &tenant.name, args))?;
    if let Some(typed) = typed.filter(|_| !args.raw && args.layout.is_none()) {
        let reply =
            typed.schema.decode_reply(&typed.function, &reply).map_err(|error| CliError::new(error.to_string()))?;
        let cost = cost.filter(|_| out.json).map(cost_json);
        return match cost {
            Some(cost) => out.json(&json!({"reply": reply, "cost": cost})),
            None => out.json(&reply),
        };
    }
    let shown = match &args.layout {
        Some(layout) => {
            let values = byte_args::fields(&reply, layout)?;
            Some(values.into_iter().map(|(_, value)| value).collect::<Vec<_>>())
        }
        None => None,
    };
    if out.json {
        let reply = shown.map_or_else(|| for_programs(&reply), Value::Array);
        return out.json(&if args.cost { json!({"reply": reply, "cost": cost.map(cost_json)}) } else { reply });
    }
    match shown {
        _ if args.raw => out.raw(&reply),
        Some(values) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            out.line(&values.iter().map(text).collect::<Vec<_>>().join(" "))
        }
        None => out.value(&for_people(&reply)),
    }
}

/// A call of a typed function.
struct TypedCall {
    schema: ExtensionSchema,
    function: FunctionSchema,
}

impl TypedCall {
    /// The function that is called, if it is a typed one.
    fn find(session: &CliSession, tenant: &str, args: &InvokeArgs) -> Result<Option<TypedCall>, CliError> {
        let CallName { extension, function, .. } = CallName::parse(&args.name);
        // Typed functions take one argument: a call with more need not be looked up.
        if args.args.len() > 1 && function.is_none() {
            return Ok(None);
        }
        let schema = match (session.control().extension(tenant, extension), function) {
            // A version that is not kept is told when it is called.
            (Ok(found), _) => match found.schema_of(args.version()?) {
                Ok(schema) => schema.cloned(),
                Err(_) if function.is_none() => None,
                Err(_) => return Err(no_version(tenant, args)),
            },
            (Err(error), Some(_)) => return Err(error.into()),
            // What is not there is told when it is called.
            (Err(_), None) => None,
        };
        let Some(schema) = schema else {
            return match function {
                Some(_) => Err(CliError::new(format!("extension {extension:?} has no typed functions"))
                    .hint("call it by its name, with arguments as bytes")),
                None => Ok(None),
            };
        };
        let function = schema.find_function(function).map_err(|error| CliError::new(error.to_string()))?.clone();
        Ok(Some(TypedCall { schema, function }))
    }

    /// The bytes of its arguments.
    fn arguments(&self, args: &[OsString]) -> Result<Vec<u8>, CliError> {
        let FunctionSchema { name, args: takes, reply, .. } = &self.function;
        let takes = format!("{name} takes {takes} and gives {reply}; `sandstorm ext show` prints the types");
        let text = match args {
            [] => "null".to_owned(),
            [one] if one == "-" => {
                let read = byte_args::parse(one, &mut |_| Err(CliError::new("no table")))?;
                String::from_utf8(read).map_err(|_| CliError::new("standard input is no UTF-8").hint(takes.clone()))?
            }
            [one] => one.to_string_lossy().into_owned(),
            _ => return Err(CliError::new("a typed function takes one argument: JSON").hint(takes)),
        };
        let json: Value = serde_json::from_str(&text).map_err(|error| {
            let hint = match self.function.args {
                // A shell takes the quotes of a word away.
                ValueType::Text => format!("{takes}; a text has quotes inside of the shell's: '\"ann\"'"),
                _ => takes.clone(),
            };
            CliError::new(format!("the arguments are no JSON: {error}")).hint(hint)
        })?;
        self.schema.encode_call(&self.function, &json).map_err(|error| CliError::new(error.to_string()).hint(takes))
    }
}

/// A call's cost, for people.
fn cost_text(cost: &CallCost) -> String {
    fields(&[
        ("cpu", format_duration(cost.cpu_ns)),
        (
            "wall",
            format!("{}, {} before its first turn", format_duration(cost.wall_ns), format_duration(cost.first_turn_ns)),
        ),
        ("waiting", format_duration(cost.waiting_ns())),
        ("turns", format!("{}, {} of them cut at a slice", cost.turns, cost.switches)),
        ("reads", format!("{} records, {}", cost.reads, format_bytes(cost.read_bytes))),
        ("commit tries", cost.commit_tries.to_string()),
    ])
}

/// A call's cost, for programs.
fn cost_json(cost: CallCost) -> Value {
    json!({
        "cpu_ns": cost.cpu_ns,
        "wall_ns": cost.wall_ns,
        "waiting_ns": cost.waiting_ns(),
        "first_turn_ns": cost.first_turn_ns,
        "turns": cost.turns,
        "switches": cost.switches,
        "reads": cost.reads,
        "read_bytes": cost.read_bytes,
        "commit_tries": cost.commit_tries,
    })
}

/// The error of an invocation without a reply, with names that the server knows only by number.
fn not_invoked(error: sandstorm_client::Error, tenant: &str, args: &InvokeArgs) -> CliError {
    if error != sandstorm_client::Error::UnknownExtension {
        return error.into();
    }
    no_version(tenant, args)
}

/// The error for an extension, or a version of it, that is not there.
fn no_version(tenant: &str, args: &InvokeArgs) -> CliError {
    let number = match args.version() {
        Ok(number) => number,
        Err(error) => return error,
    };
    let name = CallName::parse(&args.name).extension;
    let version = if number == 0 { String::new() } else { format!(" in version {number}") };
    CliError::new(format!("tenant {tenant:?} has no extension {name:?}{version}"))
        .hint(match number {
            0 => "`sandstorm ext list` shows the extensions; `sandstorm ext push DIR` makes one",
            _ => "`sandstorm ext versions NAME` shows the versions that are kept",
        })
        .code(sandstorm_client::Error::UnknownExtension.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, version: u64) -> Result<u64, CliError> {
        let (near, key, layout) = (None, None, None);
        InvokeArgs { name: name.into(), args: vec![], version, near, key, cost: false, raw: false, layout }.version()
    }

    #[test]
    fn a_version_is_said_once() {
        for (name, option, called) in
            [("bank", 0, 0), ("bank@7", 0, 7), ("bank", 6, 6), ("bank.pay@7", 7, 7), ("bank@next", 6, 6)]
        {
            assert_eq!(version(name, option).ok(), Some(called), "{name} {option}");
        }
        let refused = version("bank@7", 6).unwrap_err();
        assert!(format!("{refused:?}").contains("usage"), "{refused:?}");
        assert!(format!("{refused:?}").contains("bank@7 names version 7, and --version 6"), "{refused:?}");
    }
}
