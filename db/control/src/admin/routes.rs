//! The routes: permissions, requests, responses.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use serde::Deserialize;

use super::access::{AccessCheck, RouteAccess, check_access};
use super::backing::check_backing_caller;
use super::body::{JsonBody, RawBody};
use super::build_turn::wait_for_build_permit;
use super::caller::{PushCaller, RequestCaller, guard};
use super::error::ApiError;
use super::event_scribe::{EventNote, PushSource, record_change, record_push};
use super::extension_lookup::find_extension;
use super::page::PortHasTls;
use super::persistence_status::persistence_status;
use super::push_counts::PushResult;
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse, off_thread};
use super::revocations::{confirm_everywhere, why_not_everywhere};
use super::types::{
    ChangeTableRequest, ChangeTenantRequest, CreateTableRequest, CreateTenantRequest, CreateTenantResponse,
    ExtensionResponse, HealthResponse, PushRequest, PushResponse, StatResponse, TableResponse, TenantResponse,
};
use super::{
    ControlState, MAX_ARTIFACT_BYTES, MAX_BODY_BYTES, MAX_PUSH_BYTES, backing, big, calls, calls_under_way, catalogue,
    changes, cluster, cluster_balance, cluster_commands, cluster_copies, cluster_split, copy_streams, deployments,
    events, extension_limits, findings, grants, heat, history, host_header, hot, latency, logs, overview,
    overview_page, page, profile, prometheus, push, rebuild, recheck, records, scrub, secrets, slow, stat,
    token_rotation, tokens, top, trigger_calls, triggers, versions,
};
use crate::http_listener::HttpPeer;
use crate::limits::HTTP_CALL_BODY_BYTES;
use sandstorm_accounts::TokenHash;
use sandstorm_builder::limits::MODULE_BYTES;
use sandstorm_catalog::{
    DirectoryError, ExpiryWatcher, NewTable, NewTenant, TableAlteration, TenantChange, TenantView,
};
use sandstorm_server::workers::ListenerConfig;

/// The routes, with the address of each sender. A port without TLS answers only to names of its own.
pub(super) fn service(control: Arc<ControlState>, plain: bool) -> IntoMakeServiceWithConnectInfo<Router, HttpPeer> {
    let guard = middleware::from_fn_with_state(control.clone(), guard);
    let router = router(control).layer(Extension(PortHasTls(!plain))).layer(guard);
    let router = if plain { router.layer(middleware::from_fn(host_header::reject_foreign_host)) } else { router };
    router.into_make_service_with_connect_info()
}

/// A route: its method, its path, its permitted callers, and what answers.
pub(super) struct ControlRoute {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) access: RouteAccess,
    handler: fn() -> MethodRouter<Arc<ControlState>>,
}

/// Declares the routes: method, path, permitted callers, handler, and the bytes of its body if these may be many.
macro_rules! routes {
    ($( $method:ident $path:literal $access:ident $handler:path $(, $body:expr)?; )*) => {
        &[$( ControlRoute {
            method: stringify!($method),
            path: $path,
            access: RouteAccess::$access,
            handler: || on(MethodFilter::$method, $handler)$(.layer(DefaultBodyLimit::max($body)))?,
        } ),*]
    };
}

