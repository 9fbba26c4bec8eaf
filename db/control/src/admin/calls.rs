//! `POST /v1/call/{tenant}/{name}`: calls of extensions for clients that have nothing but HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::ControlState;
use super::answer_connection::AnswerConnection;
use super::body::RawBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::pending_calls::{CallOrder, CallOutcome, CallRefusal, MisdirectedCall};
use crate::limits::{
    CALL_KEY_BYTES, HTTP_CALL_TIMEOUT_MS, HTTP_CALL_TIMEOUT_MS_MAX, HTTP_REPLY_JSON_BYTES, IDEMPOTENCY_KEY_BYTES,
};
use sandstorm_accounts::limits::HTTP_CALLS_PER_S;
use sandstorm_catalog::TenantView;
use sandstorm_metrics::cause_name;
use sandstorm_net::call_key::call_key;
use sandstorm_net::rpc::{CallCost, KillCause, RpcStatus, failure_name};
use sandstorm_schema::{ExtensionSchema, FunctionSchema, SchemaError};
use sandstorm_server::workers::LocalCallResult;
use serde_json::Value;

/// The caller's name for a call, by which a repeat is known.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Milliseconds that the caller waits.
const TIMEOUT_MS: &str = "sandstorm-timeout-ms";
/// What the call is about, such as a user: all calls of a key get the same version while one is tried.
const CALL_KEY: &str = "sandstorm-key";
/// In a response: the number of the server's start. In the repeat of a request: that of an answer from before it, so
/// that a call which may have run at an earlier start of the server is not run again.
const START: HeaderName = HeaderName::from_static("sandstorm-start");
/// The type of a body that is bytes, whatever the function.
const BYTES: &str = "application/octet-stream";
/// In a response: the version that ran.
const VERSION: HeaderName = HeaderName::from_static("sandstorm-version");
/// In a response: the answer is that of an earlier request with the same key.
const REPEATED: HeaderName = HeaderName::from_static("sandstorm-repeated");
/// In a response: what the call cost, if that was asked for.
const COST: HeaderName = HeaderName::from_static("sandstorm-cost");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallQuery {
    /// The version to call; 0: the newest.
    #[serde(default)]
    version: u64,
    /// Whether the response tells what the call cost.
    #[serde(default)]
    cost: bool,
}

