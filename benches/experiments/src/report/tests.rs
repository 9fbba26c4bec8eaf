//! The pure parts: statistics, escaping, the shapes of JSON, page and drawings.

use super::machine::{MachineDescription, field, format_utc};
use super::*;

fn machine() -> MachineDescription {
    let mut machine = MachineDescription::read();
    machine.processor = "a <processor> & \"more\"".into();
    machine
}

fn report() -> BenchReport {
    let mut findings = ExperimentFindings::new("depth", "What & how <b>");
    let (fast, slow) = (RoundSpread::of(vec![4.0, 6.0, 5.0]), RoundSpread::of(vec![1.0, 2.0, 5.0]));
    let mut table = ReportTable::new("A table", "of", ["rate, thousand/s", "a&b"]);
    table.row("<one>", vec![fast.clone(), RoundSpread::once(7.0)]);
    table.row("two", vec![RoundSpread::of(vec![]), RoundSpread::once(8.0)]);
    findings.tables.push(table);
    findings.ratios.push(RatioResult::of("fast / slow", "us", [&fast, &slow], Some(RatioTarget::AtLeast(3.5))));
    findings.ratios.push(RatioResult::of("slow / fast", "us", [&slow, &fast], None));
    let points = [(1.0, fast), (8.0, slow), (64.0, RoundSpread::of(vec![]))].map(|(x, y)| PlotPoint { x, y });
    findings.plots.push(LinePlot {
        title: "Rate".into(),
        x: PlotAxis { name: "hops".into(), scale: AxisScale::Log },
        y: PlotAxis { name: "us".into(), scale: AxisScale::Linear },
        series: vec![PlotSeries { name: "calls <of> one".into(), points: points.into() }],
    });
    let mut report = BenchReport::new(machine(), vec!["depth".into(), "--rounds".into(), "3".into()]);
    report.experiments.push(findings);
    report
}

#[test]
fn medians_and_spreads_are_of_the_rounds() {
    for (mut values, expected) in [(vec![3.0], 3.0), (vec![9.0, 1.0, 5.0], 5.0), (vec![4.0, 1.0, 2.0, 9.0], 3.0)] {
        assert_eq!(median(&mut values), expected);
    }
    assert!(median(&mut []).is_nan());
    let spread = RoundSpread::of(vec![2.0, f64::NAN, 1.0, 6.0]);
    assert_eq!((spread.median, spread.least, spread.most, spread.rounds.len()), (2.0, 1.0, 6.0, 4));
    let none = RoundSpread::of(vec![f64::NAN]);
    assert!(none.median.is_nan() && none.least.is_nan() && none.most.is_nan());
    // Round by round, not of the medians.
    let ratio = RoundSpread::of(vec![10.0, 1.0, 6.0]).over(&RoundSpread::of(vec![1.0, 2.0, 3.0]));
    assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 0.5, 10.0));
    assert_eq!(RoundSpread::once(2.5).median, 2.5);
}

#[test]
fn targets_are_held_against_the_median() {
    let (one, two) = (RoundSpread::of(vec![1.0, 9.0, 2.0]), RoundSpread::of(vec![1.0, 1.0, 1.0]));
    for (target, reached) in [
        (RatioTarget::AtLeast(2.0), true),
        (RatioTarget::AtLeast(2.1), false),
        (RatioTarget::AtMost(2.0), true),
        (RatioTarget::AtMost(1.9), false),
    ] {
        assert_eq!(RatioResult::of("x", "us", [&one, &two], Some(target)).reached, Some(reached), "{target}");
    }
    let nothing = RoundSpread::of(vec![]);
    assert_eq!(RatioResult::of("x", "us", [&nothing, &two], Some(RatioTarget::AtMost(2.0))).reached, Some(false));
    assert_eq!(RatioResult::of("x", "us", [&one, &two], None).reached, None);
}

#[test]
fn numbers_are_short() {
    for (value, text) in [
        (0.0, "0"),
        (1.0, "1"),
        (0.5, "0.50"),
        (0.001, "1.00e-3"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234.5, "1,234"),
        (-1_234_567.0, "-1,234,567"),
        (f64::NAN, "-"),
    ] {
        assert_eq!(text::number(value), text);
    }
}

