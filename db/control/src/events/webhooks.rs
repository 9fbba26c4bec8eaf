//! Webhooks: events are posted to the places that the configuration names.
//!
//! The log of events is the queue, and it is bounded: a webhook is a reader of it with a position, on a thread of its
//! own, so one that never answers delays no other, and costs no memory. What the log dropped before a webhook got it is
//! counted, and the next delivery says how much that was. The position is kept in the state directory: a restart sends
//! what was not delivered, and may send the last delivery once more. The file of a position is JSON with a checksum; in
//! its first format it was the number alone. One that is damaged stops the start: events would be lost, or sent twice,
//! and nothing would say so. A delivery has the numbers of its events, by which a receiver knows it again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use ring::hmac;
use serde::Serialize;

use super::{EventCode, EventFilter, EventLog, NewEvent, ServerEvent};
use crate::checked_json::NumberFile;
use crate::config::{ConfigError, WebhookSettings, origin_of, write_private};
use crate::limits::{WEBHOOK_BACKOFF, WEBHOOK_BACKOFF_MAX, WEBHOOK_EVENTS, WEBHOOK_INTERVAL, WEBHOOK_TIMEOUT};
use crate::outgoing::{agent_config, pause_after};

/// The folder of the positions in the state directory.
const FOLDER: &str = "webhooks";
/// What is in the file of a position.
const CONTENT: NumberFile = NumberFile { field: "position" };

/// The body of a delivery.
#[derive(Debug, Serialize)]
struct Delivery<'a> {
    /// The events, the oldest first.
    events: &'a [ServerEvent],
    /// Events before these that were dropped before they could be delivered.
    left_out: u64,
}

/// The webhooks of a server, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct WebhookSenders {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::Thread>,
}

impl WebhookSenders {
    /// Starts a thread for each webhook. `state` is the state directory, if anything is kept.
    ///
    /// # Errors
    /// The file of a position cannot be read, is damaged, or was written by a later version of this program; the system
    /// gives no thread.
    pub(crate) fn start<L>(
        webhooks: &[WebhookSettings],
        state: Option<&Path>,
        log: &Arc<L>,
    ) -> Result<WebhookSenders, ConfigError>
    where
        L: AsRef<EventLog> + Send + Sync + 'static,
    {
        let mut senders = WebhookSenders::default();
        for webhook in webhooks {
            let sender = WebhookSender::new(webhook, state, L::as_ref(log))?;
            let (log, stop) = (Arc::clone(log), Arc::clone(&senders.stop));
            let started = std::thread::Builder::new().name("webhook".into()).spawn(move || {
                sender.run(L::as_ref(&log), &stop);
            });
            let thread = started.map_err(|error| ConfigError::new(format!("no thread for a webhook: {error}")))?;
            // A sender that waits for an answer is not waited for: what it sends is sent again at the next start.
            senders.threads.push(thread.thread().clone());
        }
        Ok(senders)
    }
}

impl Drop for WebhookSenders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.iter().for_each(std::thread::Thread::unpark);
    }
}

/// One webhook, at its position.
struct WebhookSender {
    settings: WebhookSettings,
    agent: ureq::Agent,
    key: hmac::Key,
    position: u64,
    /// Events that were dropped before they could be delivered, since the last delivery.
    left_out: u64,
    /// Failures since the last delivery.
    failures: u32,
    file: Option<PathBuf>,
}

impl WebhookSender {
    fn new(settings: &WebhookSettings, state: Option<&Path>, log: &EventLog) -> Result<WebhookSender, ConfigError> {
        let file = state.map(|state| {
            let name = HEXLOWER.encode(&digest(&SHA256, settings.url.as_bytes()).as_ref()[..8]);
            state.join(FOLDER).join(name)
        });
        // A new webhook gets what happens from now on.
        let position = file.as_deref().map(read_position).transpose()?.flatten().unwrap_or_else(|| log.last_id());
        Ok(WebhookSender {
            agent: settings.trust.agent(agent_config(WEBHOOK_TIMEOUT)),
            key: hmac::Key::new(hmac::HMAC_SHA256, &settings.secret),
            settings: settings.clone(),
            position,
            left_out: 0,
            failures: 0,
            file,
        })
    }

