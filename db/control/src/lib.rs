//! The control port: configuration, admin API, events, HTTP listener, the builder's service.
#![forbid(unsafe_code)]

pub mod admin;
pub mod builder_service;
mod checked_json;
pub mod config;
pub mod events;
#[cfg(test)]
mod golden;
pub mod history;
mod hot_keys;
pub mod http_listener;
#[cfg(test)]
mod http_receiver;
pub mod isolation;
mod json_lines;
pub mod limits;
mod otlp;
mod outgoing;
mod record_sample;
mod slot_loads;
pub mod triggers;
mod use_meter;
