use std::time::{Duration, SystemTime};

use sandstorm_metrics::histogram::{ClassLatencies, RequestClass};
use sandstorm_metrics::latency::{LatencyByClass, LatencyReading};
use sandstorm_metrics::text::{LabelledReadings, OldNames, prometheus};
use sandstorm_metrics::{MetricReading, TenantCounters};
use serde_json::{Value, json};

use super::{MetricsReading, OTLP_POINTS, bodies};

/// Tenants that have counted something, and a call.
fn reading(tenants: u64) -> MetricsReading {
    let read = |tenant: u64| -> Vec<MetricReading> {
        let of = |metric: &'static sandstorm_metrics::MetricSpec| MetricReading {
            metric,
            values: (0..metric.label.map_or(1, |(_, values)| values.len() as u64))
                .map(|at| 1_000 * tenant + at)
                .collect(),
        };
        TenantCounters::METRICS.iter().map(of).collect()
    };
    let group =
        |tenant| LabelledReadings { labels: vec![("tenant", format!("t{tenant}\"\n<b>"))], readings: read(tenant) };
    let worker = ClassLatencies::default();
    worker.of(RequestClass::Call).record(3_000_000, 1_000_000, 2);
    worker.of(RequestClass::Call).record(0, 10_000_000_000, 1);
    let mut counts = LatencyByClass::default();
    worker.read_into(&mut counts);
    let latencies = LatencyReading::of(vec![("t0".to_owned(), counts)]);
    MetricsReading { groups: (0..tenants).map(group).collect(), latencies }
}

/// The metrics of all bodies.
fn metrics_of(reading: &MetricsReading) -> Vec<Vec<Value>> {
    let started = SystemTime::now() - Duration::from_secs(60);
    let resource = ["db.example".to_owned(), "db.example:7400".to_owned()];
    let bodies = bodies(reading, &resource, started).expect("JSON");
    let read = |body: &Vec<u8>| {
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let of = &body["resourceMetrics"][0];
        let name = json!({"key": "service.instance.id", "value": {"stringValue": "db.example:7400"}});
        assert!(of["resource"]["attributes"].as_array().expect("attributes").contains(&name), "{of}");
        of["scopeMetrics"][0]["metrics"].as_array().expect("metrics").clone()
    };
    bodies.iter().map(read).collect()
}

fn points(metric: &Value) -> &Vec<Value> {
    let kinds = ["sum", "gauge", "histogram", "summary"];
    let kind = kinds.iter().find(|kind| metric[**kind].is_object()).expect("a kind");
    metric[*kind]["dataPoints"].as_array().expect("points")
}

/// Each line that Prometheus would read has a point with the same name, labels and value, and there are no others.
#[test]
fn what_is_pushed_is_what_prometheus_reads() {
    let reading = reading(3);
    let text = prometheus(&reading.groups, OldNames::Hidden);
    let mut expected: Vec<String> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    let mut found = Vec::new();
    for metric in metrics_of(&reading).concat() {
        let name = metric["name"].as_str().expect("a name");
        let ending = if metric["sum"].is_object() { "_total" } else { "" };
        if metric["sum"].is_object() {
            assert_eq!(
                (&metric["sum"]["aggregationTemporality"], &metric["sum"]["isMonotonic"]),
                (&json!(2), &json!(true))
            );
        }
        for point in points(&metric) {
            let value = match (&point["asInt"], &point["asDouble"]) {
                (Value::String(whole), _) => whole.clone(),
                (_, Value::Number(real)) => real.as_f64().expect("a number").to_string(),
                _ => continue,
            };
            let label = |one: &Value| {
                let value = one["value"]["stringValue"].as_str().expect("text");
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{}=\"{value}\"", one["key"].as_str().expect("a key"))
            };
            let labels: Vec<String> = point["attributes"].as_array().expect("a list").iter().map(label).collect();
            found.push(format!("{name}{ending}{{{}}} {value}", labels.join(",")));
            let time = |key: &str| point[key].as_str().and_then(|text| text.parse::<u64>().ok()).expect("a time");
            assert!(time("timeUnixNano") - time("startTimeUnixNano") >= 60_000_000_000);
        }
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn latencies_are_a_histogram_of_all_and_summaries_of_tenants() {
    let metrics = metrics_of(&reading(1)).concat();
    let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).expect("it is pushed");
    let whole = named("sandstorm_request_duration_seconds");
    assert_eq!((&whole["unit"], &whole["histogram"]["aggregationTemporality"]), (&json!("s"), &json!(2)));
    let call = json!([{"key": "class", "value": {"stringValue": "call"}}]);
    let point = points(whole).iter().find(|point| point["attributes"] == call).expect("calls");
    assert_eq!((&point["count"], &point["sum"]), (&json!("3"), &json!(10.008)));
    let (bounds, counts) = (point["explicitBounds"].as_array().unwrap(), point["bucketCounts"].as_array().unwrap());
    assert_eq!(counts.len(), bounds.len() + 1, "one more for what is longer than all of them");
    let filled: Vec<(usize, &Value)> = counts.iter().enumerate().filter(|(_, count)| **count != json!("0")).collect();
    assert_eq!(filled, [(6, &json!("2")), (12, &json!("1"))], "4 ms are below 4.19 ms, 10 s above all bounds");
    let waiting = points(named("sandstorm_tenant_request_waiting_seconds"));
    assert_eq!((waiting.len(), &waiting[0]["count"]), (1, &json!("3")));
    let quantiles: Vec<&Value> =
        waiting[0]["quantileValues"].as_array().unwrap().iter().map(|one| &one["quantile"]).collect();
    assert_eq!(quantiles, [&json!(0.5), &json!(0.99), &json!(0.999)]);
}

#[test]
fn a_thousand_tenants_are_parts_of_bounded_length_that_say_all() {
    let parts = metrics_of(&reading(1_000));
    let lengths: Vec<usize> = parts.iter().map(|part| part.iter().map(|metric| points(metric).len()).sum()).collect();
    let per_tenant: usize =
        TenantCounters::METRICS.iter().map(|metric| metric.label.map_or(1, |(_, all)| all.len())).sum();
    // The classes of all tenants, three summaries of one tenant's calls, and two histograms of pushes.
    assert_eq!(lengths.iter().sum::<usize>(), 1_000 * per_tenant + 6 + 3 + 2);
    assert!(
        lengths.len() > 2 && lengths[..lengths.len() - 1].iter().all(|length| *length == OTLP_POINTS),
        "{lengths:?}"
    );
    let started = SystemTime::now();
    let longest = bodies(&reading(1_000), &[String::new(), String::new()], started).unwrap().iter().map(Vec::len).max();
    assert!(longest.is_some_and(|bytes| bytes < 2 << 20), "{longest:?}");
}
