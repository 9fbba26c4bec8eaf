//! `sandstorm demo`: a demonstration in one minute, on real parts. It starts a server, creates two tenants, pushes code
//! from source and calls it. It ends a runaway while the other tenant's calls go on, and prints the results and
//! measurements.

mod machine_activity;
mod rounds;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sandstorm_client::blocking::Client;
use sandstorm_client::control::{TableMode, TenantPatch};
use sandstorm_client::load::{Class, ClassReport, Data, Mix, Options, Pace, Report, TenantLoad, fill, run};
use sandstorm_client::{Error, PutOptions};
use sandstorm_dialects::{PortService, Protocol};
use sandstorm_net::CodePolicy;
use sandstorm_server::workers::{ListenerConfig, PortAddress};

use machine_activity::observe_machine;
use rounds::{MeasuredRound, remark, render_rounds};

use super::local_server::{AGGREGATE, BAD, ExampleExtension, LocalServer, LocalTenant, TOTAL};
use super::output::{CliError, OutputPrinter};
use super::rebuild;

/// Numbers that the call by hand sums up.
const NUMBERS: u64 = 100;
/// Records that the measured calls read from.
const RECORDS: u64 = 100_000;
/// Rounds of each kind, interleaved.
const ROUNDS: usize = 5;
/// Duration of each measurement, and of the warm-up before it.
const MEASURE: Duration = Duration::from_millis(500);
const WARM_UP: Duration = Duration::from_millis(200);
/// Longest time for an answer to a Redis client.
const REDIS_TIMEOUT: Duration = Duration::from_secs(60);
/// Runaways a second while the other tenant is measured: each takes 10 ms, so together they demand a fifth of the
/// worker.
const RUNAWAYS_PER_S: f64 = 20.0;

pub(super) fn demo(out: &OutputPrinter) -> Result<(), CliError> {
    out.line("# A server that two tenants share, in this process, on loopback. It keeps nothing.")?;
    let server = LocalServer::start_as(|overrides| {
        overrides.listen = vec![redis_port()];
        overrides.code = Some(CodePolicy::Sandboxed);
    })?;
    out.line(&format!("sandstorm {}: {}\n", env!("CARGO_PKG_VERSION"), server.line()))?;
    let alice = server.tenant("alice", "numbers", TableMode::Store)?;
    let mallory = server.tenant("mallory", "things", TableMode::Store)?;
    out.line("$ sandstorm tenant create alice; sandstorm table create numbers --tenant alice")?;
    out.line("$ sandstorm tenant create mallory; sandstorm table create things --tenant mallory\n")?;

    out.line(&format!(
        "# Alice stores {NUMBERS} numbers and a list of their keys, and pushes code that sums them up."
    ))?;
    let client = Client::connect(server.client(&alice))?;
    let gets = store_numbers(&client, &alice)?;
    push(&server, out, "alice", &AGGREGATE)?;
    sum_with_extension(&client, &alice, gets, out)?;

    out.line("\n# Her Redis clients reach the same records, and call her code.")?;
    push(&server, out, "alice", &TOTAL)?;
    call_over_redis(&server, out)?;

    out.line("\n# Mallory pushes code that never ends, and calls it.")?;
    push(&server, out, "mallory", &BAD)?;
    runaway(&server, &mallory, out)?;

    out.line(&format!(
        "\n# Alice's calls, alone and beside Mallory's code that runs away again and again, by turns: medians of {ROUNDS} rounds."
    ))?;
    let measured = measure(&server, &alice, &mallory)?;
    figures(&measured, out)?;

    out.line("\n# So far all code was sandboxed. The operator trusts Alice, so hers moves to the native tier while it serves.")?;
    native(&server, &alice, &measured, out)?;
    drop(client);
    drop(server);
    out.line("\nstopped")
}

fn push(server: &LocalServer, out: &OutputPrinter, tenant: &str, example: &ExampleExtension) -> Result<(), CliError> {
    let begun = Instant::now();
    let pushed = server.push(tenant, example)?;
    out.line(&format!("$ sandstorm ext push ext/{} --tenant {tenant}", example.name))?;
    out.line(&format!(
        "checked, compiled, signed and loaded in {} ms: {} version {}, {} KiB",
        begun.elapsed().as_millis(),
        example.name,
        pushed.extension.version,
        pushed.extension.library_bytes / 1024,
    ))
}