#[test]
fn what_others_have_named_stays_text_in_the_page() {
    assert_eq!(
        text::escape("<a href=\"x\">'&'</a>\u{7}"),
        "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;\u{fffd}"
    );
    let page = html::page(&report());
    for raw in ["<processor>", "<b>", "<one>", "<of>", "\"more\"", "a&b"] {
        assert!(!page.contains(raw), "{raw} is in the page");
    }
    for text in
        ["&lt;processor&gt;", "Targets: 0 of 1 reached", "not reached", "sandstorm bench depth --rounds 3", "<svg"]
    {
        assert!(page.contains(text), "{text} is not in the page");
    }
    for foreign in ["<script", "http:", "https:", "url("] {
        assert!(!page.contains(foreign), "the page is not self-contained: {foreign}");
    }
    for tag in ["svg", "table", "section", "figure", "tr", "td", "th", "div", "dl", "title"] {
        let count = |text: &str| page.matches(text).count();
        let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
        assert_eq!(opened, count(&format!("</{tag}>")), "<{tag}> is not closed as often as it is opened");
    }
}

#[test]
fn drawings_leave_out_what_is_no_number() {
    let mut plot = report().experiments[0].plots[0].clone();
    let svg = svg::plot(&plot);
    assert_eq!(svg.matches("<circle").count(), 2, "the third point has no value");
    assert_eq!(svg.matches("whisker").count(), 2);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    plot.x.scale = AxisScale::Linear;
    plot.y.scale = AxisScale::Log;
    plot.series[0].points.push(PlotPoint { x: 3.0, y: RoundSpread::once(0.0) });
    let svg = svg::plot(&plot);
    assert_eq!(svg.matches("<circle").count(), 2, "zero has no place on this axis");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    plot.series.clear();
    assert!(svg::plot(&plot).ends_with("</svg>"));
}

#[test]
fn the_data_has_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let paths = report().write(&folder.path().join("new/folder")).unwrap();
    assert!(std::fs::read_to_string(&paths[0]).unwrap().starts_with("<!DOCTYPE html>"));
    let data: serde_json::Value = serde_json::from_slice(&std::fs::read(&paths[1]).unwrap()).unwrap();
    assert_eq!(data["version"], 1);
    assert!(data["machine"]["processors"].as_u64() >= Some(1));
    let depth = &data["experiments"][0];
    assert_eq!(depth["name"], "depth");
    assert_eq!(depth["tables"][0]["rows"][0]["cells"][0]["median"], 5.0);
    assert_eq!(depth["tables"][0]["rows"][0]["cells"][1]["median"], 7.0);
    assert!(depth["tables"][0]["rows"][1]["cells"][0]["median"].is_null());
    assert_eq!(depth["ratios"][0]["target"]["at_least"], 3.5);
    assert_eq!((depth["ratios"][0]["reached"].as_bool(), depth["ratios"][1]["reached"].as_bool()), (Some(false), None));
    assert_eq!(depth["plots"][0]["series"][0]["points"][1]["y"]["rounds"].as_array().unwrap().len(), 3);
    assert!(depth["plots"][0]["series"][0]["points"][2]["y"]["median"].is_null(), "JSON has no NaN");
    let failure = report().write(std::path::Path::new("/dev/null/folder")).unwrap_err();
    assert!(failure.message.contains("/dev/null/folder"), "{}", failure.message);
}

#[test]
fn text_has_all_rows_and_ratios() {
    let text = report().experiments[0].text();
    for line in ["A table", "<one>", "two", "fast / slow: 3 (1 to 4; 5 and 2 us); target at least 3.50: NOT reached"] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
}

#[test]
fn the_machine_is_read_and_dates_are_dates() {
    assert_eq!(field("a b\t: 1\nmodel name\t: x: y\n", "model name").as_deref(), Some("x: y"));
    assert_eq!(field("MemTotal:       100 kB", "MemTotal").as_deref(), Some("100 kB"));
    assert_eq!(field("nothing", "MemTotal"), None);
    for (unix_s, expected) in [
        (0, "1970-01-01 00:00"),
        (951_782_400, "2000-02-29 00:00"),
        (951_868_799, "2000-02-29 23:59"),
        (1_767_225_599, "2025-12-31 23:59"),
        (4_107_542_400, "2100-03-01 00:00"),
    ] {
        assert_eq!(format_utc(unix_s), expected);
    }
}