    fn run(mut self, log: &EventLog, stop: &AtomicBool) {
        self.keep_position();
        while !stop.load(Ordering::Relaxed) {
            let pause = match self.step(log) {
                Some(Ok(())) => Duration::ZERO,
                Some(Err(why)) => self.failed(log, &why),
                None => WEBHOOK_INTERVAL,
            };
            if !pause.is_zero() {
                // Woken when the server stops.
                std::thread::park_timeout(pause);
            }
        }
    }

    /// Delivers the next events, if there are any: up to [`WEBHOOK_EVENTS`].
    fn step(&mut self, log: &EventLog) -> Option<Result<(), String>> {
        let filter = EventFilter { after: Some(self.position), ..EventFilter::default() };
        let page = log.read(&filter, WEBHOOK_EVENTS);
        let last = page.events.last()?.id;
        // Numbers have no gaps, but for what was dropped.
        let left_out = self.left_out + last.saturating_sub(self.position).saturating_sub(page.events.len() as u64);
        let wanted: Vec<ServerEvent> = page.events.into_iter().filter(|event| self.wants(event)).collect();
        if wanted.is_empty() {
            self.left_out = left_out;
        } else {
            if let Err(why) = self.deliver(&wanted, left_out) {
                return Some(Err(why));
            }
            if self.failures > 0 {
                self.note(log, EventCode::WebhookRecovered, format!("it takes events again; {left_out} were left out"));
            }
            (self.left_out, self.failures) = (0, 0);
        }
        self.position = last;
        self.keep_position();
        Some(Ok(()))
    }

    fn wants(&self, event: &ServerEvent) -> bool {
        let code = event.code.name();
        let is = |wanted: &String| {
            code == wanted || code.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        self.settings.codes.is_empty() || self.settings.codes.iter().any(is)
    }

    fn deliver(&self, events: &[ServerEvent], left_out: u64) -> Result<(), String> {
        let body = serde_json::to_vec(&Delivery { events, left_out }).map_err(|error| error.to_string())?;
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let numbers = |event: Option<&ServerEvent>| event.map_or(0, |event| event.id);
        let sent = self
            .agent
            .post(&self.settings.url)
            .header("content-type", "application/json")
            .header("sandstorm-delivery", format!("{}-{}", numbers(events.first()), numbers(events.last())))
            .header("sandstorm-signature", signature(&self.key, at_s, &body))
            .send(&body[..]);
        let status = sent.map_err(|error| error.to_string())?.status();
        // A redirect is an answer, too, and takes nothing.
        if status.is_success() { Ok(()) } else { Err(format!("http status: {}", status.as_u16())) }
    }

    /// Notes a failure. Returns the pause until the next attempt.
    fn failed(&mut self, log: &EventLog, why: &str) -> Duration {
        if self.failures == 0 {
            self.note(log, EventCode::WebhookFailing, why.to_owned());
        }
        self.failures += 1;
        pause_after(self.failures, WEBHOOK_BACKOFF, WEBHOOK_BACKOFF_MAX)
    }

    fn note(&self, log: &EventLog, code: EventCode, text: String) {
        let url = origin_of(&self.settings.url);
        tracing::warn!(url, "{}: {text}", code.name());
        log.record(NewEvent { subject: Some(url.to_owned()), text, ..NewEvent::of_server(code) });
    }

    fn keep_position(&self) {
        let Some(file) = &self.file else { return };
        use std::os::unix::fs::DirBuilderExt;
        let made = file.parent().map(|folder| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder));
        let kept = made.transpose().map_err(|error| error.to_string());
        let kept =
            kept.and_then(|_| write_private(file, &CONTENT.encode(self.position)).map_err(|error| error.to_string()));
        if let Err(error) = kept {
            tracing::warn!(url = origin_of(&self.settings.url), error, "a restart sends events again, or not at all");
        }
    }
}

