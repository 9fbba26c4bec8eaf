//! Whatever a tenant calls its types, functions, fields and variants, clients compile, and call what they are asked to.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ClientLanguage, client_name};
use crate::ExtensionSchema;

/// Names that mean something in one of the languages, or that are the same as another one after its conversion.
const HOSTILE: [&str; 96] = [
    "__init__",
    "__proto__",
    "__class__",
    "__private",
    "__",
    "_1",
    "_client",
    "constructor",
    "prototype",
    "toString",
    "valueOf",
    "hasOwnProperty",
    "then",
    "new",
    "client",
    "args",
    "reply",
    "options",
    "timeout",
    "self_",
    "type",
    "match",
    "async",
    "await",
    "yield",
    "fn",
    "func",
    "def",
    "class",
    "interface",
    "package",
    "import",
    "from",
    "lambda",
    "None",
    "True",
    "null",
    "undefined",
    "void",
    "any",
    "never",
    "unknown",
    "number",
    "string",
    "object",
    "bigint",
    "int",
    "str",
    "float",
    "map",
    "range",
    "chan",
    "go",
    "nil",
    "error",
    "get",
    "set",
    "static",
    "readonly",
    "declare",
    "keyof",
    "Transport",
    "Transport_",
    "Options",
    "SandstormError",
    "RespTransport",
    "Codec",
    "codecs",
    "names",
    "record",
    "over",
    "Over",
    "Client",
    "BankClient",
    "AsyncBankClient",
    "TypedCallError",
    "Serialize",
    "Deserialize",
    "Result",
    "Promise",
    "Map",
    "Error",
    "Literal",
    "TypedDict",
    "cast",
    "sandstorm",
    "sandstorm_client",
    "serde",
    "MarshalJSON",
    "marshal_JSON",
    "UnmarshalJSON",
    "a_b",
    "aB",
    "AB",
    "a__b",
    "Order",
];
/// Schemas for each language: together they have each name in each place.
const SCHEMAS: usize = 6;