/// All routes. None can be without a rule.
pub(super) const ROUTES: &[ControlRoute] = routes! {
    GET "/v1/health" Anyone health;
    GET "/v1/stat" Either show_stat;
    GET "/v1/top" Either top::show;
    GET "/v1/latency" Either latency::show;
    GET "/v1/history" Either history::show;
    GET "/v1/slow" Either slow::list;
    PUT "/v1/slow" Operator slow::change;
    GET "/v1/slow/{id}" Either slow::explain;
    GET "/v1/workers" Viewer show_workers;
    GET "/metrics" Viewer prometheus::show;
    GET "/v1/overview" Either overview_page::show;
    GET "/v1/findings" Viewer findings::show;
    GET "/v1/caller" Either page::show_caller;
    POST "/v1/page/codes" Either page::make_code;
    GET "/ui" Anyone page::show;
    GET "/ui/refused" Anyone page::refused;
    GET "/ui/page.css" Anyone page::style;
    GET "/ui/icon.svg" Anyone page::icon;
    GET "/ui/page.js" Anyone page::script;
    POST "/ui/session" Anyone page::sign_in;
    POST "/ui/sign-out" Anyone page::sign_out;
    GET "/v1/rebuilds/{id}" Operator rebuild::show;
    POST "/v1/recheck" Operator recheck::recheck;
    GET "/v1/scrub" Viewer scrub::show;
    POST "/v1/scrub" Operator scrub::begin;
    GET "/v1/cluster" Viewer cluster::show;
    POST "/v1/cluster/moves" Operator cluster::begin_moves;
    POST "/v1/cluster/moves/cancel" Operator cluster::cancel_moves;
    POST "/v1/cluster/drain" Operator cluster::drain;
    POST "/v1/cluster/add" Operator cluster::add;
    POST "/v1/cluster/balance" Operator cluster_balance::balance;
    POST "/v1/cluster/split" Operator cluster_split::split;
    GET "/v1/cluster/load" Anyone cluster_balance::load;
    POST "/v1/cluster/remove" Operator cluster::remove;
    POST "/v1/cluster/fail-over" Operator cluster_copies::fail_over;
    GET "/v1/cluster/life" Anyone cluster_copies::life;
    POST "/v1/cluster/copy" Anyone cluster::copy;
    POST "/v1/cluster/commands" Anyone cluster_commands::run, cluster_commands::REQUEST_BYTES;
    POST "/v1/cluster/trigger-calls" Anyone trigger_calls::run, trigger_calls::REQUEST_BYTES;
    POST "/v1/cluster/replica" Anyone cluster_copies::replica, cluster_copies::QUESTION_BYTES;
    POST "/v1/cluster/copy-stream" Anyone copy_streams::begin;
    GET "/v1/denied" Operator recheck::list;
    DELETE "/v1/denied/{pattern}" Operator recheck::end;
    GET "/v1/events" Either events::list;
    GET "/v1/catalogue" Either catalogue::list;
    POST "/v1/catalogue/enable" Operator catalogue::enable_for_many;
    GET "/v1/extensions" Either overview::extensions;
    GET "/v1/kills" Either overview::all_kills;
    GET "/v1/hot" Either hot::everywhere;
    POST "/v1/shutdown" Operator shutdown;
    GET "/v1/operator" Operator token_rotation::show_operator;
    POST "/v1/operator/rotate" Operator token_rotation::rotate_operator;
    DELETE "/v1/operator/old-token" Operator token_rotation::revoke_old_operator;
    GET "/v1/tokens" Operator tokens::list;
    POST "/v1/tokens" Operator tokens::create;
    DELETE "/v1/tokens/{name}" Operator tokens::revoke;
    POST "/v1/call/{tenant}/{name}" Tenant calls::call, HTTP_CALL_BODY_BYTES;
    GET "/v1/tenants" Either list_tenants;
    POST "/v1/tenants" Operator create_tenant;
    GET "/v1/tenants/{tenant}" TenantViewer show_tenant;
    PATCH "/v1/tenants/{tenant}" Operator change_tenant;
    DELETE "/v1/tenants/{tenant}" Operator delete_tenant;
    POST "/v1/tenants/{tenant}/rotate" Tenant token_rotation::rotate_token;
    DELETE "/v1/tenants/{tenant}/old-token" Tenant token_rotation::revoke_old_token;
    GET "/v1/tenants/{tenant}/tokens" Tenant tokens::list_of_tenant;
    POST "/v1/tenants/{tenant}/tokens" Tenant tokens::create_of_tenant;
    DELETE "/v1/tenants/{tenant}/tokens/{name}" Tenant tokens::revoke_of_tenant;
    GET "/v1/tenants/{tenant}/kills" TenantViewer overview::tenant_kills;
    GET "/v1/tenants/{tenant}/calls" TenantViewer calls_under_way::show;
    GET "/v1/tenants/{tenant}/logs" OwnViewer logs::read;
    GET "/v1/tenants/{tenant}/tables" TenantViewer list_tables;
    POST "/v1/tenants/{tenant}/tables" Tenant create_table;
    GET "/v1/tenants/{tenant}/tables/{name}" TenantViewer show_table;
    PATCH "/v1/tenants/{tenant}/tables/{name}" Tenant change_table;
    DELETE "/v1/tenants/{tenant}/tables/{name}" Tenant drop_table;
    POST "/v1/tenants/{tenant}/tables/{name}/flush" Tenant backing::flush;
    GET "/v1/tenants/{tenant}/tables/{name}/hot" Tenant hot::show;
    GET "/v1/tenants/{tenant}/tables/{name}/heat" TenantViewer heat::show;
    GET "/v1/tenants/{tenant}/tables/{name}/big" Tenant big::show;
    GET "/v1/tenants/{tenant}/tables/{name}/records" Tenant records::page;
    GET "/v1/tenants/{tenant}/tables/{name}/changes" Tenant changes::page;
    GET "/v1/tenants/{tenant}/grants" TenantViewer grants::list;
    POST "/v1/tenants/{tenant}/grants" Tenant grants::create;
    DELETE "/v1/tenants/{tenant}/grants/given/{table}/{to}" Tenant grants::revoke;
    DELETE "/v1/tenants/{tenant}/grants/received/{owner}/{table}" Tenant grants::give_up;
    GET "/v1/tenants/{tenant}/secrets" Tenant secrets::list;
    PUT "/v1/tenants/{tenant}/secrets/{name}" Tenant secrets::set;
    DELETE "/v1/tenants/{tenant}/secrets/{name}" Tenant secrets::remove;
    GET "/v1/tenants/{tenant}/triggers" Tenant triggers::list;
    POST "/v1/tenants/{tenant}/triggers" Tenant triggers::create;
    GET "/v1/tenants/{tenant}/triggers/{name}" Tenant triggers::show;
    PATCH "/v1/tenants/{tenant}/triggers/{name}" Tenant triggers::set;
    DELETE "/v1/tenants/{tenant}/triggers/{name}" Tenant triggers::remove;
    POST "/v1/tenants/{tenant}/triggers/{name}/pause" Tenant triggers::pause;
    POST "/v1/tenants/{tenant}/triggers/{name}/resume" Tenant triggers::resume;
    POST "/v1/tenants/{tenant}/triggers/{name}/replay" Tenant triggers::replay;
    GET "/v1/tenants/{tenant}/triggers/{name}/dead-letters" Tenant triggers::dead_letters;
    DELETE "/v1/tenants/{tenant}/triggers/{name}/dead-letters" Tenant triggers::discard_letters;
    GET "/v1/tenants/{tenant}/extensions" TenantViewer list_extensions;
    PUT "/v1/tenants/{tenant}/extensions/{name}" Tenant push_extension, MAX_PUSH_BYTES;
    GET "/v1/tenants/{tenant}/extensions/{name}" TenantViewer show_extension;
    DELETE "/v1/tenants/{tenant}/extensions/{name}" Tenant unload_extension;
    PUT "/v1/tenants/{tenant}/extensions/{name}/module" Tenant push_module, MODULE_BYTES;
    PUT "/v1/tenants/{tenant}/extensions/{name}/artifact" Tenant upload_artifact, MAX_ARTIFACT_BYTES;
    POST "/v1/tenants/{tenant}/extensions/{name}/rollback" Tenant versions::roll_back;
    PUT "/v1/tenants/{tenant}/extensions/{name}/deployment" Tenant deployments::deploy;
    PUT "/v1/tenants/{tenant}/extensions/{name}/share" Tenant catalogue::share;
    DELETE "/v1/tenants/{tenant}/extensions/{name}/share" Tenant catalogue::unshare;
    PUT "/v1/tenants/{tenant}/extensions/{name}/enabled" Tenant catalogue::enable;
    DELETE "/v1/tenants/{tenant}/extensions/{name}/enabled" Tenant catalogue::disable;
    POST "/v1/tenants/{tenant}/extensions/{name}/suspend" Tenant extension_limits::suspend_extension;
    POST "/v1/tenants/{tenant}/extensions/{name}/resume" Tenant extension_limits::resume_extension;
    PUT "/v1/tenants/{tenant}/extensions/{name}/budget" Operator extension_limits::change_budget;
    GET "/v1/tenants/{tenant}/extensions/{name}/profile" TenantViewer profile::show;
};

