//! What `sandstorm top` shows for given reports of the server.

use proptest::prelude::*;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use sandstorm_client::control::{
    DurationStats, ExtensionUse, QuotaUse, TableUse, TenantIsolation, TenantUse, TopReport,
};

use super::keys::TerminalKey;
use super::model::{KeyOutcome, TopModel};
use super::rows::{TopRow, TopView};
use super::{batch_text, screen, table};

fn durations(bound_ns: u64, count: u64) -> DurationStats {
    DurationStats { buckets: vec![(bound_ns, count)], ..DurationStats::default() }
}

fn tenant(number: u64, seconds: u64) -> TenantUse {
    TenantUse {
        name: format!("tenant-{number:04}"),
        id: number as u32 + 1,
        cpu_ns: seconds * number * 1_000_000,
        plain_cpu_ns: seconds * number * 3_000_000,
        requests: seconds * number * 10,
        calls: seconds * number,
        killed: seconds * (number % 2),
        record_bytes: number << 10,
        quota: QuotaUse { name: "table t".into(), used: number, limit: 2_048 },
        latency: durations(1_056, seconds * number),
        waiting: durations(544, seconds * number),
        service: durations(512, seconds * number),
        sending: durations(128, seconds * number / 2),
        ..TenantUse::default()
    }
}

/// What the server says after so many seconds.
fn report(seconds: u64, tenants: u64) -> TopReport {
    let tenants = (0..tenants).map(|number| tenant(number, seconds)).collect();
    TopReport { at_ms: seconds * 1_000, uptime_us: seconds * 1_000_000, workers: 2, tenants, ..TopReport::default() }
}

fn model(view: TopView, reports: impl IntoIterator<Item = TopReport>) -> TopModel {
    let mut model = TopModel::new(view, view.first_order(), String::new());
    reports.into_iter().for_each(|report| model.take(view, report, Vec::new()));
    model
}

/// The lines of a screen.
fn screen_of(model: &TopModel, width: u16, height: u16) -> (Vec<String>, usize) {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let formatted = screen::draw(model, &mut buffer);
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    ((0..height).map(line).collect(), formatted)
}

fn cell(view: TopView, row: &TopRow, name: &str) -> String {
    let column = view.columns().iter().position(|column| column.name == name).expect(name);
    row.cells[column].plain()
}

#[test]
fn rows_are_rates_between_two_reports_whatever_came_before() {
    let view = TopView::Tenants;
    let rows = view.rows(Some(&report(10, 9)), &report(12, 9));
    let cell = |name| cell(view, &rows[8], name);
    assert_eq!(
        ["cpu_percent", "requests_per_s", "calls_per_s", "p99_us", "quota_percent", "calls_cpu_percent"].map(cell),
        ["3.20", "80.00", "8.00", "1.040", "0.39", "0.80"]
    );
    let parts = ["waiting_p99_us", "service_p99_us", "sending_p99_us"];
    assert_eq!(parts.map(cell), ["0.528", "0.496", "0.112"], "the parts of its latency");
    let mut calls = report(12, 0);
    let extension = ExtensionUse { sending: durations(4_160, 3), ..ExtensionUse::default() };
    let computes = ExtensionUse {
        name: "computes".into(),
        service: durations(5_000_192, 9),
        memory_bytes: 3 << 20,
        budget_cpu_ns: 10_000_000,
        ..ExtensionUse::default()
    };
    calls.extensions.push(computes);
    calls.extensions.push(extension);
    let extensions = TopView::Extensions.rows(None, &calls);
    let used = |name| self::cell(TopView::Extensions, &extensions[0], name);
    let p99_us: f64 = used("service_p99_us").parse().unwrap();
    let of_budget = format!("{:.2}", p99_us / 100.0);
    assert!(p99_us > 4_900.0 && used("budget_cpu_percent") == of_budget, "{p99_us} us of 10 ms: {of_budget} %");
    assert_eq!(used("memory_bytes"), "3145728");
    let sent = parts.map(|name| self::cell(TopView::Extensions, &extensions[1], name));
    assert_eq!(sent, ["0.000", "0.000", "4.097"], "where none was measured there is none");
    // After a restart: since the start.
    let restarted = view.rows(Some(&report(500, 9)), &report(4, 9));
    assert_eq!(super::tests::cell(view, &restarted[8], "calls_per_s"), "8.00");
    // A tenant that was deleted and made again begins anew.
    let mut again = report(12, 1);
    again.tenants[0] = TenantUse { id: 77, calls: 6, ..tenant(0, 0) };
    let mut old = report(10, 1);
    old.tenants[0].calls = 1_000;
    assert_eq!(super::tests::cell(view, &view.rows(Some(&old), &again)[0], "calls_per_s"), "3.00");
    // A rate that refuses is the nearest quota, until it does not any more.
    let mut flood = report(12, 1);
    flood.tenants[0].over_rate = 3_000;
    let mut later = report(14, 1);
    later.tenants[0].over_rate = 3_000;
    let quota = |before: &TopReport, now: &TopReport| {
        ["quota_percent", "quota"].map(|name| super::tests::cell(view, &view.rows(Some(before), now)[0], name))
    };
    assert_eq!(quota(&report(10, 1), &flood), ["100.00", "requests_per_s"]);
    assert_eq!(quota(&flood, &later), ["0.00", "table t"]);
    // What neighbours cost is no rate.
    let mut beside = report(12, 2);
    let isolation = TenantIsolation { class: "get".into(), ratio_per_mille: 3_140, ..TenantIsolation::default() };
    beside.tenants[1].isolation = Some(isolation);
    let rows = view.rows(Some(&report(10, 2)), &beside);
    let column = view.columns().iter().position(|column| column.name == "isolation_ratio").expect("a column");
    let of = |row: usize| &rows[row].cells[column];
    assert_eq!([of(0).shown(), of(1).shown(), of(1).plain()], ["-", "3.1x", "3.14"]);
}

