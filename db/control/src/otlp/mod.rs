//! Metrics for operators that do not scrape: pushed to an endpoint that speaks OTLP over HTTP, with JSON.
//!
//! All are sums since the start or values of now, so each push says everything, and nothing is kept for an endpoint
//! that does not answer: after a pause it gets a new reading. The pushes are made by a thread of their own, beside the
//! workers.

mod request;
mod sender;

pub(crate) use request::MetricsReading;
pub(crate) use sender::OtlpSender;