fn router(control: Arc<ControlState>) -> Router {
    let mut router = Router::new();
    for ControlRoute { method, path, access, handler } in ROUTES {
        let check = AccessCheck { control: control.clone(), access: *access, route: (method, path) };
        // A method that a route does not have is refused before its rule is asked.
        let checked = handler().route_layer(middleware::from_fn_with_state(check, check_access));
        router = router.route(path, checked);
    }
    router
        .fallback(|| async { ApiError::not_found("there is no such route").hint("all routes start with /v1/") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", "this route does not take that method")
                .hint("the header `allow` names those that it takes")
        })
        .layer(middleware::from_fn_with_state(control.clone(), record_change))
        .layer(middleware::from_fn_with_state(control.clone(), confirm_everywhere))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(control)
}

// ---- tenants ----

async fn list_tenants(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
) -> ApiResult<Vec<TenantResponse>> {
    Ok(axum::Json(caller.views(&control, None)?.iter().map(|view| TenantResponse::of(view)).collect()))
}

async fn create_tenant(
    State(control): State<Arc<ControlState>>,
    JsonBody(new): JsonBody<CreateTenantRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let CreateTenantRequest { name, id, open, token, home_worker, code, quotas } = new;
    if let Some(token) = &token {
        let is_made = TokenHash::of_presented(token.as_bytes()).is_some_and(|presented| {
            control.operator.shown(&presented).is_some() || control.access_tokens.shown(&presented).is_some()
        });
        if is_made || control.directory.snapshot().by_token(token.as_bytes()).is_some() {
            return Err(ApiError::invalid("the token is another's already").hint("leave it out: one is made"));
        }
    }
    let (view, token) = control.directory.create_tenant(NewTenant {
        name,
        id,
        open,
        token,
        quotas,
        home_worker,
        code,
        ..NewTenant::default()
    })?;
    let note = EventNote { tenant: Some(view.tenant.name.clone()), ..EventNote::default() };
    let created = CreateTenantResponse { tenant: TenantResponse::of(&view), token };
    Ok((StatusCode::CREATED, Extension(note), axum::Json(created)))
}

