//! The thread that pushes.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use super::request::{MetricsReading, bodies};
use crate::config::{OtlpSettings, origin_of};
use crate::events::{EventCode, EventLog, NewEvent};
use crate::limits::{OTLP_ANSWER_BYTES, OTLP_ANSWER_CHARS, OTLP_BACKOFF, OTLP_BACKOFF_MAX, OTLP_TIMEOUT};
use crate::outgoing::{agent_config, pause_after};

/// Pushes metrics until this is dropped.
#[derive(Debug)]
pub(crate) struct OtlpSender {
    stop: Arc<AtomicBool>,
    thread: std::thread::Thread,
}

impl OtlpSender {
    /// Starts the thread. `resource` has the machine's name and the server's; `read` is called before each push.
    pub(crate) fn start<L>(
        settings: OtlpSettings,
        resource: [String; 2],
        log: &Arc<L>,
        read: impl Fn() -> MetricsReading + Send + 'static,
    ) -> std::io::Result<OtlpSender>
    where
        L: AsRef<EventLog> + Send + Sync + 'static,
    {
        let (stop, log) = (Arc::<AtomicBool>::default(), Arc::clone(log));
        let (stopped, mut push) = (Arc::clone(&stop), OtlpPush::new(settings, resource, OTLP_TIMEOUT));
        let thread = std::thread::Builder::new().name("otlp".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let pause = push.step(L::as_ref(&log), &read);
                // Woken when the server stops.
                std::thread::park_timeout(pause);
            }
        })?;
        // A push that waits for its answer is not waited for.
        Ok(OtlpSender { stop, thread: thread.thread().clone() })
    }
}

impl Drop for OtlpSender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Why a request was not taken.
struct OtlpFailure {
    text: String,
    /// How long the endpoint asks to be left alone.
    pause: Option<Duration>,
}

impl From<String> for OtlpFailure {
    fn from(text: String) -> OtlpFailure {
        OtlpFailure { text, pause: None }
    }
}

/// What an endpoint says of a request that it took.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OtlpAnswer {
    partial_success: Option<PartialSuccess>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    /// As text or as a number: both are JSON forms of 64 bits.
    rejected_data_points: serde_json::Value,
    error_message: String,
}

impl PartialSuccess {
    /// What was left out, if anything was.
    fn text(&self) -> Option<String> {
        let rejected = match &self.rejected_data_points {
            serde_json::Value::String(digits) => digits.parse().unwrap_or(0),
            other => other.as_u64().unwrap_or(0),
        };
        (rejected > 0).then(|| format!("{rejected} points were left out: {}", cut(&self.error_message)))
    }
}

/// The first characters of what an endpoint says. Terminals and the log escape them.
fn cut(text: &str) -> String {
    text.chars().take(OTLP_ANSWER_CHARS).collect()
}

/// The pushes to one endpoint.
struct OtlpPush {
    settings: OtlpSettings,
    resource: [String; 2],
    started: SystemTime,
    agent: ureq::Agent,
    /// Failures since the last push that was taken.
    failures: u32,
    /// Whether the last push was taken in part.
    left_out: bool,
}

impl OtlpPush {
    fn new(settings: OtlpSettings, resource: [String; 2], timeout: Duration) -> OtlpPush {
        let agent = settings.trust.agent(agent_config(timeout).http_status_as_error(false));
        OtlpPush { settings, resource, started: SystemTime::now(), agent, failures: 0, left_out: false }
    }

    /// Pushes a reading. Returns the pause until the next one.
    fn step(&mut self, log: &EventLog, read: &impl Fn() -> MetricsReading) -> Duration {
        let begun = Instant::now();
        match self.push(&read()) {
            Ok(left_out) => {
                if self.failures > 0 {
                    self.note(log, EventCode::OtlpRecovered, "it takes metrics again".to_owned());
                }
                if let (false, Some(text)) = (self.left_out, &left_out) {
                    self.note(log, EventCode::OtlpRejected, text.clone());
                }
                (self.failures, self.left_out) = (0, left_out.is_some());
                self.settings.interval.saturating_sub(begun.elapsed()).max(Duration::from_millis(100))
            }
            Err(OtlpFailure { text, pause }) => {
                if self.failures == 0 {
                    self.note(log, EventCode::OtlpFailing, text);
                }
                self.failures += 1;
                let own = pause_after(self.failures, OTLP_BACKOFF, OTLP_BACKOFF_MAX);
                own.max(pause.unwrap_or_default()).min(OTLP_BACKOFF_MAX)
            }
        }
    }

    /// Sends all of a reading. Returns what the endpoint left out.
    fn push(&self, reading: &MetricsReading) -> Result<Option<String>, OtlpFailure> {
        let mut left_out = None;
        for body in bodies(reading, &self.resource, self.started).map_err(|error| error.to_string())? {
            left_out = left_out.or(self.send(&body)?);
        }
        Ok(left_out)
    }

    fn send(&self, body: &[u8]) -> Result<Option<String>, OtlpFailure> {
        let mut request = self.agent.post(&self.settings.url).header("content-type", "application/json");
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        let mut answer = request.send(body).map_err(|error| error.to_string())?;
        let status = answer.status();
        let seconds = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let mut said = Vec::new();
        // Also so that the connection can be used again.
        let read = answer.body_mut().as_reader().take(OTLP_ANSWER_BYTES).read_to_end(&mut said);
        // A redirect is an answer, too, and takes nothing.
        if !status.is_success() {
            let said = cut(String::from_utf8_lossy(&said).trim());
            let text = format!("http status: {}{}{said}", status.as_u16(), if said.is_empty() { "" } else { ": " });
            return Err(OtlpFailure { text, pause: seconds.map(Duration::from_secs) });
        }
        read.map_err(|error| error.to_string())?;
        // An endpoint may answer with nothing, or in the other encoding.
        let answer: OtlpAnswer = serde_json::from_slice(&said).unwrap_or_default();
        Ok(answer.partial_success.and_then(|part| part.text()))
    }

    fn note(&self, log: &EventLog, code: EventCode, text: String) {
        let url = origin_of(&self.settings.url);
        tracing::warn!(url, "{}: {text}", code.name());
        log.record(NewEvent { subject: Some(url.to_owned()), text, ..NewEvent::of_server(code) });
    }
}

#[cfg(test)]
mod tests;
