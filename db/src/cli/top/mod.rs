//! `sandstorm top`: what tenants, extensions and tables use now.

mod keys;
mod model;
mod rows;
mod screen;
mod terminal;
#[cfg(test)]
mod tests;

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui_core::terminal::Terminal;
use sandstorm_client::control::{Control, ControlError, KillQuery, KillReport, TopReport};
use serde_json::{Map, Value, json};

use self::model::{KeyOutcome, TopModel};
use self::rows::{TopRow, TopValue, TopView, is_match, sort};
use self::terminal::{RawTerminal, TerminalBackend};
use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// Kills that the page of a tenant or an extension shows.
const PAGE_KILLS: usize = 5;
/// The longest time without a look at whether an answer has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The shortest time between two reports.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// What uses the server now.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// What to show
    #[arg(value_enum, default_value_t)]
    view: TopView,
    /// The column to sort by, as its heading or as --batch names it, such as p99_us [default: CPU, of tables memory]
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Only those whose tenant or name has this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Seconds that a row is about
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Print rows for scripts: a heading, then all rows at each interval, separated by tabs
    #[arg(long)]
    batch: bool,
    /// Print one table and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Intervals to print, with --batch or --json [default: until interrupted]
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Rows of each interval, at most
    #[arg(long)]
    limit: Option<usize>,
}

pub(super) fn run(session: &CliSession, args: &TopArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let interval = Duration::try_from_secs_f64(args.interval).ok().filter(|interval| *interval >= MIN_INTERVAL);
    let interval = interval.ok_or_else(|| CliError::new(format!("--interval {} is too short", args.interval)))?;
    let order = column_of(args)?;
    let tenant = session.named_tenant();
    if args.batch || args.once || out.json {
        return print_rows(session.control(), tenant, (args, order, interval), out);
    }
    let terminal = RawTerminal::open().map_err(|error| {
        CliError::new(format!("no screen: {error}")).hint("--batch prints rows for scripts, --once one table")
    })?;
    let model = TopModel::new(args.view, order, args.filter.clone());
    interact(&terminal, session.control(), tenant, model, interval)
}

/// The number of the column to sort by.
fn column_of(args: &TopArgs) -> Result<usize, CliError> {
    let Some(wanted) = &args.sort else { return Ok(args.view.first_order()) };
    let columns = args.view.columns();
    let found = columns.iter().position(|column| column.name == wanted || column.head.eq_ignore_ascii_case(wanted));
    found.ok_or_else(|| {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        CliError::new(format!("there is no column {wanted:?}")).hint(format!("one of: {}", names.join(", ")))
    })
}

/// Prints rows for programs, or one table.
fn print_rows(
    control: &Control,
    tenant: Option<&str>,
    (args, order, interval): (&TopArgs, usize, Duration),
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let ask = || control.top(tenant, args.view.rows_of_report());
    let mut before = Some(ask()?);
    if args.batch && !out.json {
        let names = args.view.columns().iter().map(|column| column.name);
        out.line(&std::iter::once("at_ms").chain(names).collect::<Vec<_>>().join("\t"))?;
    }
    let count = if args.once { Some(1) } else { args.count };
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        std::thread::sleep(interval);
        printed += 1;
        let now = match ask() {
            Ok(now) => now,
            Err(error) if args.once || is_final(&error) => return Err(error.into()),
            Err(error) => {
                // It is asked again: a server that restarts comes back.
                out.fail(&CliError::from(error));
                continue;
            }
        };
        let mut rows = args.view.rows(before.as_ref(), &now);
        rows.retain(|row| is_match(row, &args.filter));
        sort(&mut rows, order, false);
        rows.truncate(args.limit.unwrap_or(usize::MAX));
        match (out.json, args.batch) {
            (true, _) => out.json(&json_of(args.view, now.at_ms, &rows))?,
            (false, true) => out.raw(batch_text(now.at_ms, &rows).as_bytes())?,
            (false, false) => out.raw(table(args.view, &rows).as_bytes())?,
        }
        before = Some(now);
    }
    Ok(())
}

/// Whether asking again would not help.
fn is_final(error: &ControlError) -> bool {
    matches!(error, ControlError::Unauthenticated { .. })
}