async fn show_tenant(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<TenantResponse> {
    Ok(axum::Json(TenantResponse::of(&*caller.reach(&control, &tenant)?)))
}

async fn change_tenant(
    State(control): State<Arc<ControlState>>,
    Path(tenant): Path<String>,
    JsonBody(change): JsonBody<ChangeTenantRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let note = EventNote { text: change.summary(), ..EventNote::default() };
    let ChangeTenantRequest { open, home_worker, home_fixed, code, quotas } = change;
    let change = TenantChange { open, home_worker, home_fixed, code, quotas };
    let rebuild = rebuild::change_tenant(&control, &tenant, &change)?;
    let takes_rights = change.open == Some(false) || change.code.is_some();
    let not_everywhere = if takes_rights { why_not_everywhere(&control).await } else { None };
    let found = TenantResponse::of(control.directory.snapshot().find(&tenant)?);
    let changed = TenantResponse { rebuild, not_everywhere, ..found };
    Ok((Extension(note), axum::Json(changed)))
}

async fn delete_tenant(
    State(control): State<Arc<ControlState>>,
    Path(tenant): Path<String>,
) -> ApiResult<EmptyResponse> {
    let id = control.directory.snapshot().find(tenant.as_str())?.tenant.id;
    let view = control.access_tokens.delete_with_tenant(id, || {
        // By its id: another one may have got its name meanwhile.
        control.directory.delete_tenant(id).map_err(ApiError::from)
    })?;
    control.page_sessions.end_of_tenant(view.tenant.id);
    control.history.deleted(view.tenant.id);
    control.forget_triggers(view.tenant.id).await;
    control.artifacts.remove_tenant(&view);
    Ok(EMPTY_RESPONSE)
}

// ---- tables ----

async fn list_tables(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<Vec<TableResponse>> {
    let view = caller.reach(&control, &tenant)?;
    let role = caller.role();
    let own = |entry| TableResponse::own(&view, entry, caller.sees_server()).withheld_from(role);
    let own = view.sorted_tables().into_iter().map(|entry| own(entry));
    Ok(axum::Json(
        own.chain(view.sorted_granted().into_iter().filter_map(|grant| TableResponse::granted(grant))).collect(),
    ))
}

async fn create_table(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    JsonBody(new): JsonBody<CreateTableRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let CreateTableRequest { name, id, mode, quota_bytes, ordered, durability, backing } = new;
    check_backing_caller(&caller, backing.is_some())?;
    let new = NewTable { name, id, mode: mode.into(), quota_bytes, ordered, durability, backing };
    let (directory, id) = (Arc::clone(&control.directory), view.tenant.id);
    // A folder may be made, or a log.
    let created = tokio::task::spawn_blocking(move || directory.create_table(id, new)).await;
    let entry = created.map_err(|_| ApiError::internal("the creation of the table had a fault"))??;
    let note = EventNote { subject: Some(entry.name().to_string()), ..EventNote::default() };
    let created = TableResponse::own(&view, &entry, caller.sees_server());
    Ok((StatusCode::CREATED, Extension(note), axum::Json(created)))
}

async fn show_table(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<TableResponse> {
    let view = caller.reach(&control, &tenant)?;
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.clone() };
    let own = |entry| TableResponse::own(&view, entry, caller.sees_server()).withheld_from(caller.role());
    let own = view.table_by_name(&name).map(|entry| own(entry));
    let granted = || view.granted_by_name(&name).and_then(|grant| TableResponse::granted(grant));
    Ok(axum::Json(own.or_else(granted).ok_or_else(unknown)?))
}

/// Changes a table while it is used. The answer comes when it holds, which for another durability than none of a table
/// that was in memory only is when all of its records are on the disk.
async fn change_table(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(change): JsonBody<ChangeTableRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let note = EventNote { text: change.summary(), ..EventNote::default() };
    let (directory, id) = (Arc::clone(&control.directory), view.tenant.id);
    let ChangeTableRequest { name: new_name, mode, quota_bytes, durability, backing, feed_expiry } = change;
    check_backing_caller(&caller, backing.as_ref().is_some_and(|backing| backing.secret.is_some()))?;
    let change = TableAlteration { name: new_name.clone(), mode: mode.map(Into::into), quota_bytes };
    let changed = tokio::task::spawn_blocking(move || -> Result<_, ApiError> {
        let mut entry = directory.change_table(id, &name, &change)?;
        let name = new_name.as_deref().unwrap_or(&name);
        // Write-back needs the log: so the log first, and away from it last.
        let to_none = durability.is_some_and(|durability| durability.is_none());
        if let Some(durability) = durability.filter(|_| !to_none) {
            entry = directory.set_durability(id, name, durability)?;
        }
        if let Some(backing) = backing {
            entry = directory.set_backing(id, name, &backing.alteration())?;
        }
        if let Some(on) = feed_expiry {
            if on && !entry.table.is_logged() {
                return Err(changes::not_logged(name));
            }
            entry = directory.watch_expiry(id, name, ExpiryWatcher::Feed, on)?;
        }
        match durability {
            Some(durability) if to_none => Ok(directory.set_durability(id, name, durability)?),
            _ => Ok(entry),
        }
    })
    .await;
    let entry = changed.map_err(|_| ApiError::internal("the change of the table had a fault"))??;
    let now = control.directory.snapshot().find(view.tenant.id)?.clone();
    let changed = TableResponse::own(&now, &entry, caller.sees_server());
    Ok((Extension(note), axum::Json(changed)))
}

async fn drop_table(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.drop_table(view.tenant.id, &name)?;
    Ok(EMPTY_RESPONSE)
}

// ---- extensions ----

async fn list_extensions(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<Vec<ExtensionResponse>> {
    let view = caller.reach(&control, &tenant)?;
    let show = |extension| control.history.show_in_full(&view, extension);
    Ok(axum::Json(view.sorted_extensions().into_iter().map(|extension| show(extension)).collect()))
}

/// How a push is loaded.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PushQuery {
    /// Keep it beside the version that is called, and call that one on.
    stage: bool,
}

/// Refuses to stage the first version before it is compiled: there is none that could be called meanwhile.
fn check_stage(view: &TenantView, name: &str, stage: bool) -> Result<(), ApiError> {
    if stage && view.extension(name).is_none() {
        let message = format!("there is no extension {name:?} beside which a version could be staged");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_extension", message)
            .hint("push the first version without staging it"));
    }
    Ok(())
}

async fn push_extension(
    State(control): State<Arc<ControlState>>,
    PushCaller(caller, source): PushCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(PushQuery { stage }): Query<PushQuery>,
    JsonBody(pushed): JsonBody<PushRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let reached = caller.reach(&control, &tenant)?;
    check_stage(&reached, &name, stage)?;
    run_queued(control, &reached, (name, source), move |control, view, name| {
        push::push(control, view, (name, stage), (&pushed, source))
    })
    .await
}

async fn push_module(
    State(control): State<Arc<ControlState>>,
    PushCaller(caller, source): PushCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(PushQuery { stage }): Query<PushQuery>,
    RawBody(wasm): RawBody,
) -> Result<impl IntoResponse, ApiError> {
    let reached = caller.reach(&control, &tenant)?;
    check_stage(&reached, &name, stage)?;
    run_queued(control, &reached, (name, source), move |control, view, name| {
        push::push_module(control, view, (name, stage), &wasm)
    })
    .await
}

async fn upload_artifact(
    State(control): State<Arc<ControlState>>,
    PushCaller(caller, source): PushCaller,
    Path((tenant, name)): Path<(String, String)>,
    Query(PushQuery { stage }): Query<PushQuery>,
    RawBody(artifact): RawBody,
) -> Result<impl IntoResponse, ApiError> {
    let reached = caller.reach(&control, &tenant)?;
    check_stage(&reached, &name, stage)?;
    run_queued(control, &reached, (name, source), move |control, view, name| {
        push::upload(control, view, (name, stage), &artifact)
    })
    .await
}

/// Loads an extension in the tenant's turn. A client that disconnects while it waits leaves the queue.
async fn run_queued(
    control: Arc<ControlState>,
    reached: &TenantView,
    (name, source): (String, PushSource),
    load: impl FnOnce(&ControlState, &TenantView, &str) -> Result<PushResponse, ApiError> + Send + 'static,
) -> Result<(StatusCode, axum::Json<PushResponse>), ApiError> {
    let queued = Instant::now();
    let turn = wait_for_build_permit(&control, reached, &name).await;
    let waited = queued.elapsed();
    let turn = turn.inspect_err(|why| record_push(&control, reached, &name, source, Err(why.message())))?;
    // The view of now, not of before the wait: another push of the same extension may have been loaded since.
    let view = control.directory.snapshot().find(reached.tenant.id)?.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        // Kept to the end, even if the client has disconnected.
        let _held = turn;
        let begun = Instant::now();
        let loaded = load(&control, &view, &name);
        control.builds.note(PushResult::of(&loaded), waited, begun.elapsed());
        let result = loaded.as_ref().map(PushResponse::summary).map_err(ApiError::message);
        record_push(&control, &view, &name, source, result);
        loaded
    });
    let pushed = loaded.await.map_err(|_| ApiError::internal("the push ended in a panic"))??;
    Ok((StatusCode::CREATED, axum::Json(pushed)))
}

