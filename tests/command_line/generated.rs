//! Promise: `ext generate` writes clients that compile and work, in each language whose tools are there.

use std::path::Path;
use std::process::Command;

use super::generated_bank::{Account, BankClient, Order, Outcome, Purpose, Transfer};
use super::typed::bank;
use crate::common::process::{Server, binary};
use crate::common::{certificates, root};
use sandstorm_client::{Client, Error, TypedCallError};

/// The client of `ext/bank`, written without a server.
pub(super) fn written(language: &str) -> String {
    written_of("ext/bank", &[language])
}

/// The client of the extension in a folder, with these words behind `--lang`.
pub(super) fn written_of(folder: &str, language: &[&str]) -> String {
    let output = binary()
        .args(["ext", "generate", "--folder"])
        .arg(root().join(folder))
        .arg("--lang")
        .args(language)
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub(super) fn has(program: &str, argument: &str) -> bool {
    let found = Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success());
    if !found {
        println!("left out: there is no {program}");
    }
    found
}

pub(super) fn succeeds(command: &mut Command) {
    let output = command.output().expect("a program that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_client_in_rust_is_the_file_beside_this_one_which_compiles() {
    let (path, text) = (root().join("tests/command_line/generated_bank.rs"), written("rust"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("the file is written");
    }
    assert!(std::fs::read_to_string(&path).expect("the file") == text, "run this test with UPDATE_DOCS=1");
}

#[test]
fn clients_that_were_generated_work() {
    let (server, token) = bank();
    let address = server.control.trim_start_matches("http://").to_owned();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(rust(&address, &token));
    let folder = tempfile::tempdir().unwrap();
    let from_server = server.command().args(["ext", "generate", "bank", "--lang", "python"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&from_server.stdout), written("python"), "the server has the same types");
    if has("python3", "--version") {
        let path = folder.path().join("bank.py");
        std::fs::write(&path, written("python")).unwrap();
        succeeds(Command::new("python3").args(["-m", "py_compile"]).arg(&path));
        // The types alone, beside a package of that name with what they name.
        std::fs::write(folder.path().join("sandstorm.py"), "class Client: ...\nclass AsyncClient: ...\n").unwrap();
        std::fs::write(folder.path().join("use.py"), PYTHON_TEST).unwrap();
        succeeds(Command::new("python3").arg("use.py").current_dir(folder.path()));
    }
    if has("go", "version") {
        go(&server, &token, folder.path());
    }
    let compiler = type_script_compiler();
    if has(&compiler, "--version") {
        typescript(&compiler, &server, &token, &folder.path().join("typescript"));
    }
}

/// TypeScript's compiler: `tsc`, or what the environment names.
pub(super) fn type_script_compiler() -> String {
    std::env::var("SANDSTORM_TSC").unwrap_or_else(|_| "tsc".to_owned())
}

/// What checks and compiles a file of TypeScript in a folder, without node's types: further options may follow.
pub(super) fn type_script_command(compiler: &str, folder: &Path, file: &str) -> Command {
    let options = ["--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "nodenext", file];
    let mut command = Command::new(compiler);
    command.args(options).current_dir(folder);
    command
}

const PYTHON_TEST: &str = r#"import typing

import bank

calls = []


class Recorder:
    def call(self, name, args, *, version, timeout=None):
        calls.append((name, args, version))
        return {"Deposited": 7}


order: bank.Order = {"Move": {"from": "ann", "to": "bob", "amount": 1, "purpose": "Gift"}}
done = bank.BankClient(Recorder()).order(order)
assert not isinstance(done, str) and "Deposited" in done and done["Deposited"] == 7
bank.BankClient(Recorder(), version=3).order(order)
assert calls == [("bank.order", order, 0), ("bank.order", order, 3)]
# What may be nothing need not be given.
assert bank.Transfer.__required_keys__ == {"from", "to", "amount"}
assert bank.Transfer.__optional_keys__ == {"purpose"}
assert bank.Order_Move_Fields.__optional_keys__ == {"purpose"}
assert typing.get_type_hints(bank.Transfer)["purpose"] == typing.Optional[bank.Purpose]
names = [part for part in typing.get_args(bank.Order)]
assert names[0] == typing.Literal["Nothing"] and len(names) == 4, names
assert typing.get_type_hints(bank.Order_Swap) == {"Swap": typing.Tuple[str, str]}
assert typing.get_type_hints(bank.Order_Move)["Move"] is bank.Order_Move_Fields
"#;

const TYPESCRIPT_TEST: &str = r#"import { BankClient, SandstormError } from "./bank.js";
import type { Account, Order, Outcome, Transfer } from "./bank.js";

declare const process: { env: { SERVER: string; TOKEN: string } };

// In which order the fields of an object come is nothing that a server promises.
function text(value: unknown): string {
  return JSON.stringify(value, (_, part) =>
    part && typeof part === "object" && !Array.isArray(part) ? Object.fromEntries(Object.entries(part).sort()) : part,
  );
}

function same(found: unknown, expected: unknown): void {
  if (text(found) !== text(expected)) throw new Error(text(found));
}

const { SERVER: server, TOKEN: token } = process.env;
const client = new BankClient({ server, tenant: "shop", token, retries: 1, timeoutMs: 60_000 });
const sum: number = await client.deposit({ name: "typist", balance: 5 });
same(sum, 5);
const order: Transfer = { from: "typist", to: "reader", amount: 2, purpose: "Gift" };
const paid = await client.transfer(order);
same([paid.from.balance, paid.purpose], [3, "Gift"]);
const all: Account[] = await client.statement(["reader"]);
same(all, [{ name: "reader", balance: 2 }]);
same(await client.order("Nothing"), "Nothing");
const swap: Order = { Swap: ["typist", "reader"] };
const swapped: Outcome = await client.order(swap);
if (typeof swapped === "string" || !("Swapped" in swapped)) throw new Error("swapped");
same(swapped.Swapped[1].balance, 3);
same(await client.order({ Deposit: { name: "typist", balance: 1 } }), { Deposited: 3 });
// @ts-expect-error one name is missing
const half: Order = { Swap: ["typist"] };
same(typeof half, "object");
// @ts-expect-error there is no such purpose
const wrong: Transfer = { ...order, purpose: "Theft" };
try {
  await client.transfer(wrong);
  throw new Error("it was taken");
} catch (error) {
  if (!(error instanceof SandstormError)) throw error;
}
"#;

/// As strict as the compiler can be. Without node's types: the client needs none.
const TYPESCRIPT_OPTIONS: [&str; 16] = [
    "--strict",
    "--exactOptionalPropertyTypes",
    "--noImplicitReturns",
    "--noUnusedParameters",
    "--noPropertyAccessFromIndexSignature",
    "--verbatimModuleSyntax",
    "--erasableSyntaxOnly",
    "--noUncheckedIndexedAccess",
    "--noUnusedLocals",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom",
    "--module",
    "nodenext",
    "--noImplicitOverride",
];

/// Checks the client in TypeScript by its compiler, and calls with what that makes, if there is node.
fn typescript(compiler: &str, server: &Server, token: &str, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("bank.ts"), written("typescript")).unwrap();
    std::fs::write(folder.join("use.ts"), TYPESCRIPT_TEST).unwrap();
    std::fs::write(folder.join("package.json"), "{\"type\": \"module\"}").unwrap();
    succeeds(Command::new(compiler).args(TYPESCRIPT_OPTIONS).arg("use.ts").current_dir(folder));
    if has("node", "--version") {
        let url = format!("http://{}", server.control.trim_start_matches("http://"));
        succeeds(Command::new("node").arg("use.js").current_dir(folder).env("SERVER", url).env("TOKEN", token));
    }
}

/// The folder of an extension with functions of every shape, and of programs that call them.
pub(super) const SHAPES: &str = "tests/command_line/shapes";

/// A server with [`SHAPES`] and ports for Redis clients: the environment of the programs.
pub(super) fn shapes_server(folder: &Path) -> (Server, Vec<(&'static str, String)>) {
    let (certificate, key) = certificates::certificate(folder, "localhost", 2100);
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let unix = format!("unix:{}", text(&folder.join("redis")));
    let (port_of_shop, certificate_file, key_file) = (format!("{unix}=shop"), text(&certificate), text(&key));
    let options = [
        ["--redis", "127.0.0.1:0"],
        ["--redis", "tls:127.0.0.1:0"],
        ["--redis", &port_of_shop],
        ["--port-certificate", &certificate_file],
        ["--port-key", &key_file],
        ["--no-pin", "--workers=2"],
    ]
    .concat();
    let server = Server::start_as(&options);
    let token = server.json("tenant create shop")["token"].as_str().expect("a token").to_owned();
    server.json("table create default");
    // As many kills as the programs ask for.
    server.json("tenant set shop --quota slow_after_kills=0 --quota suspend_after_kills=0");
    server.json(&format!("ext push {}", text(&root().join(SHAPES))));
    let port = |at: usize| server.said["redis"][at].as_str().expect("an address");
    let environment = vec![
        ("HTTP", format!("http://{}", server.control.trim_start_matches("http://"))),
        ("RESP", format!("redis://{}", port(0))),
        ("TLS", format!("rediss://{}", port(1).trim_start_matches("tls:"))),
        ("UNIX", unix),
        ("CERTIFICATE", std::fs::read_to_string(&certificate).expect("a file")),
        ("TOKEN", token),
    ];
    (server, environment)
}

#[test]
fn clients_give_the_same_over_http_and_resp() {
    let compiler = type_script_compiler();
    let (with_go, with_typescript) = (has("go", "version"), has(&compiler, "--version"));
    if !with_go && !with_typescript {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (_server, environment) = shapes_server(folder.path());
    let copy = |name: &str, to: &Path| std::fs::copy(root().join(SHAPES).join(name), to.join(name)).expect("a copy");
    if with_typescript {
        let folder = folder.path().join("typescript");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("shapes.ts"), written_of(SHAPES, &["typescript"])).unwrap();
        std::fs::write(folder.join("exact.ts"), written_of(SHAPES, &["typescript", "--bigint"])).unwrap();
        std::fs::write(folder.join("package.json"), "{\"type\": \"module\"}").unwrap();
        let programs = ["use.ts", "http.ts", "feed.ts"];
        programs.iter().for_each(|program| _ = copy(program, &folder));
        succeeds(Command::new(&compiler).args(TYPESCRIPT_OPTIONS).args(programs).current_dir(&folder));
        if has("node", "--version") {
            for program in ["use.js", "http.js", "feed.js"] {
                succeeds(Command::new("node").arg(program).current_dir(&folder).envs(environment.clone()));
            }
        }
    }
    if with_go {
        let folder = folder.path().join("go");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("shapes.go"), written_of(SHAPES, &["go"])).unwrap();
        std::fs::write(folder.join("go.mod"), "module shapes\n\ngo 1.18\n").unwrap();
        ["use_test.go", "http_test.go", "feed_test.go"].iter().for_each(|program| _ = copy(program, &folder));
        succeeds(&mut go_command(&folder, &["vet", "./..."]));
        succeeds(go_command(&folder, &["test", "./..."]).envs(environment));
    }
}

#[test]
fn bigint_is_for_typescript() {
    let mut command = binary();
    command.args(["ext", "generate", "--lang", "go", "--bigint", "--folder"]).arg(root().join("ext/bank"));
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--bigint is for TypeScript"), "{said}");
}

async fn rust(address: &str, token: &str) {
    let bank = BankClient::new(Client::open(address, "shop", token).await.unwrap());
    assert_eq!(bank.deposit(&Account { name: "ann".into(), balance: 10 }).await.unwrap(), 10);
    assert_eq!(bank.at_version(1).deposit(&Account { name: "ann".into(), balance: 0 }).await.unwrap(), 10);
    let unknown = bank.at_version(9).deposit(&Account { name: "ann".into(), balance: 0 }).await.unwrap_err();
    assert_eq!(unknown.code(), "unknown_extension");
    let order = Transfer { from: "ann".into(), to: "bob".into(), amount: 4, purpose: Some(Purpose::Wage) };
    let paid = bank.transfer(&order).await.unwrap();
    assert_eq!((paid.from.balance, paid.to.balance, paid.purpose), (6, 4, Some(Purpose::Wage)));
    let poor = bank.transfer(&Transfer { amount: 7, ..order }).await.unwrap_err();
    assert!(matches!(poor, TypedCallError::Request(Error::Failed { .. })), "{poor}");
    let all = bank.statement(&["bob".to_owned()]).await.unwrap();
    assert_eq!(all, [Account { name: "bob".into(), balance: 4 }]);
    assert_eq!(bank.order(&Order::Nothing).await.unwrap(), Outcome::Nothing);
    let deposit = Order::Deposit(Account { name: "bob".into(), balance: 1 });
    assert_eq!(bank.order(&deposit).await.unwrap(), Outcome::Deposited(5));
    let swapped = bank.order(&Order::Swap("ann".into(), "bob".into())).await.unwrap();
    let of = |name: &str, balance| Account { name: name.into(), balance };
    assert_eq!(swapped, Outcome::Swapped(of("ann", 5), of("bob", 6)));
    let order = Order::Move { from: "bob".into(), to: "ann".into(), amount: 1, purpose: Some(Purpose::Gift) };
    let Outcome::Moved { balances } = bank.order(&order).await.unwrap() else { panic!("moved") };
    assert_eq!((balances.from, balances.purpose), (of("bob", 5), Some(Purpose::Gift)));
}

const GO_TEST: &str = r#"package bank

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func TestBank(t *testing.T) {
	options := Options{Server: os.Getenv("SERVER"), Tenant: "shop", Token: os.Getenv("TOKEN"), Retries: 1}
	options.Timeout = time.Minute
	client := BankClient{Options: options}
	sum, err := client.Deposit(context.Background(), Account{Name: "gopher", Balance: 5})
	if err != nil || sum != 5 {
		t.Fatal(sum, err)
	}
	purpose := PurposeGift
	paid, err := client.Transfer(context.Background(), Transfer{From: "gopher", To: "other", Amount: 2, Purpose: &purpose})
	if err != nil || paid.From.Balance != 3 || *paid.Purpose != PurposeGift {
		t.Fatal(paid, err)
	}
	ctx, gopher, other := context.Background(), "gopher", "other"
	done, err := client.Order(ctx, Order{Nothing: true})
	if err != nil || !done.Nothing || done.Deposited != nil {
		t.Fatal(done, err)
	}
	done, err = client.Order(ctx, Order{Deposit: &Account{Name: gopher, Balance: 4}})
	if err != nil || *done.Deposited != 7 {
		t.Fatal(done, err)
	}
	done, err = client.Order(ctx, Order{Swap: &OrderSwap{gopher, other}})
	if err != nil || done.Swapped.V0 != (Account{gopher, 2}) || done.Swapped.V1 != (Account{other, 7}) {
		t.Fatal(done, err)
	}
	done, err = client.Order(ctx, Order{Move: &OrderMove{From: other, To: gopher, Amount: 1, Purpose: &purpose}})
	if err != nil || done.Moved.Balances.From.Balance != 6 || *done.Moved.Balances.Purpose != PurposeGift {
		t.Fatal(done, err)
	}
	if _, err = client.Order(ctx, Order{}); err == nil {
		t.Fatal("no field was set")
	}
	_, err = client.Transfer(context.Background(), Transfer{From: "gopher", To: "gopher"})
	var failed *SandstormError
	if !errors.As(err, &failed) || failed.Kind != "invalid" {
		t.Fatal(err)
	}
}
"#;

fn go(server: &Server, token: &str, folder: &Path) {
    std::fs::write(folder.join("bank.go"), written("go")).unwrap();
    std::fs::write(folder.join("bank_test.go"), GO_TEST).unwrap();
    std::fs::write(folder.join("go.mod"), "module bank\n\ngo 1.18\n").unwrap();
    let url = format!("http://{}", server.control.trim_start_matches("http://"));
    succeeds(go_command(folder, &["test", "./..."]).env("SERVER", url).env("TOKEN", token));
}

/// Go's own command, without the network.
pub(super) fn go_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.args(arguments).current_dir(folder);
    command.env("GOCACHE", folder.join("cache")).env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
    command
}
