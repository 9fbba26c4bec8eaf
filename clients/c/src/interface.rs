//! The functions that other languages call.
//!
//! Guarantees: what the caller passes is read during the call alone; a client is freed once, by `sandstorm_close`, when
//! its thread has ended; `done` is called once for each token, with bytes that live until it returns.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use sandstorm_client::control::Trust;
use sandstorm_client::{Client, OpenOptions};
use serde::Deserialize;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::answer::{AnswerBytes, Failure};
use crate::request;

/// Takes an answer: the token of what is answered, and its bytes.
pub type SandstormDone = extern "C" fn(token: u64, answer: *const u8, len: usize);

/// What a client is opened with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientOptions {
    server: String,
    tenant: String,
    token: String,
    fingerprint: Option<String>,
    ca: Option<String>,
    timeout_ms: Option<u64>,
    sealing: Option<String>,
}

impl ClientOptions {
    fn parse(json: &[u8]) -> Result<OpenOptions, Failure> {
        let wrong = |why: String| Failure::new("options", why);
        let given: ClientOptions = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        let mut options = OpenOptions::new(&given.server, &given.tenant, &given.token);
        if let Some(fingerprint) = given.fingerprint {
            options.trust =
                Trust::pin(&fingerprint).ok_or_else(|| wrong("a fingerprint is sha256: and 64 digits".to_owned()))?;
        } else if let Some(ca) = given.ca {
            options.trust = Trust::in_file(ca.as_ref()).map_err(|error| wrong(error.to_string()))?;
        }
        if let Some(timeout_ms) = given.timeout_ms {
            options.deadline = Duration::from_millis(timeout_ms);
        }
        if let Some(sealing) = given.sealing {
            options.sealing = sealing.parse().map_err(wrong)?;
        }
        Ok(options)
    }
}

/// A client, with the thread that it lives on.
pub struct ForeignClient {
    done: SandstormDone,
    runtime: Handle,
    client: Arc<OnceLock<Client>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is to be answered once; what is dropped unanswered is answered as closed.
struct UnansweredRequest {
    done: SandstormDone,
    token: u64,
    is_answered: bool,
}

impl UnansweredRequest {
    fn answer(mut self, answer: &[u8]) {
        self.is_answered = true;
        (self.done)(self.token, answer.as_ptr(), answer.len());
    }
}

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            let answer =
                Failure::new("closed", "the client was closed before the answer came: it may have run").encode();
            (self.done)(self.token, answer.as_ptr(), answer.len());
        }
    }
}

impl ForeignClient {
    fn start(options: Vec<u8>, done: SandstormDone, token: u64) -> Option<ForeignClient> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().ok()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (handle, client) = (runtime.handle().clone(), Arc::new(OnceLock::new()));
        let opened = Arc::clone(&client);
        let opening = async move {
            let pending = UnansweredRequest { done, token, is_answered: false };
            let client = match ClientOptions::parse(&options) {
                Ok(options) => Client::open_with(options).await.map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            match client {
                Ok(client) => {
                    let _once = opened.set(client);
                    pending.answer(&AnswerBytes::result().done());
                }
                Err(failure) => pending.answer(&failure.encode()),
            }
        };
        let serve = move || {
            runtime.spawn(opening);
            // It ends when the sender is used or dropped.
            let _ended = runtime.block_on(stopped);
            // Here tasks that are under way are dropped, which answers them.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("sandstorm-client".into()).spawn(serve).ok()?;
        Some(ForeignClient { done, runtime: handle, client, stop: Some(stop), thread: Some(thread) })
    }

    fn submit(&self, request: Vec<u8>, token: u64) {
        let pending = UnansweredRequest { done: self.done, token, is_answered: false };
        let Some(client) = self.client.get().cloned() else {
            return pending.answer(&Failure::new("closed", "the client is not open").encode());
        };
        self.runtime.spawn(async move {
            let answer = request::answer(&client, &request).await;
            pending.answer(&answer);
        });
    }
}

impl Drop for ForeignClient {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _panicked = thread.join();
        }
    }
}

/// The bytes that a caller passes.
///
/// # Safety
/// `bytes` points to `len` bytes that are not written during the call, or `len` is 0.
unsafe fn given(bytes: *const u8, len: usize) -> Vec<u8> {
    if len == 0 || bytes.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec()
}

/// The version of this interface.
// SAFETY: no other function of the process has this name: it is this crate's own.
#[unsafe(no_mangle)]
pub extern "C" fn sandstorm_interface() -> u32 {
    1
}

/// Starts a client; `done` is told with `token` whether it is open. Returns null if no thread can be started.
///
/// # Safety
/// `options` points to `len` bytes of JSON. `done` may be called from another thread, until `sandstorm_close` returns.
// SAFETY: as for `sandstorm_interface`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sandstorm_open(
    options: *const u8,
    len: usize,
    done: SandstormDone,
    token: u64,
) -> *mut ForeignClient {
    // SAFETY: the caller's promise.
    let options = unsafe { given(options, len) };
    ForeignClient::start(options, done, token).map_or(ptr::null_mut(), |client| Box::into_raw(Box::new(client)))
}

/// Begins a request; `done` is told its answer with `token`.
///
/// # Safety
/// `client` is of `sandstorm_open` and was not closed; `request` points to `len` bytes.
// SAFETY: as for `sandstorm_interface`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sandstorm_submit(client: *const ForeignClient, request: *const u8, len: usize, token: u64) {
    // SAFETY: the caller's promise. The client is only shared: its fields are for any thread.
    unsafe { (*client).submit(given(request, len), token) }
}

/// Closes a client: answers what is under way, and frees it.
///
/// # Safety
/// `client` is of `sandstorm_open`, was not closed, and no other call uses it; not called from within `done`.
// SAFETY: as for `sandstorm_interface`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sandstorm_close(client: *mut ForeignClient) {
    if !client.is_null() {
        // SAFETY: the caller's promise: it came from `Box::into_raw`, and is used no more.
        drop(unsafe { Box::from_raw(client) });
    }
}
