//! The routes of triggers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;

use sandstorm_builder::{Diagnostic, ManifestTrigger};
use sandstorm_catalog::TenantView;
use sandstorm_schema::ExtensionSchema;

use super::body::JsonBody;
use super::caller::RequestCaller;
use super::changes::not_logged;
use super::error::ApiError;
use super::event_scribe::{EventNote, PushSource};
use super::response::{ApiResult, EMPTY_RESPONSE, EmptyResponse, off_thread};
use super::types::{DeadLetterResponse, ReplayTriggerRequest, ReplayTriggerResponse, TriggerResponse};
use super::{ControlState, now_ms};
use crate::events::{EventCode, NewEvent};
use crate::limits::TRIGGERS_PER_TENANT;
use crate::triggers::{DeclaredTrigger, TriggerChange, TriggerDefinition, TriggerError, TriggerRunner, TriggerStatus};

impl ControlState {
    /// The triggers, in a server that has workers.
    fn trigger_runner(&self) -> Result<&TriggerRunner, ApiError> {
        self.triggers
            .get()
            .ok_or_else(|| ApiError::busy("triggers are not running: the server starts or has no workers"))
    }

    /// Checks the triggers that a push declares, before anything is built.
    pub(super) fn check_declared(&self, view: &TenantView, declared: &[TriggerDefinition]) -> Result<(), ApiError> {
        if declared.is_empty() {
            return Ok(());
        }
        let runner = self.trigger_runner()?;
        let others = runner.list(view.tenant.id);
        let is_new = |one: &&TriggerDefinition| !others.iter().any(|other| other.spec.name == one.name);
        let after = others.len() + declared.iter().filter(is_new).count();
        if after > TRIGGERS_PER_TENANT {
            let message = format!(
                "with those of extension.toml the tenant has {after} triggers, and may have {TRIGGERS_PER_TENANT}"
            );
            return Err(refused(TriggerError::TooMany(message)));
        }
        for one in declared {
            runner.start_position(view, one).map_err(|error| of_manifest(error, &one.name))?;
            if others.iter().any(|other| other.spec.name == one.name && other.spec.called().0 != one.called().0) {
                return Err(of_manifest(TriggerError::Exists(one.name.clone()), &one.name));
            }
        }
        Ok(())
    }

    /// Makes the triggers that a push declares, or changes them, and records what it did. The extension is loaded by
    /// then.
    pub(super) fn declare_triggers(
        &self,
        view: &TenantView,
        declared: Vec<TriggerDefinition>,
        PushSource { actor, from }: PushSource,
    ) -> Result<(), ApiError> {
        for one in declared {
            let (name, text) = (one.name.clone(), format!("{}, as its manifest says", summary(&one)));
            let made = self.trigger_runner()?.declare(view, one, now_ms());
            let made = made.map_err(|error| {
                refused(error).about(&format!("the extension is loaded, but not its trigger {name:?}"))
            })?;
            let code = match made {
                DeclaredTrigger::Created => EventCode::TriggerCreated,
                DeclaredTrigger::Changed => EventCode::TriggerChanged,
                DeclaredTrigger::Unchanged => continue,
            };
            let tenant = Some((view.tenant.name.clone(), view.tenant.id));
            self.events.record(NewEvent { code, actor, from, tenant, subject: Some(name), count: 1, text });
        }
        Ok(())
    }

    /// Warnings about triggers that call an extension, and give what its newest version does not take: a push may have
    /// changed its types.
    pub(super) fn unfit_triggers(&self, tenant: u32, extension: &str) -> Vec<Diagnostic> {
        let snapshot = self.directory.snapshot();
        let loaded = snapshot.tenant(tenant).and_then(|view| view.extension(extension));
        let (Some(loaded), Ok(runner)) = (loaded, self.trigger_runner()) else { return Vec::new() };
        let schema = loaded.library.schema();
        let unfit = |one: TriggerStatus| {
            let why = TriggerRunner::check_built(schema.map(|schema| &**schema), &one.spec).err()?;
            let name = &one.spec.name;
            Some(Diagnostic::warning(&format!(
                "trigger {name:?} calls this extension, and its calls fail: {why}; `sandstorm trigger set {name} --args …` \
                 gives it others"
            )))
        };
        runner.list(tenant).into_iter().filter(|one| one.spec.called().0 == extension).filter_map(unfit).collect()
    }

    /// Removes the triggers of a tenant that is gone.
    pub(super) async fn forget_triggers(self: &Arc<Self>, tenant: u32) {
        let control = Arc::clone(self);
        let forget = move || control.triggers.get().into_iter().for_each(|triggers| triggers.remove_tenant(tenant));
        // It is cancelled only together with the whole runtime.
        let _cancelled = tokio::task::spawn_blocking(forget).await;
    }
}

/// Makes a change of a tenant's triggers off this thread: it waits for the disk.
async fn change<T: Send + 'static>(
    control: Arc<ControlState>,
    tenant: u32,
    change: impl FnOnce(&TriggerRunner) -> Result<T, TriggerError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = control.trigger_changes.begin(tenant);
    let permit = permit.ok_or_else(|| ApiError::busy("other changes of triggers are under way"))?;
    ask(control, move |triggers| {
        let _permit = permit;
        change(triggers)
    })
    .await
}

/// Asks for triggers off this thread: their locks may be taken for a moment.
async fn ask<T: Send + 'static>(
    control: Arc<ControlState>,
    ask: impl FnOnce(&TriggerRunner) -> Result<T, TriggerError> + Send + 'static,
) -> Result<T, ApiError> {
    off_thread(move || ask(control.trigger_runner()?).map_err(refused)).await?
}

