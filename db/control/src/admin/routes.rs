//! The routes: who may, what comes in, what goes out.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(super) use super::caller::Caller;
use super::caller::guard;
use super::error::Failure;
use super::types::{
    ChangeBudget, ChangeTenant, CreateTable, CreateTenant, Extension, Health, Kill, Push, Pushed, Stat, Table, Tenant,
    TenantCreated,
};
use super::{Control, MAX_ARTIFACT_BYTES, MAX_BODY_BYTES, MAX_PUSH_BYTES, grants, host, now_ms, push, rotate, stat};
use crate::config::suggest;
use crate::gate::{Peer, Unread};
use crate::limits::BODY_PATIENCE;
use sandstorm_accounts::TokenHash;
use sandstorm_builder::{QueueRefusal, Turn};
use sandstorm_catalog::{Directory, DirectoryError, NewTable, NewTenant, TenantView, utc};
use sandstorm_server::workers::ListenAt;

pub(super) type Answer<T> = Result<axum::Json<T>, Failure>;

/// The answer that says nothing.
#[derive(Serialize)]
pub(super) struct Nothing {}

pub(super) const DONE: axum::Json<Nothing> = axum::Json(Nothing {});

/// The routes, each request with who sent it; of a port without TLS those under names of its own alone.
pub(super) fn service(control: Arc<Control>, plain: bool) -> IntoMakeServiceWithConnectInfo<Router, Peer> {
    let guard = middleware::from_fn_with_state(control.clone(), guard);
    let router = router(control).layer(guard);
    let router = if plain { router.layer(middleware::from_fn(host::check)) } else { router };
    router.into_make_service_with_connect_info()
}

fn router(control: Arc<Control>) -> Router {
    let extension = "/v1/tenants/{tenant}/extensions/{name}";
    Router::new()
        .route(extension, put(push_extension).layer(DefaultBodyLimit::max(MAX_PUSH_BYTES)))
        .route(extension, get(show_extension).delete(unload_extension))
        .route(
            "/v1/tenants/{tenant}/extensions/{name}/artifact",
            put(upload_artifact).layer(DefaultBodyLimit::max(MAX_ARTIFACT_BYTES)),
        )
        .route("/v1/tenants/{tenant}/extensions/{name}/suspend", post(suspend_extension))
        .route("/v1/tenants/{tenant}/extensions/{name}/resume", post(resume_extension))
        .route("/v1/tenants/{tenant}/extensions/{name}/budget", put(change_budget))
        .route("/v1/tenants/{tenant}/extensions", get(list_extensions))
        .route("/v1/tenants/{tenant}/tables/{name}", get(show_table).delete(drop_table))
        .route("/v1/tenants/{tenant}/tables", get(list_tables).post(create_table))
        .route("/v1/tenants/{tenant}/grants/given/{table}/{to}", delete(grants::revoke))
        .route("/v1/tenants/{tenant}/grants/received/{owner}/{table}", delete(grants::give_up))
        .route("/v1/tenants/{tenant}/grants", get(grants::list).post(grants::create))
        .route("/v1/tenants/{tenant}/kills", get(tenant_kills))
        .route("/v1/tenants/{tenant}/rotate", post(rotate::rotate_token))
        .route("/v1/tenants/{tenant}/old-token", delete(rotate::revoke_old_token))
        .route("/v1/operator", get(rotate::show_operator))
        .route("/v1/operator/rotate", post(rotate::rotate_operator))
        .route("/v1/operator/old-token", delete(rotate::revoke_old_operator))
        .route("/v1/tenants/{tenant}", get(show_tenant).patch(change_tenant).delete(delete_tenant))
        .route("/v1/tenants", get(list_tenants).post(create_tenant))
        .route("/v1/kills", get(all_kills))
        .route("/v1/stat", get(show_stat))
        .route("/v1/workers", get(show_workers))
        .route("/v1/health", get(health))
        .route("/v1/shutdown", post(shutdown))
        .route("/metrics", get(prometheus))
        .fallback(|| async { Failure::not_found("there is no such route").hint("all routes start with /v1/") })
        .method_not_allowed_fallback(|| async {
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method", "this route does not take that method")
                .hint("the header `allow` names those that it takes")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(control)
}

// ---- what comes in ----

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Control>> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Body<T>, Failure> {
        let bytes = body(request, control).await?;
        serde_json::from_slice(&bytes).map(Body).map_err(|error| malformed(&error))
    }
}

/// A body as it is.
struct Raw(Bytes);

impl FromRequest<Arc<Control>> for Raw {
    type Rejection = Failure;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Raw, Failure> {
        body(request, control).await.map(Raw)
    }
}

/// A JSON body, or none, which says nothing.
pub(super) struct MaybeBody<T>(pub(super) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<Control>> for MaybeBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<MaybeBody<T>, Failure> {
        let bytes = body(request, control).await?;
        if bytes.is_empty() {
            return Ok(MaybeBody(T::default()));
        }
        serde_json::from_slice(&bytes).map(MaybeBody).map_err(|error| malformed(&error))
    }
}

async fn body(request: Request, control: &Arc<Control>) -> Result<Bytes, Failure> {
    let bytes = tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, control)).await;
    bytes.map_err(|_elapsed| unread(&Unread::Late))?.map_err(|rejection| unreadable(&rejection))
}