/// Why a call has no reply.
#[derive(Debug, Serialize)]
struct CallFailure {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    /// Of a call that was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// Of an error that the extension returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// Of a call whose key another server has: the epoch of the map of slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// The URL of that server's control port.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

pub(super) async fn call(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(path): Path<(String, String)>,
    Query(query): Query<CallQuery>,
    headers: HeaderMap,
    connection: AnswerConnection,
    RawBody(body): RawBody,
) -> Response {
    let called = call_extension(&control, &caller, path, &query, &headers, (body, &connection)).await;
    let mut response = called.unwrap_or_else(IntoResponse::into_response);
    if let Ok(start) = HeaderValue::from_str(control.pending_calls.start()) {
        response.headers_mut().insert(START, start);
    }
    response
}

async fn call_extension(
    control: &ControlState,
    caller: &RequestCaller,
    (tenant, name): (String, String),
    query: &CallQuery,
    headers: &HeaderMap,
    (body, connection): (Bytes, &AnswerConnection),
) -> Result<Response, ApiError> {
    let view = caller.reach(control, &tenant)?;
    let (key, timeout, subject) = (idempotency_key(headers)?, timeout(headers)?, call_subject(headers)?);
    let Some(workers) = &control.calls else { return Err(ApiError::busy("there are no workers")) };
    if !view.tenant.usage.admit_http_call(control.uptime_ns()) {
        let message = format!("tenant {tenant:?} calls too often: {HTTP_CALLS_PER_S} calls a second over HTTP at most");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message)
            .hint("wait a moment, or call over another protocol; it was not run"));
    }
    let (extension, function) = match name.split_once('.') {
        Some((extension, function)) => (extension.to_owned(), Some(function)),
        None => (name.clone(), None),
    };
    let typed = typed_function(&view, (&extension, query.version), function, headers)?;
    let args = match &typed {
        Some(typed) => typed.arguments(&body)?,
        None => body.into(),
    };
    let tenant = (view.tenant.id, view.tenant.home_worker);
    let sent_to = headers.get(START).map(|start| String::from_utf8_lossy(start.as_bytes()).into_owned());
    let (version, about) = (query.version, subject.map(call_key));
    let order = CallOrder { tenant, extension, version, args, key, sent_to, about };
    let elsewhere = || MisdirectedCall::of(control.directory.slots()?, subject?);
    let (is_repeat, mut pending) = match control.pending_calls.begin(workers, order, elsewhere) {
        Ok(begun) => begun,
        Err(refusal) => return Ok(refused(refusal)),
    };
    let outcome = tokio::time::timeout(timeout, pending.wait_for(Option::is_some)).await;
    let outcome = match outcome {
        Ok(Ok(outcome)) => outcome.clone(),
        Ok(Err(_)) => None,
        Err(_elapsed) => return Ok(not_in_time(timeout)),
    };
    let mut response = match outcome.as_deref() {
        Some(CallOutcome::Ended(result)) => {
            if let Some(ended) = result.ended.as_ref().filter(|_| !is_repeat) {
                connection.count_sending(Arc::clone(&view), ended.clone());
            }
            answer(result, typed.as_ref(), query.cost)
        }
        Some(CallOutcome::NotDurable) => uncertain(
            "not_durable",
            "it was run, but its disk has failed or takes too long: a crash may take it back",
            "read before you write again",
        ),
        Some(CallOutcome::NotKept) => uncertain(
            "not_kept",
            "an earlier request with this idempotency key has run; there was no room to keep its answer",
            "read what it did; ask for less in one call, or send fewer calls with keys and long answers in ten minutes",
        ),
        Some(CallOutcome::Unknown) | None => {
            uncertain("stopped", "the server is stopping: the call may have run or not", "read before you write again")
        }
    };
    if is_repeat {
        response.headers_mut().insert(REPEATED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// A typed function that is called with JSON.
struct TypedFunction {
    schema: Arc<ExtensionSchema>,
    function: FunctionSchema,
}

/// The function that a call names, if it is a typed one and the body is not its bytes.
fn typed_function(
    view: &TenantView,
    (extension, version): (&str, u64),
    function: Option<&str>,
    headers: &HeaderMap,
) -> Result<Option<TypedFunction>, ApiError> {
    let is_bytes = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == BYTES);
    if is_bytes && function.is_none() {
        return Ok(None);
    }
    let called = match version {
        0 => view.extension(extension),
        version => view.callable_version(extension, version).ok(),
    };
    // The worker refuses the call of an extension that is not there.
    let Some(called) = called else { return Ok(None) };
    let no_function = |why: String| {
        ApiError::new(StatusCode::NOT_FOUND, "unknown_function", why).hint("the extension's `schema` has its functions")
    };
    // Of what runs, not of what was pushed here: an extension of the catalogue has its types, too.
    let Some(schema) = called.library.schema().cloned() else {
        return match function {
            Some(_) => Err(no_function(format!("extension {extension:?} has no typed functions"))),
            None => Ok(None),
        };
    };
    match schema.find_function(function).cloned() {
        Ok(_) if is_bytes => Ok(None),
        Ok(function) => Ok(Some(TypedFunction { schema, function })),
        Err(error) => Err(no_function(error.to_string())),
    }
}

impl TypedFunction {
    fn arguments(&self, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let json = if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(body) };
        let json = json.map_err(|error| ApiError::invalid(format!("the arguments are no JSON: {error}")))?;
        let encoded = self.schema.encode_call(&self.function, &json);
        encoded.map_err(|error| {
            ApiError::invalid(error.to_string()).hint("the extension's `schema` has the types; it was not run")
        })
    }

    fn reply(&self, bytes: &[u8]) -> Result<Value, SchemaError> {
        self.schema.decode_reply_within(&self.function, bytes, HTTP_REPLY_JSON_BYTES)
    }
}

