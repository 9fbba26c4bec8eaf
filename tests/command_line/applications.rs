//! Promise: the applications of the cookbook - a leaderboard, a job queue, a shop, a chat, a feature store - are Rust
//! inside, and are called from Python, TypeScript, Go and Rust outside. What is missing on the machine is left out.

use std::path::Path;
use std::process::Command;

use sandstorm_builder::TEMPLATES;
use sandstorm_client::{Client, Error, TypedCallError};
use serde_json::{Value, json};

use super::common::process::Server;
use super::common::{eventually, root};
use super::generated::{go_command, has, succeeds, type_script_command, type_script_compiler};
use super::python::{installed, python};

const APPLICATIONS: [&str; 5] = ["leaderboard", "queue", "shop", "chat", "features"];
const PROGRAMS: &str = "tests/command_line/applications";

/// A server with all of them, and the environment of the programs.
fn server(folder: &Path) -> (Server, [(&'static str, String); 3]) {
    let server = Server::start_as(&["--redis", "127.0.0.1:0", "--no-pin", "--workers=2"]);
    let token = server.json("tenant create shop")["token"].as_str().expect("a token").to_owned();
    for name in APPLICATIONS {
        let template = TEMPLATES.iter().find(|template| template.name == name).expect("a template");
        for table in template.tables {
            let ordered = if table.ordered { " --ordered" } else { "" };
            // Messages are on the disk, and so in the feed, when they are acknowledged.
            let durability = if name == "chat" { " --durability disk" } else { "" };
            server.json(&format!("table create {} --quota 64MiB{ordered}{durability}", table.name));
        }
        let written = server.command().current_dir(folder).args(["ext", "new", name, "--template", name]).output();
        assert!(written.expect("the program runs").status.success(), "{name}");
        server.json(&format!("ext push {}", folder.join(name).display()));
    }
    // It has no feed.
    server.json("table create unlogged --quota 1MiB --durability none");
    let environment = [
        ("HTTP", format!("http://{}", server.control.trim_start_matches("http://"))),
        ("RESP", format!("redis://{}", server.said["redis"][0].as_str().expect("an address"))),
        ("TOKEN", token),
    ];
    (server, environment)
}

/// Writes the client of an extension on the server.
fn generate(server: &Server, name: &str, language: &str, path: &Path) {
    let output = server.command().args(["ext", "generate", name, "--lang", language]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, output.stdout).expect("a file");
}

#[test]
fn each_application_is_called_from_each_language() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, environment) = server(folder.path());
    let program = |name: &str, to: &Path| {
        std::fs::copy(root().join(PROGRAMS).join(name), to.join(name)).expect("a copy");
    };
    if let Some(mut python) = python() {
        let site = installed(folder.path());
        for name in APPLICATIONS {
            // Python has a module `queue` of its own.
            let module = if name == "queue" { "queue_client" } else { name };
            generate(&server, name, "python", &site.join(format!("{module}.py")));
        }
        program("use.py", folder.path());
        python.arg(folder.path().join("use.py")).env("PYTHONPATH", site).env("PYTHONWARNINGS", "error");
        succeeds(python.envs(environment.clone()));
    }
    let compiler = type_script_compiler();
    if has(&compiler, "--version") && has("node", "--version") {
        let to = folder.path().join("typescript");
        APPLICATIONS.iter().for_each(|name| generate(&server, name, "typescript", &to.join(format!("{name}.ts"))));
        std::fs::write(to.join("package.json"), "{\"type\": \"module\"}").expect("a file");
        program("use.ts", &to);
        succeeds(&mut type_script_command(&compiler, &to, "use.ts"));
        succeeds(Command::new("node").arg("use.js").current_dir(&to).envs(environment.clone()));
    }
    if has("go", "version") {
        let to = folder.path().join("go");
        APPLICATIONS.iter().for_each(|name| generate(&server, name, "go", &to.join(name).join("client.go")));
        std::fs::write(to.join("go.mod"), "module applications\n\ngo 1.18\n").expect("a file");
        program("use_test.go", &to);
        succeeds(go_command(&to, &["test", "."]).envs(environment.clone()));
    }
    let [(_, http), _, (_, token)] = environment;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(from_rust(http.trim_start_matches("http://"), &token)).expect("all of it");
    // A schedule adds jobs by itself.
    let (every, args) = (["--every", "100ms"], ["--args", "{\"work\": \"by the clock\"}"]);
    let mut schedule = server.command();
    succeeds(schedule.args(["trigger", "create", "ticks", "--extension", "queue.add"]).args(every).args(args));
    let scheduled = || {
        let job: Value = serde_json::from_str(&server.ok("invoke queue.take 600")).expect("a job, or null");
        job["work"] == "by the clock" && job["tries"] == 1
    };
    assert!(eventually(scheduled), "no job came by the clock");
}

async fn from_rust(address: &str, token: &str) -> Result<(), TypedCallError> {
    let client = Client::open(address, "shop", token).await?.with_deadline(super::common::PATIENT);
    let call = async |name: &str, args: Value| client.call::<_, Value>(name, &args).await;
    let score = |points: u64| json!({ "player": "rust", "points": points });
    assert_eq!(call("leaderboard.add", score(10)).await?["points"], 10);
    assert_eq!(call("leaderboard.add", score(5)).await?["points"], 15);
    let unknown = call("leaderboard.place", json!("nobody")).await;
    assert!(matches!(unknown, Err(TypedCallError::Request(Error::Failed { code: 1, .. }))), "{unknown:?}");
    call("queue.add", json!({ "work": "from rust" })).await?;
    let job = call("queue.take", json!(600)).await?;
    assert_eq!((&job["work"], &job["tries"]), (&json!("from rust"), &json!(1)));
    assert_eq!(call("queue.done", job["id"].clone()).await?, Value::Null);

    call("shop.offer", json!({ "name": "rust tea", "price": 250, "count": 10 })).await?;
    call("shop.pay", json!({ "customer": "rust", "amount": 600 })).await?;
    let order = json!({ "customer": "rust", "article": "rust tea", "count": 2 });
    let bought = call("shop.buy", order.clone()).await?;
    assert_eq!((&bought["left"], &bought["balance"]), (&json!(8), &json!(100)));
    assert!(matches!(call("shop.buy", order).await, Err(TypedCallError::Request(Error::Failed { code: 100, .. }))));
    let position = client.changes("messages", None, 0).await?.next;
    call("chat.say", json!({ "room": "rust", "author": "ann", "text": "hello" })).await?;
    let page = client.changes("messages", Some(&position), 0).await?;
    assert_eq!(page.changes.len(), 1, "{page:?}");
    assert_eq!(call("features.observe", json!({ "user": "rust", "amount": 2.5 })).await?["mean"], 2.5);
    Ok(())
}
