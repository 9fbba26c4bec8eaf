use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use sandstorm_metrics::histogram::LATENCY_METRICS;
use sandstorm_metrics::latency::LatencyReading;
use sandstorm_net::trust::Trust;
use serde_json::Value;

use super::{EventCode, EventLog, MetricsReading, OTLP_BACKOFF, OTLP_BACKOFF_MAX, OtlpPush, OtlpSender, OtlpSettings};
use crate::events::EventFilter;
use crate::http_receiver::receiver;
use crate::limits::OTLP_TIMEOUT;

fn settings(url: &str) -> OtlpSettings {
    OtlpSettings {
        url: url.to_owned(),
        interval: Duration::from_secs(30),
        top: 0,
        headers: vec![("authorization".to_owned(), "Bearer very-secret".to_owned())],
        trust: Trust::Public,
    }
}

fn push_to(url: &str, timeout: Duration) -> OtlpPush {
    OtlpPush::new(settings(url), ["host".to_owned(), "host:1".to_owned()], timeout)
}

fn read() -> MetricsReading {
    MetricsReading { groups: Vec::new(), latencies: LatencyReading::default() }
}

fn events(log: &EventLog) -> Vec<(EventCode, String)> {
    let page = log.read(&EventFilter::default(), 100);
    page.events.into_iter().map(|event| (event.code, event.text)).collect()
}

const ENOUGH: Duration = Duration::from_secs(60);

#[test]
fn a_push_has_the_headers_and_its_refusals_are_told_once() {
    let (answer, answers) = channel();
    let (url, gets) = receiver(answers);
    let (log, mut push) = (EventLog::in_memory(), push_to(&url, ENOUGH));
    answer.send((200, "", "{}")).unwrap();
    let pause = push.step(&log, &read);
    assert!(pause > Duration::from_secs(20) && pause <= Duration::from_secs(30), "{pause:?}");
    let (head, body) = gets.recv().expect("a request");
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /hook http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/json\r\n"), "{head}");
    assert!(head.contains("authorization: bearer very-secret\r\n"), "{head}");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    assert_eq!(metrics[0]["name"], format!("sandstorm_{}", LATENCY_METRICS[0].name));
    // Refusals, a redirect among them: each pause is longer, but for one that the endpoint asks for, up to the longest.
    for (status, headers, body, expected) in [
        (500, "", "no \u{1b}[31mroom", OTLP_BACKOFF),
        (302, "location: http://127.0.0.1:1/\r\n", "", 2 * OTLP_BACKOFF),
        (503, "retry-after: 77\r\n", "", Duration::from_secs(77)),
        (429, "retry-after: 86400\r\n", "", OTLP_BACKOFF_MAX),
    ] {
        answer.send((status, headers, body)).unwrap();
        assert_eq!(push.step(&log, &read), expected, "{status}");
        gets.recv().expect("a request");
    }
    // Taken in part, and then all of it: it has recovered, and what it leaves out is told once.
    let part = "{\"partialSuccess\":{\"rejectedDataPoints\":\"7\",\"errorMessage\":\"too old\"}}";
    let number = "{\"partialSuccess\":{\"rejectedDataPoints\":7}}";
    for body in [part, number, "{\"partialSuccess\":{\"rejectedDataPoints\":0}}", "", "\u{a}\u{b}protobuf", part] {
        answer.send((200, "", body)).unwrap();
        push.step(&log, &read);
        gets.recv().expect("a request");
    }
    let rejected = (EventCode::OtlpRejected, "7 points were left out: too old".to_owned());
    let expected = [
        (EventCode::OtlpFailing, "http status: 500: no \u{1b}[31mroom".to_owned()),
        (EventCode::OtlpRecovered, "it takes metrics again".to_owned()),
        rejected.clone(),
        rejected,
    ];
    assert_eq!(events(&log), expected);
    assert!(!format!("{:?}", push.settings).contains("very-secret"));
}

#[test]
fn one_that_never_answers_is_given_up_and_gets_what_is_then() {
    let (answer, answers) = channel();
    let (url, gets) = receiver(answers);
    let (log, mut push) = (EventLog::in_memory(), push_to(&url, Duration::from_millis(100)));
    answer.send((0, "", "")).unwrap();
    assert_eq!(push.step(&log, &read), OTLP_BACKOFF);
    gets.recv().expect("a request");
    let (code, text) = events(&log).pop().expect("it is told");
    assert!(code == EventCode::OtlpFailing && text.contains("timeout"), "{text}");
    // However often, the pause has an end, and so has what is said of it.
    push.failures = 1_000;
    answer.send((0, "", "")).unwrap();
    assert_eq!(push.step(&log, &read), OTLP_BACKOFF_MAX);
    assert_eq!(events(&log).len(), 1);
    // Nothing was kept for it: the next push is one request.
    gets.recv().expect("a request");
    answer.send((200, "", "")).unwrap();
    let mut push = OtlpPush { failures: push.failures, ..push_to(&url, ENOUGH) };
    push.step(&log, &read);
    gets.recv().expect("a request");
    assert!(gets.try_recv().is_err());
}

#[test]
fn an_answer_without_end_is_cut() {
    let long = "x".repeat(1 << 20).leak();
    let (answer, answers) = channel();
    let (url, _gets) = receiver(answers);
    let (log, mut push) = (EventLog::in_memory(), push_to(&url, ENOUGH));
    answer.send((400, "", long)).unwrap();
    push.step(&log, &read);
    assert!(events(&log)[0].1.len() < 300);
}

#[test]
fn a_push_that_waits_is_not_waited_for_at_the_end() {
    let (answer, answers) = channel();
    let (url, gets) = receiver(answers);
    answer.send((0, "", "")).unwrap();
    let log = Arc::new(EventLog::in_memory());
    let sender = OtlpSender::start(settings(&url), [String::new(), String::new()], &log, read).expect("a thread");
    gets.recv().expect("a request");
    let begun = Instant::now();
    drop(sender);
    assert!(begun.elapsed() < OTLP_TIMEOUT, "it still waits for its answer");
}