/// The key by which repeats of a call are known, if its client gives one.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=IDEMPOTENCY_KEY_BYTES).contains(&key.len()));
    let wrong = || {
        ApiError::invalid(format!(
            "the header {IDEMPOTENCY_KEY} is not 1 to {IDEMPOTENCY_KEY_BYTES} visible ASCII characters"
        ))
        .hint("give each call a UUID, and its repeats the same")
    };
    key.map(|key| Some(key.to_owned())).ok_or_else(wrong)
}

/// What the call is about, if its client says so.
fn call_subject(headers: &HeaderMap) -> Result<Option<&[u8]>, ApiError> {
    let Some(value) = headers.get(CALL_KEY) else { return Ok(None) };
    if !(1..=CALL_KEY_BYTES).contains(&value.len()) {
        return Err(ApiError::invalid(format!("the header {CALL_KEY} is not 1 to {CALL_KEY_BYTES} bytes")));
    }
    Ok(Some(value.as_bytes()))
}

/// How long the client waits.
fn timeout(headers: &HeaderMap) -> Result<Duration, ApiError> {
    let Some(value) = headers.get(TIMEOUT_MS) else { return Ok(Duration::from_millis(HTTP_CALL_TIMEOUT_MS)) };
    let ms = value.to_str().ok().and_then(|text| text.parse().ok());
    let ms = ms.filter(|ms| (1..=HTTP_CALL_TIMEOUT_MS_MAX).contains(ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| ApiError::invalid(format!("the header {TIMEOUT_MS} is not 1 to {HTTP_CALL_TIMEOUT_MS_MAX}")))
}

/// The response to a call that did not begin.
fn refused(refusal: CallRefusal) -> Response {
    let error = match refusal {
        CallRefusal::Elsewhere(elsewhere) => return wrong_server(elsewhere),
        CallRefusal::Crowded => {
            ApiError::busy("as many calls over HTTP are under way as there may be, or the tenant's share of them")
        }
        CallRefusal::KeysFull => ApiError::busy("there is no room to remember another idempotency key")
            .hint("it was not run; try again later"),
        CallRefusal::KeyReused => {
            let message = "the idempotency key was used for another call: extension, version or arguments differ";
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", message)
                .hint("give each call a key of its own")
        }
        CallRefusal::OtherStart => {
            let message = "the server has started since the call was sent first: that one may have run or not";
            ApiError::new(StatusCode::CONFLICT, "stale", message).hint("read before you write again")
        }
    };
    error.into_response()
}

/// The response to a call whose key another server of the cluster has.
fn wrong_server(MisdirectedCall { epoch, slot, server }: MisdirectedCall) -> Response {
    let (status, message, hint) = match &server {
        // Not the status that HTTP has for it, 421: what has `fetch` sends such a request again to the same server.
        Some(server) => (
            StatusCode::CONFLICT,
            format!("another server of the cluster, {server}, owns slot {slot} of the call's key"),
            "send it to `server`, with the same idempotency key; it was not run",
        ),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("slot {slot} of the call's key is changing its server, or no server owns it"),
            "try again in a moment; it was not run",
        ),
    };
    let about = CallFailure::new("wrong_server", message, Some(hint));
    failure(status, CallFailure { epoch: Some(epoch), server, ..about })
}

fn not_in_time(timeout: Duration) -> Response {
    let message = format!("the call has not ended after {} ms; it goes on", timeout.as_millis());
    let hint = "repeat it with the same idempotency key to get its answer; without one it may run twice";
    failure(StatusCode::GATEWAY_TIMEOUT, CallFailure::new("timeout", message, Some(hint)))
}

fn uncertain(code: &'static str, message: &str, hint: &'static str) -> Response {
    failure(StatusCode::INTERNAL_SERVER_ERROR, CallFailure::new(code, message.to_owned(), Some(hint)))
}

impl CallFailure {
    fn new(code: &'static str, message: String, hint: Option<&'static str>) -> CallFailure {
        CallFailure { code, message, hint, cause: None, kind: None, epoch: None, server: None }
    }
}

fn failure(status: StatusCode, failure: CallFailure) -> Response {
    (status, axum::Json(failure)).into_response()
}