async fn show_extension(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<ExtensionResponse> {
    let view = caller.reach(&control, &tenant)?;
    Ok(axum::Json(control.history.show_in_full(&view, &*find_extension(&view, &name)?)))
}

async fn unload_extension(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let view = caller.reach(&control, &tenant)?;
    let id = view.tenant.id;
    let kept: Vec<u64> = view.versions.all_of(&name).map(|known| known.version).collect();
    match control.directory.remove_extension(id, &name) {
        Ok(extension) => control.history.unloaded(id, &extension),
        // It could not be loaded again after a restart.
        Err(DirectoryError::UnknownExtension { .. }) if control.directory.forget_extension(id, &name)? => {}
        Err(error) => return Err(error.into()),
    }
    kept.into_iter().for_each(|version| control.artifacts.forget(id, &name, version));
    Ok(EMPTY_RESPONSE)
}

// ---- kills, counters, the server ----

async fn show_stat(State(control): State<Arc<ControlState>>, caller: RequestCaller) -> ApiResult<StatResponse> {
    Ok(axum::Json(match caller.own() {
        None => off_thread(move || stat::server_stats(&control)).await?,
        Some(own) => stat::tenant_stats(own),
    }))
}

async fn show_workers(State(control): State<Arc<ControlState>>) -> impl IntoResponse {
    axum::Json(stat::worker_counters(&control.metrics))
}

/// Answers any caller. The builder's own text, for instance with a folder's name, is for callers with a token.
async fn health(
    State(control): State<Arc<ControlState>>,
    caller: Result<RequestCaller, ApiError>,
) -> axum::Json<HealthResponse> {
    axum::Json(HealthResponse {
        changes: persistence_status(&control.directory, caller.is_ok()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_address: control.data.to_string(),
        workers: u32::try_from(control.metrics.workers()).unwrap_or(u32::MAX),
        uptime_s: control.metrics.uptime_s() as u64,
        warnings: match &caller {
            Ok(caller) if caller.is_operator() => {
                let mut warnings = ListenerConfig::in_want(&control.listen, &control.directory.snapshot());
                warnings.extend(control.directory.slots().map(cluster::warnings).unwrap_or_default());
                warnings
            }
            _ => Vec::new(),
        },
        network: caller.as_ref().map_or_else(|_| String::new(), |_| control.metrics.network()),
        builder: match (&control.artifact_sources.builder, caller) {
            (Ok(builder), Ok(_)) => format!("ok ({})", builder.release()),
            (Err(reason), Ok(_)) => reason.clone(),
            (Ok(_), Err(_)) => "ok".to_owned(),
            (Err(_), Err(_)) => "none".to_owned(),
        },
    })
}

async fn shutdown(State(control): State<Arc<ControlState>>) -> ApiResult<EmptyResponse> {
    (control.stop)();
    Ok(EMPTY_RESPONSE)
}
