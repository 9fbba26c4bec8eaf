//! How long `ext rollback` takes, from the question to the control port to its answer, while clients call the
//! extension, and what it does to their calls. Run: `cargo bench -p sandstorm-experiments --bench versions`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{ExtensionSource, ExtensionSourceFile, TableMode};
use sandstorm_experiments::local_server::LocalServer;

/// Rollbacks that are measured, alone and beside calls.
const ROLLBACKS: usize = 500;
/// Clients that call meanwhile, one call after the other each.
const CLIENTS: usize = 3;
/// How long a call may take before it counts as lost.
const DEADLINE: Duration = Duration::from_secs(20);

/// A source whose calls count themselves, and say which version they are.
fn source(version: usize) -> ExtensionSource {
    let text = format!(
        "#![no_std]\n#![forbid(unsafe_code)]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {{\n    \
         db.increment(db.table(\"records\")?, b\"calls\", 1).await?;\n    db.reply(b\"{version}\")\n}}\n"
    );
    let file = ExtensionSourceFile { path: "src/lib.rs".to_owned(), text };
    ExtensionSource { manifest: "name = \"versions\"\nversion = \"0.1.0\"\n".to_owned(), files: vec![file] }
}

/// Rolls back and forward; prints how long each took.
fn measure(server: &LocalServer, name: &str) {
    let mut times_us: Vec<f64> = (0..ROLLBACKS)
        .map(|round| {
            let begun = Instant::now();
            let version = 1 + round as u64 % 2;
            server.control().roll_back("shop", "versions", Some(version)).expect("a kept version");
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times_us.sort_by(f64::total_cmp);
    let at = |share: f64| times_us[((ROLLBACKS - 1) as f64 * share) as usize];
    println!("{name:<24} p50 {:>7.0} us, p99 {:>7.0} us, longest {:>7.0} us", at(0.5), at(0.99), at(1.0));
}

fn main() {
    let server = LocalServer::start_as(|overrides| overrides.workers = Some(1)).expect("a server");
    let tenant = server.tenant("shop", "records", TableMode::Store).expect("a tenant");
    for version in 1..=2 {
        server.control().push("shop", "versions", &source(version)).expect("it is built");
    }
    measure(&server, "rollback, no calls");
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let config = server.client(&tenant).deadline(DEADLINE);
            let (done, calls) = (&done, &calls);
            scope.spawn(move || {
                let client = Client::connect(config).expect("a client");
                while !done.load(Relaxed) {
                    client.invoke("versions", b"").expect("no call is lost");
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        measure(&server, "rollback, beside calls");
        done.store(true, Relaxed);
    });
    let client = Client::connect(server.client(&tenant).deadline(DEADLINE)).expect("a client");
    let counted = client.get(tenant.table, b"calls").expect("an answer").expect("a count").value;
    let counted = String::from_utf8_lossy(&counted).into_owned();
    println!("{} calls were answered meanwhile, and {counted} have run", calls.load(Relaxed));
    assert_eq!(counted, calls.load(Relaxed).to_string(), "each call ran once");
}