#[test]
fn a_thousand_tenants_take_no_more_drawing_than_fit_on_the_screen() {
    let mut model = model(TopView::Tenants, [report(1, 1_024)]);
    model.take(TopView::Tenants, report(2, 1_024), Vec::new());
    let begun = std::time::Instant::now();
    let (lines, formatted) = screen_of(&model, 120, 40);
    println!("drawn in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    assert_eq!(formatted, 36, "two lines above, the heading, the help");
    assert!(lines[0].starts_with("sandstorm: 1024 tenants, 2 workers"), "{}", lines[0]);
    assert!(lines[2].starts_with("TENANT") && lines[2].contains("CPU%"), "{}", lines[2]);
    assert!(lines[3].starts_with("tenant-1023 "), "the busiest first: {}", lines[3]);
    assert!(lines[4].starts_with("tenant-1022 "), "{}", lines[4]);
    // Each row has its own tenant's numbers, those beyond the screen too.
    assert_eq!(model.rows.len(), 1_024);
    for (row, number) in model.rows.iter().zip((0..1_024_u64).rev()) {
        let columns = ["tenant", "cpu_percent", "requests_per_s", "kills_per_s", "memory_bytes", "quota_percent"];
        let expected = [
            format!("tenant-{number:04}"),
            format!("{:.2}", number as f64 * 0.4),
            format!("{:.2}", number as f64 * 10.0),
            format!("{:.2}", (number % 2) as f64),
            (number << 10).to_string(),
            format!("{:.2}", 100.0 * number as f64 / 2_048.0),
        ];
        assert_eq!(columns.map(|name| cell(TopView::Tenants, row, name)), expected);
    }
}

#[test]
fn keys_choose_order_filter_and_the_page_of_one() {
    use TerminalKey::{Backspace, Character, Down, End, Enter, Escape, Interrupt, Right, Tab};
    let mut model = model(TopView::Tenants, [report(1, 50), report(2, 50), report(3, 50)]);
    for key in ['/', '4', '7', 'x'] {
        model.key(Character(key));
    }
    assert_eq!(model.rows.len(), 0, "while it is typed");
    model.key(Backspace);
    model.key(Enter);
    assert_eq!(model.rows.len(), 1);
    assert_eq!(model.key(Enter), KeyOutcome::Refresh);
    assert_eq!(model.kills_wanted(), Some(("tenant-0047".to_owned(), None)));
    let (lines, _) = screen_of(&model, 100, 40);
    assert!(lines.iter().any(|line| line.starts_with("TENANT         tenant-0047")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("SENDING_P99    112ns")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("CPU %: 18.8 now, 18.8 at most")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.ends_with("██")), "two points of its graph: {lines:#?}");
    model.key(Escape);
    model.key(Escape);
    assert_eq!((model.page, model.rows.len()), (false, 50), "back, then without the filter");
    model.key(End);
    assert_eq!(model.selected, 49);
    assert!(screen_of(&model, 100, 10).0[8].starts_with("tenant-0000"), "the selected row is on the screen");
    // The selected one stays selected when the order changes.
    let selected = model.selected_row().unwrap().key.clone();
    model.key(Character('r'));
    assert_eq!(model.selected_row().unwrap().key, selected);
    model.key(Right);
    model.key(Down);
    assert_eq!(model.order, 2);
    assert_eq!(model.key(Tab), KeyOutcome::Refresh);
    assert_eq!((model.view, model.rows.len()), (TopView::Extensions, 0));
    assert_eq!(model.key(Character('q')), KeyOutcome::Quit);
    assert_eq!(model.key(Interrupt), KeyOutcome::Quit);
}

#[test]
fn a_server_that_is_gone_is_said_to_be_and_what_it_said_stays() {
    let mut model = model(TopView::Tenants, [report(1, 3), report(2, 3)]);
    model.fail("cannot connect to 127.0.0.1:7399\u{1b}[2J".to_owned());
    let (lines, formatted) = screen_of(&model, 100, 12);
    assert!(lines[1].starts_with("no answer, and asked again each time: cannot connect"), "{}", lines[1]);
    assert!(lines[1].contains("\\u{1b}[2J") && formatted == 3, "{lines:#?}");
    model.take(TopView::Tenants, report(3, 4), Vec::new());
    let (lines, formatted) = screen_of(&model, 100, 12);
    assert_eq!((lines[1].as_str(), formatted), ("", 4), "it is back");
}

/// A name that a terminal, a script or a person would take for something else.
fn hostile_name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("\u{1b}[2J".to_owned()),
        Just("\u{1b}]0;title\u{7}".to_owned()),
        Just("\t\n\r".to_owned()),
        Just("\u{202e}evil\u{200b}".to_owned()),
        Just("漢字😀e\u{301}".to_owned()),
        Just("\u{9b}31m".to_owned()),
        any::<String>(),
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever names there are, and however small the screen: nothing that a terminal obeys is shown, and rows for
    /// scripts have as many cells as the heading.
    #[test]
    fn hostile_names_are_shown_escaped_everywhere(
        names in prop::collection::vec((hostile_name(), hostile_name()), 1..6),
        (width, height) in (1u16..150, 1u16..50),
        page: bool,
    ) {
        let mut now = report(2, 0);
        for (number, (tenant, name)) in names.into_iter().enumerate() {
            let quota = QuotaUse { name: format!("table {name}"), used: 1, limit: 2 };
            now.tenants.push(TenantUse { name: tenant.clone(), id: number as u32, quota, ..TenantUse::default() });
            let (one, two) = (tenant.clone(), name.clone());
            let version = number as u64;
            now.extensions.push(ExtensionUse { tenant: one, name: two, version, ..ExtensionUse::default() });
            now.tables.push(TableUse { tenant, name, id: number as u64, ..TableUse::default() });
        }
        for view in [TopView::Tenants, TopView::Extensions, TopView::Tables] {
            let mut model = model(view, [now.clone()]);
            model.filter = String::new();
            model.page = page;
            let (lines, _) = screen_of(&model, width, height);
            let printed = batch_text(2_000, &model.rows) + &table(view, &model.rows);
            for text in lines.iter().map(String::as_str).chain([printed.as_str()]) {
                let bad = text.chars().find(|c| sandstorm_terminal::needs_escape(*c));
                prop_assert_eq!(bad, None, "{:?}", text);
            }
            for line in batch_text(2_000, &model.rows).lines() {
                prop_assert_eq!(line.split('\t').count(), 1 + view.columns().len(), "{:?}", line);
            }
        }
    }
}
