//! What neighbours cost a tenant, in what Prometheus, `top` and the page are told; and that tenants whose tables have
//! the same id are told apart.

use super::*;
use crate::admin::overview_page;
use crate::admin::prometheus::read_metrics;
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_metrics::text::{OldNames, prometheus};

/// A control port that answers no requests: its clock is the test's.
fn unserved_control(epochs: Arc<Epochs>) -> Arc<ControlState> {
    let options = DirectoryOptions { workers: 1, code: testing::code(), ..DirectoryOptions::default() };
    let directory = Directory::with_options(epochs, options);
    let no_builder: Result<Arc<dyn ArtifactBuilder>, String> = Err("none in this test".into());
    let (data, metrics) = ("127.0.0.1:7400".parse().unwrap(), ServerMetrics::new(1));
    let served =
        DataPlaneView { directory, metrics, data, listen: Vec::new(), calls: None, profiler: None, moves: None };
    let keys = OperatorCredentials::new(&token::generate(), None);
    let extensions: RestoredExtensions = ArtifactSources::from(no_builder).into();
    ControlState::new(served, extensions, keys, || {})
}

#[test]
fn what_neighbours_cost_is_told_by_tenant_and_kind_of_request() {
    let control = unserved_control(Epochs::new());
    for name in ["loud", "small"] {
        control.directory.create_tenant(sandstorm_catalog::NewTenant::named(name)).unwrap();
    }
    let mut now_ms = 1_000_000;
    for second in 0..=60 {
        let snapshot = control.directory.snapshot();
        let usage = |name: &str| &snapshot.by_name(name).unwrap().tenant.usage;
        let is_beside = second > 30;
        if second > 0 {
            usage("small").worker(0).requests.add(100);
            let took_ns = if is_beside { 4_000_000 } else { 1_000_000 };
            usage("small").latency(0).of(RequestClass::Put).record(0, took_ns, 100);
        }
        if is_beside {
            usage("loud").worker(0).invocation_cpu_ns.add(900_000_000);
            control.metrics.worker(0).unwrap().busy_us.add(900_000);
        }
        now_ms += 1_000;
        control.isolation.look(&control.directory, &control.metrics, now_ms);
    }
    let text = prometheus(&read_metrics(&control, 5).groups, OldNames::Hidden);
    let value = |name: &str| {
        let line = format!("sandstorm_{name}{{tenant=\"small\",class=\"put\"}} ");
        let found = text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<f64>().ok());
        found.unwrap_or_else(|| panic!("{line} is not in {text}"))
    };
    assert!((value("tenant_isolation_ratio") - 4.0).abs() < 0.15, "{text}");
    assert!((value("tenant_quiet_p99_seconds") - 0.001).abs() < 0.000_02, "{text}");
    assert!((value("tenant_beside_p99_seconds") - 0.004).abs() < 0.000_08, "{text}");
    assert!(!text.contains("tenant_isolation_ratio{tenant=\"loud\""), "it has sent none");
    assert!(!prometheus(&read_metrics(&control, 0).groups, OldNames::Hidden).contains("isolation_ratio{"), "bounded");
    let snapshot = control.directory.snapshot();
    let shown = |name: &str| overview_page::isolation_of(&control, snapshot.by_name(name).unwrap());
    let small = shown("small").unwrap();
    assert_eq!((small.class, small.ratio_per_mille.abs_diff(4_000) < 150), ("put", true), "{small:?}");
    assert!(shown("loud").is_none());
    let found = crate::admin::findings::current(&control);
    let finding = found.iter().find(|finding| finding.code == "tenant_beside_neighbours").unwrap();
    assert!(finding.text.contains("of small (put)"), "{finding:?}");
    assert!(!finding.advice.contains("--home"), "there is one worker: {finding:?}");
}

#[test]
fn a_full_table_is_told_of_its_own_tenant_though_others_have_tables_of_its_id() {
    let epochs = Epochs::new();
    let control = unserved_control(Arc::clone(&epochs));
    let participant = epochs.register();
    for name in ["a", "b"] {
        control.directory.create_tenant(NewTenant::named(name)).unwrap();
        let table =
            sandstorm_catalog::NewTable { quota_bytes: Some(100_000), ..sandstorm_catalog::NewTable::named("t") };
        control.directory.create_table(name, table).unwrap();
    }
    let refuse = |tenant: &str, times: usize| {
        let snapshot = control.directory.snapshot();
        let table = &snapshot.by_name(tenant).unwrap().table_by_name("t").unwrap().table;
        for _ in 0..times {
            let (key, value) = (b"k", vec![7; 200_000]);
            assert!(table.put(&participant, table.hash(key), key, &value, &Default::default(), 1).is_err());
        }
        table.stats().refusals
    };
    assert_eq!((refuse("a", 5), refuse("b", 9)), (5, 9));
    control.live_samples.look(&control);
    assert_eq!(refuse("a", 2), 7);
    let found = crate::admin::findings::current(&control);
    let full: Vec<&str> =
        found.iter().filter(|finding| finding.code == "table_full").map(|finding| finding.text.as_str()).collect();
    assert!(matches!(full[..], [text] if text.starts_with("2 writes to a/t were refused")), "{full:?}");
}