/// Stores the numbers 1 to `NUMBERS` and a list record of their keys; returns the time that reading them one by one
/// takes.
fn store_numbers(client: &Client, alice: &LocalTenant) -> Result<Duration, CliError> {
    let mut list = Vec::new();
    for number in 1..=NUMBERS {
        let key = format!("n{number}");
        client.put(alice.table, key.as_bytes(), &number.to_le_bytes(), &PutOptions::default())?;
        list.extend_from_slice(&(key.len() as u16).to_le_bytes());
        list.extend_from_slice(key.as_bytes());
    }
    client.put(alice.table, b"all", &list, &PutOptions::default())?;
    let begun = Instant::now();
    client.get(alice.table, b"all")?;
    for number in 1..=NUMBERS {
        client.get(alice.table, format!("n{number}").as_bytes())?;
    }
    Ok(begun.elapsed())
}

fn sum_with_extension(
    client: &Client,
    alice: &LocalTenant,
    gets: Duration,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let args = [&alice.table.to_le_bytes()[..], &0u32.to_le_bytes(), b"all"].concat();
    client.invoke("aggregate", &args)?;
    let begun = Instant::now();
    let reply = client.invoke("aggregate", &args)?;
    let took = begun.elapsed();
    let sum = reply.split_first_chunk::<8>().map(|(sum, _)| u64::from_le_bytes(*sum));
    let expected = NUMBERS * (NUMBERS + 1) / 2;
    if sum != Some(expected) {
        return Err(CliError::new(format!("the sum is {sum:?}, not {expected}: this is a bug")));
    }
    out.line("$ sandstorm invoke aggregate table:numbers u32:0 all --tenant alice")?;
    out.line(&format!(
        "sum {expected}, one round trip, {} us (reading the {} records one by one took {} us)",
        took.as_micros(),
        NUMBERS + 1,
        gets.as_micros()
    ))
}

/// Every connection to this port acts for Alice.
fn redis_port() -> ListenerConfig {
    let (tenant, table) = (Some("alice".to_owned()), Some("numbers".to_owned()));
    let service = PortService { protocol: Protocol::Redis, tenant, table, public: false };
    ListenerConfig { address: PortAddress::Tcp(([127, 0, 0, 1], 0).into()), udp: false, service }
}

/// The requests and replies of a Redis client: the protocol accepts plain lines.
fn call_over_redis(server: &LocalServer, out: &OutputPrinter) -> Result<(), CliError> {
    let broken = |error: std::io::Error| CliError::new(format!("the Redis port does not answer: {error}"));
    let port = server.listening().first().ok_or_else(|| CliError::new("there is no Redis port: this is a bug"))?;
    let mut stream = BufReader::new(TcpStream::connect(port).map_err(broken)?);
    stream.get_ref().set_read_timeout(Some(REDIS_TIMEOUT)).map_err(broken)?;
    for (command, expected) in [("mset apple 3 pear 4", "OK"), ("fcall total 2 apple pear numbers", "7")] {
        stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).map_err(broken)?;
        let mut reply = String::new();
        stream.read_line(&mut reply).map_err(broken)?;
        if reply.starts_with('$') {
            // The value follows its length.
            reply.clear();
            stream.read_line(&mut reply).map_err(broken)?;
        }
        let reply = reply.trim_start_matches('+').trim_end();
        if reply != expected {
            return Err(CliError::new(format!("`{command}` gave {reply:?}, not {expected}: this is a bug")));
        }
        out.line(&format!("$ redis-cli -p {} {command}", port.port()))?;
        out.line(reply)?;
    }
    Ok(())
}

fn runaway(server: &LocalServer, mallory: &LocalTenant, out: &OutputPrinter) -> Result<(), CliError> {
    let client = Client::connect(server.client(mallory))?;
    let args = [&mallory.table.to_le_bytes()[..], b"loop"].concat();
    out.line("$ sandstorm invoke bad table:things loop --tenant mallory")?;
    match client.invoke("bad", &args) {
        Err(error @ Error::Killed { .. }) => out.line(&format!("error: {}", CliError::from(error).message))?,
        other => return Err(CliError::new(format!("an endless loop gave {other:?}: this is a bug"))),
    }
    let kill = server.control().kills(Some("mallory"), 1)?.into_iter().next();
    let kill = kill.ok_or_else(|| CliError::new("the kill is not on record: this is a bug"))?;
    out.line("$ sandstorm kills --tenant mallory")?;
    out.line(&format!(
        "{} version {}: {}, {} us of CPU, worker {}",
        kill.extension, kill.version, kill.cause, kill.cpu_us, kill.worker
    ))
}

