//! Metrics for operators that do not scrape: pushed to an endpoint that speaks OTLP over HTTP, with JSON.
//!
//! All are sums since the start or current values, so each push is complete, and nothing is kept for an endpoint that
//! does not answer: after a pause it gets a new reading. A thread of their own makes the pushes, beside the workers.

mod request;
mod sender;

pub(crate) use request::MetricsReading;
pub(crate) use sender::OtlpSender;