/// The response to a call that ended, or was refused by its worker.
fn answer(result: &LocalCallResult, typed: Option<&TypedFunction>, with_cost: bool) -> Response {
    let mut response = match result.status {
        RpcStatus::Ok if typed.is_some() => match typed.map(|typed| typed.reply(&result.value)) {
            Some(Ok(reply)) => ([(VERSION, HeaderValue::from(result.number))], axum::Json(reply)).into_response(),
            Some(Err(error)) => uncertain(
                "reply",
                &error.to_string(),
                "it has run; ask for less at once, or read the extension's types again",
            ),
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
        RpcStatus::Ok => {
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static(BYTES));
            ([kind, (VERSION, HeaderValue::from(result.number))], result.value.clone()).into_response()
        }
        _ => failed(result),
    };
    if let Some(cost) = result.cost.filter(|_| with_cost)
        && let Ok(value) = HeaderValue::from_str(&cost_text(&cost))
    {
        response.headers_mut().insert(COST, value);
    }
    response
}

/// A call's cost as a header's list of fields.
fn cost_text(cost: &CallCost) -> String {
    let CallCost { cpu_ns, wall_ns, first_turn_ns, turns, switches, reads, read_bytes, commit_tries } = *cost;
    format!(
        "cpu_ns={cpu_ns}, wall_ns={wall_ns}, first_turn_ns={first_turn_ns}, turns={turns}, switches={switches}, \
         reads={reads}, read_bytes={read_bytes}, commit_tries={commit_tries}"
    )
}

/// The response to a call without a reply: each status has its code.
fn failed(result: &LocalCallResult) -> Response {
    let text = String::from_utf8_lossy(&result.value).into_owned();
    let (status, code) = match result.status {
        RpcStatus::Conflict => (StatusCode::CONFLICT, "conflict"),
        RpcStatus::UnknownTenant => (StatusCode::NOT_FOUND, "unknown_tenant"),
        RpcStatus::UnknownExtension => (StatusCode::NOT_FOUND, "unknown_extension"),
        RpcStatus::OverQuota => (StatusCode::TOO_MANY_REQUESTS, "over_quota"),
        RpcStatus::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
        RpcStatus::Suspended => (StatusCode::FORBIDDEN, "suspended"),
        RpcStatus::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
        RpcStatus::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        RpcStatus::Killed => return killed(result, &text),
        RpcStatus::Failed => return failed_by_itself(result, text),
        // No call is answered so.
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    let text = if result.status == RpcStatus::Conflict && text.is_empty() {
        "its transaction met the writes of others each time that it was tried".to_owned()
    } else {
        text
    };
    failure(status, CallFailure::new(code, text, None))
}

fn killed(result: &LocalCallResult, text: &str) -> Response {
    let cause = u8::try_from(result.number).ok().and_then(KillCause::from_byte).map(cause_name);
    let message = format!("the call was killed ({}): {text}", cause.unwrap_or("unknown"));
    let hint = Some("what it wrote outside of a transaction stays; `sandstorm kills` shows the latest");
    failure(StatusCode::INTERNAL_SERVER_ERROR, CallFailure { cause, ..CallFailure::new("killed", message, hint) })
}

/// The response for an error that the extension returned.
fn failed_by_itself(result: &LocalCallResult, text: String) -> Response {
    let (status, kind) = failure_kind(result.number);
    failure(status, CallFailure { kind: Some(kind), ..CallFailure::new("failed", text, None) })
}

/// The status and the name of the kind of an error that an extension returned: the same name as in all protocols.
fn failure_kind(number: u64) -> (StatusCode, &'static str) {
    let status = match number {
        1 | 3 => StatusCode::NOT_FOUND,
        2 => StatusCode::CONFLICT,
        4 => StatusCode::INSUFFICIENT_STORAGE,
        5 => StatusCode::PAYLOAD_TOO_LARGE,
        8 => StatusCode::BAD_REQUEST,
        9 => StatusCode::FORBIDDEN,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, failure_name(number).unwrap_or("other"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_have_the_names_that_other_protocols_give_them() {
        for (number, status, kind) in [
            (1, 404, "not_found"),
            (8, 400, "invalid"),
            (10, 422, "contended"),
            (13, 422, "callee_killed"),
            (17, 422, "not_backed"),
            (77, 422, "other"),
        ] {
            let (found, name) = failure_kind(number);
            assert_eq!((found.as_u16(), name), (status, kind));
        }
    }
}