pub(super) async fn list(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
) -> ApiResult<Vec<TriggerResponse>> {
    let view = caller.reach(&control, &tenant)?;
    let triggers = ask(control, move |triggers| Ok(triggers.list(view.tenant.id))).await?;
    Ok(axum::Json(triggers.into_iter().map(TriggerResponse::of).collect()))
}

pub(super) async fn create(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path(tenant): Path<String>,
    JsonBody(spec): JsonBody<TriggerDefinition>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let note = EventNote { subject: Some(spec.name.clone()), text: summary(&spec), ..EventNote::default() };
    let created = change(control, view.tenant.id, move |triggers| triggers.create(&view, spec, now_ms())).await?;
    Ok((StatusCode::CREATED, Extension(note), axum::Json(TriggerResponse::of(created))))
}

pub(super) async fn show(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<TriggerResponse> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    let shown = ask(control, move |triggers| triggers.show(id, &name)).await?;
    Ok(axum::Json(TriggerResponse::of(shown)))
}

pub(super) async fn set(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(wanted): JsonBody<TriggerChange>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let id = view.tenant.id;
    let changed = change(control, id, move |triggers| triggers.set(&view, &name, wanted, now_ms())).await?;
    let note = EventNote { text: summary(&changed.spec), ..EventNote::default() };
    Ok((Extension(note), axum::Json(TriggerResponse::of(changed))))
}

pub(super) async fn remove(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    change(control, id, move |triggers| triggers.remove(id, &name)).await?;
    Ok(EMPTY_RESPONSE)
}

pub(super) async fn pause(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    change(control, id, move |triggers| triggers.set_paused(id, &name, true, now_ms())).await?;
    Ok(EMPTY_RESPONSE)
}

pub(super) async fn resume(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    change(control, id, move |triggers| triggers.set_paused(id, &name, false, now_ms())).await?;
    Ok(EMPTY_RESPONSE)
}

pub(super) async fn replay(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(ReplayTriggerRequest { from }): JsonBody<ReplayTriggerRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    let position = match from.as_deref() {
        None => None,
        Some("end") => Some(u64::MAX),
        Some(text) => {
            let wrong = || ApiError::invalid(format!("from {text:?}: a position of the feed, or \"end\""));
            Some(text.parse().map_err(|_| wrong())?)
        }
    };
    let text = from.map_or_else(|| "dead letters".to_owned(), |from| format!("from position {from}"));
    let letters = change(control, id, move |triggers| triggers.replay(id, &name, position)).await?;
    Ok((Extension(EventNote { text, ..EventNote::default() }), axum::Json(ReplayTriggerResponse { letters })))
}

pub(super) async fn dead_letters(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<Vec<DeadLetterResponse>> {
    let id = caller.reach(&control, &tenant)?.tenant.id;
    let letters = ask(control, move |triggers| triggers.dead_letters(id, &name)).await?;
    Ok(axum::Json(letters.into_iter().map(DeadLetterResponse::of).collect()))
}

pub(super) async fn discard_letters(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<EmptyResponse> {
    let id = caller.authorize_change(&control, &tenant)?.tenant.id;
    change(control, id, move |triggers| triggers.discard_letters(id, &name)).await?;
    Ok(EMPTY_RESPONSE)
}

/// Checks the triggers that a push declares against what was built, before it is loaded.
pub(super) fn check_built(schema: Option<&ExtensionSchema>, declared: &[TriggerDefinition]) -> Result<(), ApiError> {
    declared
        .iter()
        .try_for_each(|one| TriggerRunner::check_built(schema, one).map_err(|error| of_manifest(error, &one.name)))
}

fn of_manifest(error: TriggerError, trigger: &str) -> ApiError {
    refused(error).about(&format!("trigger {trigger:?} of extension.toml"))
}

/// A trigger that an extension's manifest declares.
pub(super) fn declared(extension: &str, one: &ManifestTrigger) -> Result<TriggerDefinition, ApiError> {
    TriggerDefinition::declared(extension, one).map_err(|why| of_manifest(TriggerError::Invalid(why), &one.name))
}

/// What a trigger does, for its event.
fn summary(spec: &TriggerDefinition) -> String {
    let when = match (&spec.every, &spec.cron, &spec.table) {
        (Some(every), ..) => format!("every {every}"),
        (_, Some(cron), _) => format!("by cron {cron}"),
        (.., table) => format!("on table {}", table.as_deref().unwrap_or_default()),
    };
    format!("calls {} {when}", spec.extension)
}

fn refused(error: TriggerError) -> ApiError {
    let message = error.to_string();
    match error {
        TriggerError::Invalid(_) => ApiError::invalid(message),
        TriggerError::Exists(name) => ApiError::new(StatusCode::CONFLICT, "exists", message).hint(format!(
            "`sandstorm trigger set {name}` changes it, `sandstorm trigger delete {name}` makes room for another"
        )),
        TriggerError::Unknown(_) => {
            ApiError::not_found(message).hint("`sandstorm trigger list` shows those that there are")
        }
        TriggerError::TooMany(_) => ApiError::new(StatusCode::CONFLICT, "too_many", message)
            .hint("one extension can do several things: it sees the table's changes"),
        TriggerError::UnknownTable(table) => {
            ApiError::new(StatusCode::NOT_FOUND, "unknown_table", message).hint(format!(
                "`sandstorm table list` shows the tables; `sandstorm table create {table} --durability interval` makes \
                 one whose changes a trigger sees"
            ))
        }
        TriggerError::NotLogged(table) => not_logged(&table),
        TriggerError::NoPositions(_) => ApiError::invalid(message).hint("leave `from` out: dead letters are replayed"),
        TriggerError::NotAgreed(_) => ApiError::not_kept(message),
        TriggerError::Unwritable(_) => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "not_kept", message)
            .hint("it holds until the server stops; make room on the disk and say it again"),
    }
}