/// Alice's calls alone, and beside Mallory's runaways, in turn; and the number of runaways that were ended.
struct RunawayMeasurement {
    alone: Vec<MeasuredRound>,
    beside: Vec<MeasuredRound>,
    ended: u64,
}

fn measure(server: &LocalServer, alice: &LocalTenant, mallory: &LocalTenant) -> Result<RunawayMeasurement, CliError> {
    let calls =
        TenantLoad::new("alice", server.client(alice), Data::new(alice.table, RECORDS), Mix::only(Class::Aggregate));
    let runaways =
        TenantLoad::new("mallory", server.client(mallory), Data::new(mallory.table, 0), Mix::only(Class::Bad))
            .pace(Pace::per_second(RUNAWAYS_PER_S));
    fill(&calls.config, &calls.data, &mut |_, _| {})?;
    let mut measured = RunawayMeasurement { alone: Vec::new(), beside: Vec::new(), ended: 0 };
    for round in 0..2 * ROUNDS {
        let is_alone = round % 2 == 0;
        let tenants = if is_alone { vec![calls.clone()] } else { vec![calls.clone(), runaways.clone()] };
        let options = Options { duration: MEASURE, warm_up: WARM_UP, ..Options::new(tenants) };
        let (report, machine) = observe_machine(|| run(&options, &mut |_| {}));
        let report = report?;
        let round = MeasuredRound { row: row(&report, "alice", Class::Aggregate)?, machine };
        if is_alone {
            measured.alone.push(round);
        } else {
            measured.ended += row(&report, "mallory", Class::Bad)?.errors.get("killed").copied().unwrap_or(0);
            measured.beside.push(round);
        }
    }
    Ok(measured)
}

/// Moves Alice's extensions to the native tier and measures her calls again.
fn native(
    server: &LocalServer,
    alice: &LocalTenant,
    sandboxed: &RunawayMeasurement,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let begun = Instant::now();
    let patch = TenantPatch { code: Some(CodePolicy::Native), ..TenantPatch::default() };
    let changed = server.control().change_tenant("alice", &patch)?;
    if let Some(id) = changed.rebuild {
        rebuild::wait(server.control(), id)?;
    }
    out.line("$ sandstorm tenant set alice --code native")?;
    out.line(&format!("compiled, signed and loaded for the native tier in {} ms", begun.elapsed().as_millis()))?;
    let calls =
        TenantLoad::new("alice", server.client(alice), Data::new(alice.table, RECORDS), Mix::only(Class::Aggregate));
    let options = Options { duration: MEASURE, warm_up: WARM_UP, ..Options::new(vec![calls]) };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (report, machine) = observe_machine(|| run(&options, &mut |_| {}));
        rounds.push(MeasuredRound { row: row(&report?, "alice", Class::Aggregate)?, machine });
    }
    out.line(&render_rounds("sandboxed", &sandboxed.alone))?;
    out.line(&render_rounds("native", &rounds))
}

fn row(report: &Report, tenant: &str, class: Class) -> Result<ClassReport, CliError> {
    report.row(tenant, class).cloned().ok_or_else(|| CliError::new(format!("nothing of {tenant} was measured")))
}

fn figures(measured: &RunawayMeasurement, out: &OutputPrinter) -> Result<(), CliError> {
    let RunawayMeasurement { alone, beside, ended } = measured;
    out.line(&render_rounds("alone", alone))?;
    out.line(&render_rounds("beside runaways", beside))?;
    out.line(&format!("{:>15}: {ended} endless loops ended meanwhile", "mallory"))?;
    if let Some(remark) = remark(alone.iter().chain(beside)) {
        out.line(&remark)?;
    }
    let rows = || alone.iter().chain(beside).map(|round| &round.row);
    if rows().any(|row| row.wrong > 0) || beside.iter().any(|round| round.row.ok < round.row.count) {
        let errors: Vec<_> = rows().flat_map(|row| &row.errors).collect();
        return Err(CliError::new(format!("Alice's calls failed or were answered wrongly: {errors:?}"))
            .hint("on a busy machine calls may time out: try again; a wrong answer is a bug"));
    }
    Ok(())
}