/// The position that a file has; `None`: there is no file.
fn read_position(file: &Path) -> Result<Option<u64>, ConfigError> {
    let unusable = |why: String| {
        ConfigError::new(format!(
            "how far a webhook has the events: {}: {why}. Put it back from a backup; without it the webhook gets what \
             happens from the start on",
            file.display()
        ))
    };
    match std::fs::read(file) {
        Ok(bytes) => CONTENT.decode(&bytes).map(Some).map_err(unusable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(error.to_string())),
    }
}

/// The header that proves the sender and the time of a body: `t=SECONDS,v1=HEX`, HMAC-SHA256 over the seconds, a dot
/// and the body.
fn signature(key: &hmac::Key, at_s: u64, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{at_s}.").as_bytes());
    context.update(body);
    format!("t={at_s},v1={}", HEXLOWER.encode(context.sign().as_ref()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::golden::{assert_golden, golden_file};
    use crate::http_receiver::receiver;
    use crate::limits::OPERATOR_EVENTS_PER_FILE;
    use sandstorm_net::trust::Trust;
    use serde_json::Value;

    fn settings(url: &str, codes: &[&str]) -> WebhookSettings {
        let codes = codes.iter().map(|code| (*code).to_owned()).collect();
        WebhookSettings { url: url.to_owned(), secret: vec![7; 32], codes, trust: Trust::Public }
    }

    fn record(log: &EventLog, code: EventCode, subject: &str) {
        log.record(NewEvent { subject: Some(subject.to_owned()), ..NewEvent::of_server(code) });
    }

    fn subjects(body: &[u8]) -> Vec<String> {
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let events = body["events"].as_array().expect("a list").iter();
        events.map(|event| event["subject"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn events_are_signed_sent_once_and_sent_again_until_they_are_taken() {
        let (status, statuses) = channel();
        let (url, gets) = receiver(statuses);
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::in_memory();
        record(&log, EventCode::TableCreated, "before");
        let mut sender =
            WebhookSender::new(&settings(&url, &["table"]), Some(folder.path()), &log).expect("a position");
        assert!(sender.step(&log).is_none(), "what was before is not sent");
        record(&log, EventCode::TableCreated, "one");
        record(&log, EventCode::TenantCreated, "of no interest");
        record(&log, EventCode::TableDropped, "two");
        for refused in [500, 404] {
            status.send((refused, "", "")).expect("it listens");
            let why = sender.step(&log).expect("there is something").expect_err("it is refused");
            assert!(why.contains(&refused.to_string()), "{why}");
            let pause = sender.failed(&log, &why);
            assert_eq!(pause, WEBHOOK_BACKOFF * if refused == 500 { 1 } else { 2 });
            assert_eq!(subjects(&gets.recv().expect("a request").1), ["one", "two"]);
        }
        status.send((204, "", "")).expect("it listens");
        sender.step(&log).expect("there is something").expect("it is taken");
        let (head, body) = gets.recv().expect("a request");
        assert_eq!(subjects(&body), ["one", "two"]);
        let head = head.to_ascii_lowercase();
        assert!(head.contains("sandstorm-delivery: 2-4\r\n"), "{head}");
        let sent =
            head.split("sandstorm-signature: ").nth(1).and_then(|rest| rest.lines().next()).expect("a signature");
        let at_s = sent.trim_start_matches("t=").split(',').next().and_then(|at| at.parse().ok()).expect("a time");
        assert_eq!(sent, signature(&hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]), at_s, &body));
        while sender.step(&log).is_some() {}
        assert!(gets.try_recv().is_err(), "nothing is sent twice");
        let codes: Vec<EventCode> =
            log.read(&EventFilter::default(), 10).events.iter().map(|event| event.code).collect();
        assert_eq!(codes[4..], [EventCode::WebhookFailing, EventCode::WebhookRecovered]);

        record(&log, EventCode::TableCreated, "three");
        let mut again = WebhookSender::new(&settings(&url, &["table"]), Some(folder.path()), &log).expect("a position");
        status.send((200, "", "")).expect("it listens");
        again.step(&log).expect("there is something").expect("it is taken");
        assert_eq!(subjects(&gets.recv().expect("a request").1), ["three"], "a restart goes on where it was");
    }

    #[test]
    fn golden_files_of_both_formats_are_read_and_one_that_is_damaged_or_newer_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::in_memory();
        let settings = settings("http://127.0.0.1:9/", &[]);
        let open = || WebhookSender::new(&settings, Some(folder.path()), &log);
        let mut sender = open().expect("a new one");
        sender.position = 4_711;
        sender.keep_position();
        let path = sender.file.expect("a file");
        assert_golden("webhook-format-2.json", &std::fs::read(&path).expect("a file"));
        for format in ["webhook-format-1.txt", "webhook-format-2.json"] {
            std::fs::write(&path, golden_file(format)).expect("room");
            assert_eq!(open().expect("a golden file").position, 4_711, "{format}");
        }
        let good = golden_file("webhook-format-2.json");
        let mut flipped = good.clone();
        flipped[25] ^= 1;
        for (bytes, why) in [
            (&b""[..], "it is empty"),
            (&flipped[..], "its checksum is wrong"),
            (&good[..40], "it has no checksum"),
            (&b"{\"format\":3,\"position\":7}\n"[..], "start the newer version"),
        ] {
            std::fs::write(&path, bytes).expect("room");
            let error = open().err().expect("it is unusable").to_string();
            assert!(error.contains(why) && error.contains(&*path.to_string_lossy()), "{error}");
        }
    }

    #[test]
    fn one_that_never_answers_delays_nobody_and_is_told_what_it_missed() {
        let (status, statuses) = channel();
        let (url, gets) = receiver(statuses);
        let log = EventLog::in_memory();
        let mut sender = WebhookSender::new(&settings(&url, &[]), None, &log).expect("a position");
        sender.agent =
            ureq::Agent::config_builder().timeout_global(Some(Duration::from_millis(100))).build().new_agent();
        record(&log, EventCode::TableCreated, "first");
        status.send((0, "", "")).expect("it listens");
        let why = sender.step(&log).expect("there is something").expect_err("it never answers");
        assert!(why.contains("timeout"), "{why}");
        gets.recv().expect("a request");
        // Others record as before, and the log drops what is too old.
        for number in 0..3 * OPERATOR_EVENTS_PER_FILE {
            record(&log, EventCode::TableCreated, &number.to_string());
        }
        sender.agent = ureq::Agent::config_builder().build().new_agent();
        status.send((200, "", "")).expect("it listens");
        sender.step(&log).expect("there is something").expect("it is taken");
        let (_, body) = gets.recv().expect("a request");
        let left_out = serde_json::from_slice::<Value>(&body).expect("JSON")["left_out"].as_u64();
        assert_eq!(left_out, Some(OPERATOR_EVENTS_PER_FILE as u64 + 1));
        assert_eq!(subjects(&body).len(), WEBHOOK_EVENTS, "a part at a time");
    }

    #[test]
    fn a_sender_that_waits_is_not_waited_for_at_the_end() {
        let (status, statuses) = channel();
        let (url, gets) = receiver(statuses);
        status.send((0, "", "")).expect("it listens");
        let log = Arc::new(EventLog::in_memory());
        let senders = WebhookSenders::start(&[settings(&url, &[])], None, &log).expect("threads");
        record(&log, EventCode::TableCreated, "t");
        gets.recv().expect("a request");
        let begun = std::time::Instant::now();
        drop(senders);
        assert!(begun.elapsed() < WEBHOOK_TIMEOUT, "it still waits for its answer");
    }
}