/// Rows for scripts.
fn batch_text(at_ms: u64, rows: &[TopRow]) -> String {
    let line = |row: &TopRow| {
        let cells = row.cells.iter().map(TopValue::plain);
        std::iter::once(at_ms.to_string()).chain(cells).collect::<Vec<_>>().join("\t") + "\n"
    };
    rows.iter().map(line).collect()
}

fn json_of(view: TopView, at_ms: u64, rows: &[TopRow]) -> Value {
    let value = |cell: &TopValue| match cell {
        TopValue::Text(text) => json!(text),
        TopValue::Percent(value) | TopValue::Rate(value) | TopValue::Times(value) => json!(value),
        TopValue::DurationNs(ns) => json!(*ns as f64 / 1e3),
        TopValue::Bytes(value) | TopValue::Count(value) => json!(value),
    };
    let object = |row: &TopRow| {
        let cells = view.columns().iter().zip(&row.cells);
        Value::Object(cells.map(|(column, cell)| (column.name.to_owned(), value(cell))).collect::<Map<_, _>>())
    };
    json!({"at_ms": at_ms, "rows": rows.iter().map(object).collect::<Vec<_>>()})
}

fn table(view: TopView, rows: &[TopRow]) -> String {
    let heads: Vec<&str> = view.columns().iter().map(|column| column.head).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.cells.iter().map(TopValue::shown).collect()).collect();
    columns(&heads, &rows)
}

/// What is asked of the server: rows, and the kills of a tenant, or of one of its extensions.
struct SampleRequest {
    view: TopView,
    kills_of: Option<(String, Option<String>)>,
}

/// Its answer.
struct TopSample {
    view: TopView,
    report: Result<(TopReport, Vec<KillReport>), ControlError>,
}

/// Asks the server, on a thread of its own: the screen obeys keys while a server does not answer.
fn start_sampler(control: Control, tenant: Option<String>) -> (Sender<SampleRequest>, Receiver<TopSample>) {
    let (requests, wanted) = channel::<SampleRequest>();
    let (answers, samples) = channel();
    std::thread::spawn(move || {
        while let Ok(SampleRequest { view, kills_of }) = wanted.recv() {
            let report = control.top(tenant.as_deref(), view.rows_of_report()).map(|report| {
                let find = |(tenant, extension): (String, Option<String>)| {
                    let limit = Some(PAGE_KILLS);
                    control.find_kills(&KillQuery { tenant: Some(tenant), extension, limit, ..KillQuery::default() })
                };
                // The tenant may have been deleted meanwhile: then it has no kills.
                (report, kills_of.map_or_else(Vec::new, |of| find(of).unwrap_or_default()))
            });
            if answers.send(TopSample { view, report }).is_err() {
                return;
            }
        }
    });
    (requests, samples)
}

/// Shows the screen until the user ends it.
fn interact(
    terminal: &RawTerminal,
    control: &Control,
    tenant: Option<&str>,
    mut model: TopModel,
    interval: Duration,
) -> Result<(), CliError> {
    let (requests, samples) = start_sampler(control.clone(), tenant.map(str::to_owned));
    let mut screen = Terminal::new(TerminalBackend::default())?;
    let mut due = Instant::now();
    let mut asked = false;
    loop {
        if !asked && Instant::now() >= due && (!model.paused || model.now.is_none()) {
            due = Instant::now() + interval;
            let request = SampleRequest { view: model.view, kills_of: model.kills_wanted() };
            asked = requests.send(request).is_ok();
        }
        match samples.try_recv() {
            Ok(TopSample { view, report: Ok((report, kills)) }) => {
                asked = false;
                model.take(view, report, kills);
            }
            Ok(TopSample { report: Err(error), .. }) => {
                asked = false;
                model.fail(error.message());
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(CliError::new("the thread that asks the server has ended")),
        }
        screen.draw(|frame| {
            screen::draw(&model, frame.buffer_mut());
        })?;
        for key in terminal.keys(LOOK_INTERVAL)? {
            match model.key(key) {
                KeyOutcome::Stay => {}
                KeyOutcome::Refresh => due = Instant::now(),
                KeyOutcome::Quit => return Ok(()),
            }
        }
    }
}