/// A schema of types, fields, variants and functions with hostile names; each function gives what it takes.
fn schema(number: usize) -> ExtensionSchema {
    let name = |at: usize| HOSTILE[(number * 16 + at) % HOSTILE.len()];
    let (mut types, mut functions) = (Vec::new(), Vec::new());
    for at in 0..16 {
        let field = |more: usize, of: &str| format!(r#"{{"name": "{}", "type": "{of}"}}"#, name(at + more));
        let fields = |from: usize| {
            (from..from + 16)
                .map(|at| field(at, "Option<u64>"))
                .chain([field(from + 16, "Vec<String>")])
                .collect::<Vec<_>>()
        };
        let body = match at % 3 {
            0 => format!(r#""struct": {{"fields": [{}]}}"#, fields(3 * at).join(", ")),
            1 => {
                let variants: Vec<String> = (0..20).map(|more| format!("{:?}", name(at + more))).collect();
                format!(r#""enum": {{"variants": [{}]}}"#, variants.join(", "))
            }
            _ => {
                let variant = |more: usize| {
                    let payload = match more % 3 {
                        0 => r#""values": ["u8", "String"]"#.to_owned(),
                        1 => r#""values": ["u64"]"#.to_owned(),
                        _ => format!(r#""fields": [{}]"#, fields(more).join(", ")),
                    };
                    format!(r#"{{"name": "{}", {payload}}}"#, name(at + more))
                };
                let variants: Vec<String> = (0..20).map(variant).collect();
                format!(r#""enum": {{"variants": [{}]}}"#, variants.join(", "))
            }
        };
        types.push(format!(r#"{{"name": "{}", {body}}}"#, name(at)));
        functions.push(format!(r#"{{"name": "{}", "args": "{1}", "reply": "{1}"}}"#, name(at + 8), name(at)));
    }
    let json = format!(r#"{{"functions": [{}], "types": [{}]}}"#, functions.join(", "), types.join(", "));
    ExtensionSchema::parse(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn all_names_of(schema: &ExtensionSchema) -> String {
    schema.functions.iter().map(|one| format!("{:?},", format!("bank.{}", one.name))).collect()
}

fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: there is no {program}");
    }
    found
}

fn succeeds(folder: &Path, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("GOCACHE", folder.join("cache")).env("GOTOOLCHAIN", "local");
    let output = command.output().expect("a program that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

/// Writes a client of each schema, and a test of it, with `NAMES` and `NUMBER` filled in.
fn write_all(folder: &Path, language: ClientLanguage, file: &str, test: &str, test_text: &str) {
    for number in 0..SCHEMAS {
        let schema = schema(number);
        for (name, text) in [(file, schema.client_source("bank", language)), (test, filled(test_text, &schema, number))]
        {
            let path = folder.join(name.replace("NUMBER", &number.to_string()));
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
    }
}

fn filled(test: &str, schema: &ExtensionSchema, number: usize) -> String {
    let class = client_name(schema, "bank");
    let text = test.replace("BankClient", &class).replace("NAMES", &all_names_of(schema));
    text.replace("NUMBER", &number.to_string())
}

/// A folder of its own, which goes with this.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let path = std::env::temp_dir().join(format!("sandstorm-names-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

const PYTHON_TEST: &str = r#"import asyncio, inspect, typing
import bankNUMBER as bank
wanted = [NAMES]
class Recorder:
    def call(self, name, args, *, version, timeout=None):
        return (name, args)
class AsyncRecorder:
    async def call(self, name, args, *, version, timeout=None):
        return (name, args)
for kind in (bank.BankClient, bank.AsyncBankClient):
    is_async = kind is bank.AsyncBankClient
    client = kind(AsyncRecorder() if is_async else Recorder())
    methods = [name for name in vars(kind) if inspect.isfunction(vars(kind)[name]) and name != "__init__"]
    assert len(methods) == len(wanted), methods
    for method, name in zip(methods, wanted):
        assert not method.startswith("_"), method
        typing.get_type_hints(getattr(kind, method))
        said = getattr(client, method)({"a": 1})
        assert (asyncio.run(said) if is_async else said) == (name, {"a": 1}), (method, said)
"#;

const TYPESCRIPT_TEST: &str = r#"import { BankClient as Client } from "./bankNUMBER.js";
const wanted: string[] = [NAMES];
let called: [string, string][] = [];
const over = { call: async (name: string, json: string) => { called.push([name, json]); return JSON.parse(json); }, close: async () => {} };
const client: any = new Client(over as any);
const methods = Object.getOwnPropertyNames(Client.prototype).filter((name) => name !== "constructor");
if (methods.length !== wanted.length) throw new Error(`${methods}`);
for (const [at, method] of methods.entries()) {
  called = [];
  const given = JSON.parse('{"__proto__": 1, "toString": 2, "constructor": 3}');
  try { await client[method](given); } catch {}
  if (called[0]?.[0] !== wanted[at]) throw new Error(`${method}: ${called}, not ${wanted[at]}`);
}
if (client instanceof Promise || typeof client.then === "function") throw new Error("it is awaited");
"#;

const GO_TEST: &str = r#"package bank

import (
	"context"
	"reflect"
	"testing"
)

type recorder struct{ called *[]string }

func (r recorder) Call(_ context.Context, name string, _ []byte, _ CallOptions) (any, error) {
	*r.called = append(*r.called, name)
	return nil, context.Canceled
}
func (r recorder) Close() error { return nil }

func TestNames(t *testing.T) {
	wanted := map[string]bool{}
	for _, name := range []string{NAMES} {
		wanted[name] = true
	}
	var called []string
	client := reflect.ValueOf(&BankClient{Transport: recorder{&called}})
	if client.NumMethod() != len(wanted) {
		t.Fatal(client.NumMethod(), len(wanted))
	}
	for at := 0; at < client.NumMethod(); at++ {
		method := client.Method(at)
		method.Call([]reflect.Value{reflect.ValueOf(context.Background()), reflect.Zero(method.Type().In(1))})
	}
	for _, name := range called {
		if !wanted[name] {
			t.Fatal(name)
		}
		delete(wanted, name)
	}
}
"#;

#[test]
fn clients_in_python_take_any_names() {
    if !has("python3", "--version") {
        return;
    }
    let TestFolder(folder) = &TestFolder::new("python");
    write_all(folder, ClientLanguage::Python, "bankNUMBER.py", "useNUMBER.py", PYTHON_TEST);
    std::fs::write(folder.join("sandstorm.py"), "class Client: ...\nclass AsyncClient: ...\n").expect("a file");
    (0..SCHEMAS).for_each(|number| succeeds(folder, "python3", &[&format!("use{number}.py")]));
}

#[test]
fn clients_in_typescript_take_any_names() {
    let compiler = std::env::var("SANDSTORM_TSC").unwrap_or_else(|_| "tsc".to_owned());
    if !has(&compiler, "--version") || !has("node", "--version") {
        return;
    }
    let TestFolder(folder) = &TestFolder::new("typescript");
    write_all(folder, ClientLanguage::TypeScript { bigints: false }, "bankNUMBER.ts", "useNUMBER.ts", TYPESCRIPT_TEST);
    std::fs::write(folder.join("package.json"), "{\"type\": \"module\"}").expect("a file");
    let uses: Vec<String> = (0..SCHEMAS).map(|number| format!("use{number}.ts")).collect();
    let mut arguments = vec!["--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext"];
    arguments.extend(uses.iter().map(String::as_str));
    succeeds(folder, &compiler, &arguments);
    (0..SCHEMAS).for_each(|number| succeeds(folder, "node", &[&format!("use{number}.js")]));
}

#[test]
fn clients_in_go_take_any_names() {
    if !has("go", "version") {
        return;
    }
    let TestFolder(folder) = &TestFolder::new("go");
    write_all(folder, ClientLanguage::Go, "bankNUMBER/bank.go", "bankNUMBER/bank_test.go", GO_TEST);
    std::fs::write(folder.join("go.mod"), "module names\n\ngo 1.18\n").expect("a file");
    succeeds(folder, "go", &["test", "./..."]);
}

/// Only what the file needs of other crates: derived code is not part of it.
const RUST_DERIVES: &str = r#"
extern crate proc_macro;
#[proc_macro_derive(Serialize)]
pub fn serialize(_: proc_macro::TokenStream) -> proc_macro::TokenStream { proc_macro::TokenStream::new() }
#[proc_macro_derive(Deserialize)]
pub fn deserialize(_: proc_macro::TokenStream) -> proc_macro::TokenStream { proc_macro::TokenStream::new() }
"#;
const RUST_CLIENT: &str = r#"
macro_rules! empty { ($name:ident) => { #[derive(Clone, Debug)] pub struct $name; } }
empty!(Client);
empty!(TypedCallError);
pub use Client as Blob;
impl Client {
    pub async fn call_version<A: ?Sized, R>(&self, _: &str, _: u64, _: &A) -> Result<R, TypedCallError> {
        Err(TypedCallError)
    }
}
"#;

#[test]
fn clients_in_rust_take_any_names() {
    if !has("rustc", "--version") {
        return;
    }
    let TestFolder(folder) = &TestFolder::new("rust");
    write_all(folder, ClientLanguage::Rust, "bankNUMBER.rs", "useNUMBER.txt", "");
    std::fs::write(folder.join("serde.rs"), RUST_DERIVES).expect("a file");
    std::fs::write(folder.join("sandstorm_client.rs"), RUST_CLIENT).expect("a file");
    let compile = |kind: &str, file: &str| {
        succeeds(
            folder,
            "rustc",
            &["--edition", "2024", "--cap-lints", "allow", "-L", ".", "--crate-type", kind, file],
        );
    };
    compile("proc-macro", "serde.rs");
    compile("rlib", "sandstorm_client.rs");
    for number in 0..SCHEMAS {
        let crates = ["serde=libserde.so", "sandstorm_client=libsandstorm_client.rlib"];
        let file = format!("bank{number}.rs");
        let options = ["--edition", "2024", "--cap-lints", "allow", "--emit", "metadata", "--crate-type", "rlib"];
        let externs = ["--extern", crates[0], "--extern", crates[1], &file];
        succeeds(folder, "rustc", &[&options[..], &externs[..]].concat());
    }
}