/// What a request is told whose body did not come, or came wrong.
pub(super) fn unread(why: &Unread) -> Failure {
    match why {
        Unread::Late => Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", why.to_string())
            .hint(format!("send all of it within {} s", BODY_PATIENCE.as_secs())),
        Unread::Broken(_) => Failure::invalid(why.to_string()).hint("send it whole, as JSON, with its length"),
    }
}

fn unreadable(rejection: &BytesRejection) -> Failure {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!(
            "the body is over its limit ({MAX_PUSH_BYTES} bytes for a push, {MAX_ARTIFACT_BYTES} for an artifact, else {MAX_BODY_BYTES})"
        );
        return Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).hint("send less");
    }
    Failure::invalid(format!("the body cannot be read: {rejection}")).hint("send it whole, as JSON, with its length")
}

fn malformed(error: &serde_json::Error) -> Failure {
    let message = error.to_string();
    let mut names = message.split('`').skip(1).step_by(2);
    if let (true, Some(unknown)) = (message.starts_with("unknown field"), names.next()) {
        return Failure::invalid(format!("there is no {unknown:?} here")).hint(suggest(unknown, names));
    }
    let hint = "send a JSON object as docs/control.md has it for this route";
    Failure::invalid(format!("the body is not what this route takes: {message}")).hint(hint)
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

// ---- tenants ----

async fn list_tenants(State(control): State<Arc<Control>>, caller: Caller) -> Answer<Vec<Tenant>> {
    Ok(axum::Json(match caller {
        Caller::Operator => control.directory.snapshot().sorted().into_iter().map(|view| Tenant::of(view)).collect(),
        Caller::Tenant(own) => vec![Tenant::of(&own)],
    }))
}

async fn create_tenant(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Body(new): Body<CreateTenant>,
) -> Result<impl IntoResponse, Failure> {
    caller.operator()?;
    let CreateTenant { name, id, open, token, home_worker, quotas } = new;
    if let Some(token) = &token {
        let operator = TokenHash::of_presented(token.as_bytes()).and_then(|hash| control.operator.shown(&hash));
        if operator.is_some() || control.directory.snapshot().by_token(token.as_bytes()).is_some() {
            return Err(Failure::invalid("the token is another's already").hint("leave it out: one is made"));
        }
    }
    let (view, token) = control.directory.create_tenant(NewTenant {
        name,
        id,
        open,
        token,
        quotas,
        home_worker,
        ..NewTenant::default()
    })?;
    Ok((StatusCode::CREATED, axum::Json(TenantCreated { tenant: Tenant::of(&view), token })))
}

async fn show_tenant(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Answer<Tenant> {
    Ok(axum::Json(Tenant::of(&*caller.reach(&control, &tenant)?)))
}

async fn change_tenant(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
    Body(change): Body<ChangeTenant>,
) -> Answer<Tenant> {
    caller.operator()?;
    let directory = &control.directory;
    directory.update_tenant(&tenant, change.open, change.home_worker, &change.quotas)?;
    Ok(axum::Json(Tenant::of(directory.snapshot().find(&tenant)?)))
}

async fn delete_tenant(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Answer<Nothing> {
    caller.operator()?;
    let view = control.directory.delete_tenant(&tenant)?;
    control.history.deleted(view.tenant.id);
    control.artifacts.forget_all(&view);
    Ok(DONE)
}

// ---- tables ----

async fn list_tables(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Answer<Vec<Table>> {
    let view = caller.reach(&control, &tenant)?;
    let own = view.sorted_tables().into_iter().map(|entry| Table::own(&view, entry, caller.is_operator()));
    Ok(axum::Json(own.chain(view.sorted_granted().into_iter().filter_map(|grant| Table::granted(grant))).collect()))
}

async fn create_table(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
    Body(new): Body<CreateTable>,
) -> Result<impl IntoResponse, Failure> {
    let view = caller.reach_to_change(&control, &tenant)?;
    let CreateTable { name, id, mode, quota_bytes, ordered } = new;
    let new = NewTable { name, id, mode: mode.into(), quota_bytes, ordered };
    let entry = control.directory.create_table(view.tenant.id, new)?;
    Ok((StatusCode::CREATED, axum::Json(Table::own(&view, &entry, caller.is_operator()))))
}

async fn show_table(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Table> {
    let view = caller.reach(&control, &tenant)?;
    let unknown = || DirectoryError::UnknownTable { tenant: view.tenant.name.clone(), table: name.clone() };
    let own = view.table_by_name(&name).map(|entry| Table::own(&view, entry, caller.is_operator()));
    let granted = || view.granted_by_name(&name).and_then(|grant| Table::granted(grant));
    Ok(axum::Json(own.or_else(granted).ok_or_else(unknown)?))
}

async fn drop_table(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Nothing> {
    let view = caller.reach(&control, &tenant)?;
    control.directory.drop_table(view.tenant.id, &name)?;
    Ok(DONE)
}

// ---- extensions ----

async fn list_extensions(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Answer<Vec<Extension>> {
    let view = caller.reach(&control, &tenant)?;
    let show = |extension| control.history.show(&view, extension);
    Ok(axum::Json(view.sorted_extensions().into_iter().map(|extension| show(extension)).collect()))
}

async fn push_extension(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
    Body(source): Body<Push>,
) -> Result<impl IntoResponse, Failure> {
    let reached = caller.reach(&control, &tenant)?;
    in_turn(control, &reached, name, move |control, view, name| push::push(control, view, name, &source)).await
}

async fn upload_artifact(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
    Raw(artifact): Raw,
) -> Result<impl IntoResponse, Failure> {
    let reached = caller.reach(&control, &tenant)?;
    in_turn(control, &reached, name, move |control, view, name| push::upload(control, view, name, &artifact)).await
}

/// Loads an extension when it is the tenant's turn. Who hangs up while waiting is out of the queue.
async fn in_turn(
    control: Arc<Control>,
    reached: &TenantView,
    name: String,
    load: impl FnOnce(&Control, &TenantView, &str) -> Result<Pushed, Failure> + Send + 'static,
) -> Result<(StatusCode, axum::Json<Pushed>), Failure> {
    let turn = turn(&control, reached, &name).await?;
    // The view of now, not of before the wait: another push of the same extension may have been loaded meanwhile.
    let view = control.directory.snapshot().find(reached.tenant.id)?.clone();
    let loaded = tokio::task::spawn_blocking(move || {
        // Held to the end, even if the one who asked has gone.
        let _held = turn;
        load(&control, &view, &name)
    });
    let pushed = loaded.await.map_err(|_| Failure::internal("the push ended in a panic"))??;
    Ok((StatusCode::CREATED, axum::Json(pushed)))
}

async fn turn(control: &Control, reached: &TenantView, name: &str) -> Result<Turn, Failure> {
    let most = reached.tenant.quotas.waiting_pushes;
    let refused = |refusal| match refusal {
        QueueRefusal::TenantFull => {
            let tenant = reached.tenant.name.clone();
            DirectoryError::OverQuota { tenant, quota: "waiting_pushes", limit: most.into() }.into()
        }
        QueueRefusal::Full => Failure::busy(format!("{} pushes wait already", super::MAX_PUSHES)),
        QueueRefusal::Displaced => Failure::busy("the push made room for a tenant that has fewer waiting"),
    };
    let place = control.queue.enter(reached.tenant.id, most).map_err(refused)?;
    control.directory.admit_push(reached.tenant.id, name, now_ms())?;
    place.turn().await.map_err(refused)
}

fn find_extension(view: &TenantView, name: &str) -> Result<Arc<sandstorm_extension::Extension>, Failure> {
    let unknown = || DirectoryError::UnknownExtension { tenant: view.tenant.name.clone(), extension: name.to_owned() };
    Ok(view.extension(name).ok_or_else(unknown)?.clone())
}

async fn show_extension(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Extension> {
    let view = caller.reach(&control, &tenant)?;
    Ok(axum::Json(control.history.show(&view, &*find_extension(&view, &name)?)))
}

async fn unload_extension(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Nothing> {
    let view = caller.reach(&control, &tenant)?;
    let id = view.tenant.id;
    let kept = view.versions.loaded().find(|(loaded, _)| *loaded == name).map(|(_, loaded)| loaded.version);
    match control.directory.remove_extension(id, &name) {
        Ok(extension) => control.history.unloaded(id, &extension),
        // It could not be loaded again after a restart.
        Err(DirectoryError::UnknownExtension { .. }) if control.directory.forget_extension(id, &name)? => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(version) = kept {
        control.artifacts.forget(id, &name, version);
    }
    Ok(DONE)
}

fn set_suspended(control: &Control, caller: &Caller, tenant: &str, name: &str, suspended: bool) -> Answer<Extension> {
    let id = caller.reach_to_change(control, tenant)?.tenant.id;
    control.directory.set_suspended(id, name, suspended, caller.is_operator())?;
    let snapshot = control.directory.snapshot();
    let view = snapshot.find(id)?;
    if let (false, Some(suspension)) = (suspended, view.suspension(name)) {
        return Err(Failure::forbidden(&*suspension.text).hint("ask the operator to resume it"));
    }
    Ok(axum::Json(control.history.show(view, &*find_extension(view, name)?)))
}

async fn suspend_extension(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Extension> {
    set_suspended(&control, &caller, &tenant, &name, true)
}

async fn resume_extension(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
) -> Answer<Extension> {
    set_suspended(&control, &caller, &tenant, &name, false)
}

async fn change_budget(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path((tenant, name)): Path<(String, String)>,
    Body(change): Body<ChangeBudget>,
) -> Answer<Nothing> {
    caller.operator()?;
    control.directory.set_budget(&tenant, &name, change.into())?;
    Ok(DONE)
}

// ---- kills, counters, the server ----

async fn tenant_kills(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Path(tenant): Path<String>,
    Query(Limit { limit }): Query<Limit>,
) -> Answer<Vec<Kill>> {
    let view = caller.reach(&control, &tenant)?;
    Ok(axum::Json(stat::kills(std::iter::once(&view), limit)))
}

async fn all_kills(
    State(control): State<Arc<Control>>,
    caller: Caller,
    Query(Limit { limit }): Query<Limit>,
) -> Answer<Vec<Kill>> {
    Ok(axum::Json(match &caller {
        Caller::Operator => stat::kills(control.directory.snapshot().iter(), limit),
        Caller::Tenant(own) => stat::kills(std::iter::once(own), limit),
    }))
}

async fn show_stat(State(control): State<Arc<Control>>, caller: Caller) -> Answer<Stat> {
    Ok(axum::Json(match caller {
        Caller::Operator => stat::server(&control),
        Caller::Tenant(own) => stat::tenant(&own),
    }))
}

async fn show_workers(State(control): State<Arc<Control>>, caller: Caller) -> Result<impl IntoResponse, Failure> {
    caller.operator()?;
    Ok(axum::Json(stat::workers(&control.metrics)))
}

async fn prometheus(State(control): State<Arc<Control>>, caller: Caller) -> Result<impl IntoResponse, Failure> {
    caller.operator()?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], stat::prometheus(&control)))
}

/// For anyone; but what the builder says of itself, such as a folder's name, is for those with a token.
async fn health(State(control): State<Arc<Control>>, caller: Result<Caller, Failure>) -> axum::Json<Health> {
    axum::Json(Health {
        changes: changes(&control.directory, caller.is_ok()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_address: control.data.to_string(),
        workers: u32::try_from(control.metrics.workers()).unwrap_or(u32::MAX),
        uptime_s: control.metrics.uptime_s() as u64,
        warnings: match &caller {
            Ok(caller) if caller.operator().is_ok() => {
                ListenAt::in_want(&control.listen, &control.directory.snapshot())
            }
            _ => Vec::new(),
        },
        network: caller.as_ref().map_or_else(|_| String::new(), |_| control.metrics.network()),
        builder: match (&control.pushing.builder, caller) {
            (Ok(builder), Ok(_)) => format!("ok ({})", builder.release()),
            (Err(reason), Ok(_)) => reason.clone(),
            (Ok(_), Err(_)) => "ok".to_owned(),
            (Err(_), Err(_)) => "none".to_owned(),
        },
    })
}

/// Whether changes are kept, and why not: a path, for those with a token.
fn changes(directory: &Directory, known: bool) -> String {
    match directory.not_kept() {
        Some((since_ms, why)) if known => format!("refused since {} UTC: {why}", utc(since_ms)),
        Some(_) => "refused".to_owned(),
        None if directory.is_kept() => "kept".to_owned(),
        None => "not kept".to_owned(),
    }
}

async fn shutdown(State(control): State<Arc<Control>>, caller: Caller) -> Answer<Nothing> {
    caller.operator()?;
    (control.stop)();
    Ok(DONE)
}
