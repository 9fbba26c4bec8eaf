//! The control API for async code.
//!
//! A control request is rare and takes a thread for as long as it waits, of those that tokio keeps for blocking work.
//! So there is one implementation of HTTP, TLS and the routes, and this has each of its methods.

use std::time::Duration;

use super::{
    AccessTokenSpec, AccessTokenStatus, BalanceReport, BalanceSpec, BigReport, Budget, CallsReport, ChangePage,
    ClusterStatus, CreatedAccessToken, CreatedTenant, DeadLetterReport, DeniedToNative, Deploy, EnableForMany,
    EnableSpec, EnabledOutcome, EventBatch, EventQuery, ExtensionSort, ExtensionSource, ExtensionStatus,
    ExtensionSummary, FailOverReport, FailOverSpec, FlushReport, FlushSpec, GivenGrant, GrantList, GrantSpec,
    HeatMapReport, HistoryQuery, HistoryReport, HotReport, HotSpotsReport, KillQuery, KillReport, LatencyReport,
    LiveFinding, LogBatch, LogQuery, OperatorTokenStatus, PageCode, ProfileReport, PushOutcome, RebuildStatus,
    RecheckSpec, RecordPage, RotatedToken, ScrubReport, SecretStatus, ServerChangeReport, ServerChangeSpec,
    ServerHealth, ServerStats, ShareSpec, SharedExtensionStatus, SlotMoveCount, SlotMoveSpec, SlowPatch, SlowQuery,
    SlowReport, SlowRequestReport, SplitReport, SplitSpec, TablePatch, TableSpec, TableStatus, TenantPatch, TenantSpec,
    TenantStatus, TopReport, TopRows, TriggerPatch, TriggerReport, TriggerSpec,
};
use super::{Control, ControlError};

/// A connection to a server's control port, for async code: made from a [`Control`], with the same methods. Cheap to
/// clone. It needs a tokio runtime. A request whose future is dropped goes on.
///
/// ```no_run
/// use sandstorm_client::control::{AsyncControl, Control};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let control = AsyncControl::from(Control::new("127.0.0.1:7399", Some("the token")));
/// let (tables, extensions) = tokio::join!(control.tables("shop"), control.extensions("shop"));
/// println!("{} tables, {} extensions", tables?.len(), extensions?.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncControl(Control);

impl From<Control> for AsyncControl {
    fn from(control: Control) -> AsyncControl {
        AsyncControl(control)
    }
}

impl AsyncControl {
    /// The same connection for blocking code.
    pub fn blocking(&self) -> &Control {
        &self.0
    }

    async fn run<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let control = self.0.clone();
        match tokio::task::spawn_blocking(move || request(&control)).await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(ControlError::Unreachable {
                address: self.0.address.clone(),
                reason: "the runtime is shutting down".to_owned(),
            }),
        }
    }
}

/// The type of an argument: borrowed, borrowed if it is there, or a value.
macro_rules! argument {
    (ref $type:ty) => { &$type };
    (opt $type:ty) => { Option<&$type> };
    (val $type:ty) => { $type };
}

/// An argument that another thread can have.
macro_rules! owned {
    (ref $name:ident) => {
        $name.to_owned()
    };
    (opt $name:ident) => {
        $name.map(ToOwned::to_owned)
    };
    (val $name:ident) => {
        $name
    };
}

/// The same as the blocking method takes it.
macro_rules! lent {
    (ref $name:ident) => {
        &$name
    };
    (opt $name:ident) => {
        $name.as_deref()
    };
    (val $name:ident) => {
        $name
    };
}

macro_rules! methods {
    ($($method:ident($($name:ident: $how:tt $type:ty),*) -> $answer:ty;)*) => {
        impl AsyncControl {
            $(
                #[doc = concat!("As [`Control::", stringify!($method), "`].")]
                ///
                /// # Errors
                /// [`ControlError`].
                pub async fn $method(&self, $($name: argument!($how $type)),*) -> Result<$answer, ControlError> {
                    $(let $name = owned!($how $name);)*
                    self.run(move |control| control.$method($(lent!($how $name)),*)).await
                }
            )*
        }

        /// The names of the methods.
        #[cfg(test)]
        const METHODS: &[&str] = &[$(stringify!($method)),*];
    };
}

methods! {
    health() -> ServerHealth;
    cluster() -> ClusterStatus;
    move_slots(wanted: ref SlotMoveSpec) -> SlotMoveCount;
    cancel_moves(slots: ref [[u16; 2]]) -> SlotMoveCount;
    balance(wanted: ref BalanceSpec) -> BalanceReport;
    split(wanted: ref SplitSpec) -> SplitReport;
    drain_server(change: ref ServerChangeSpec) -> ServerChangeReport;
    add_server(change: ref ServerChangeSpec) -> ServerChangeReport;
    remove_server(change: ref ServerChangeSpec) -> ServerChangeReport;
    fail_over(wanted: ref FailOverSpec) -> FailOverReport;
    scrub() -> ScrubReport;
    begin_scrub() -> ScrubReport;
    stat() -> ServerStats;
    latency(tenant: opt str, buckets: val bool) -> LatencyReport;
    top(tenant: opt str, rows: val TopRows) -> TopReport;
    slow(query: ref SlowQuery) -> SlowReport;
    slow_request(id: val u64) -> SlowRequestReport;
    set_slow_threshold(patch: ref SlowPatch) -> ();
    history(query: ref HistoryQuery) -> HistoryReport;
    events(query: ref EventQuery) -> EventBatch;
    shutdown() -> ();
    tenants() -> Vec<TenantStatus>;
    create_tenant(tenant: ref TenantSpec) -> CreatedTenant;
    tenant(tenant: ref str) -> TenantStatus;
    change_tenant(tenant: ref str, change: ref TenantPatch) -> TenantStatus;
    rebuild(id: val u64) -> RebuildStatus;
    recheck(recheck: ref RecheckSpec) -> RebuildStatus;
    denied() -> Vec<DeniedToNative>;
    end_denied(pattern: ref str) -> ();
    delete_tenant(tenant: ref str) -> ();
    rotate_token(tenant: ref str) -> RotatedToken;
    rotate_with_grace(tenant: ref str, grace: val Option<Duration>) -> RotatedToken;
    revoke_old_token(tenant: ref str) -> ();
    operator() -> OperatorTokenStatus;
    rotate_operator(grace: val Option<Duration>) -> RotatedToken;
    revoke_old_operator_token() -> ();
    tables(tenant: ref str) -> Vec<TableStatus>;
    create_table(tenant: ref str, table: ref TableSpec) -> TableStatus;
    table(tenant: ref str, table: ref str) -> TableStatus;
    change_table(tenant: ref str, table: ref str, change: ref TablePatch) -> TableStatus;
    drop_table(tenant: ref str, table: ref str) -> ();
    flush_table(tenant: ref str, table: ref str, flush: ref FlushSpec) -> FlushReport;
    records(tenant: ref str, table: ref str, cursor: opt str) -> RecordPage;
    changes(tenant: ref str, table: ref str, after: opt str, wait_s: val u64) -> ChangePage;
    grants(tenant: ref str) -> GrantList;
    grant(tenant: ref str, grant: ref GrantSpec) -> GivenGrant;
    revoke_grant(tenant: ref str, table: ref str, to: ref str) -> ();
    drop_grant(tenant: ref str, owner: ref str, table: ref str) -> ();
    secrets(tenant: ref str) -> Vec<SecretStatus>;
    set_secret(tenant: ref str, name: ref str, value: ref [u8]) -> ();
    remove_secret(tenant: ref str, name: ref str) -> ();
    push(tenant: ref str, name: ref str, source: ref ExtensionSource) -> PushOutcome;
    push_artifact(tenant: ref str, name: ref str, artifact: ref [u8]) -> PushOutcome;
    push_module(tenant: ref str, name: ref str, wasm: ref [u8]) -> PushOutcome;
    extensions(tenant: ref str) -> Vec<ExtensionStatus>;
    extension(tenant: ref str, name: ref str) -> ExtensionStatus;
    unload(tenant: ref str, name: ref str) -> ();
    suspend(tenant: ref str, name: ref str) -> ();
    resume(tenant: ref str, name: ref str) -> ();
    set_budget(tenant: ref str, name: ref str, budget: ref Budget) -> ();
    all_extensions(tenant: opt str, sort: val ExtensionSort, limit: val usize) -> Vec<ExtensionSummary>;
    kills(tenant: opt str, limit: val usize) -> Vec<KillReport>;
    find_kills(query: ref KillQuery) -> Vec<KillReport>;
    access_tokens(tenant: opt str) -> Vec<AccessTokenStatus>;
    create_access_token(tenant: opt str, token: ref AccessTokenSpec) -> CreatedAccessToken;
    revoke_access_token(tenant: opt str, name: ref str) -> ();
    findings() -> Vec<LiveFinding>;
    page_code() -> PageCode;
    catalogue() -> Vec<SharedExtensionStatus>;
    share_extension(tenant: ref str, name: ref str, with: ref ShareSpec) -> ();
    unshare_extension(tenant: ref str, name: ref str, disable: val bool) -> ();
    enable_extension(tenant: ref str, name: ref str, of: ref EnableSpec) -> EnabledOutcome;
    enable_for_many(enable: ref EnableForMany) -> EnabledOutcome;
    disable_extension(tenant: ref str, name: ref str) -> ();
    logs(tenant: ref str, query: ref LogQuery) -> LogBatch;
    calls(tenant: ref str, extension: opt str, with_places: val bool) -> CallsReport;
    triggers(tenant: ref str) -> Vec<TriggerReport>;
    create_trigger(tenant: ref str, spec: ref TriggerSpec) -> TriggerReport;
    trigger(tenant: ref str, name: ref str) -> TriggerReport;
    change_trigger(tenant: ref str, name: ref str, change: ref TriggerPatch) -> TriggerReport;
    delete_trigger(tenant: ref str, name: ref str) -> ();
    pause_trigger(tenant: ref str, name: ref str) -> ();
    resume_trigger(tenant: ref str, name: ref str) -> ();
    replay_trigger(tenant: ref str, name: ref str, from: opt str) -> u64;
    dead_letters(tenant: ref str, name: ref str) -> Vec<DeadLetterReport>;
    discard_dead_letters(tenant: ref str, name: ref str) -> ();
    roll_back(tenant: ref str, name: ref str, version: val Option<u64>) -> ExtensionStatus;
    deploy(tenant: ref str, name: ref str, deploy: ref Deploy) -> ExtensionStatus;
    hot(tenant: ref str, table: ref str, seconds: val u64, limit: val usize) -> HotReport;
    hot_spots(tenant: opt str, limit: val usize) -> HotSpotsReport;
    heat(tenant: ref str, table: ref str, seconds: val u64, ranges: val usize) -> HeatMapReport;
    big(tenant: ref str, table: ref str, limit: val usize) -> BigReport;
    profile(tenant: ref str, extension: ref str, seconds: val u64) -> ProfileReport;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that the blocking client has and this one does not is forgotten here.
    #[test]
    fn every_request_is_there() {
        let sources = [
            include_str!("../control.rs"),
            include_str!("access.rs"),
            include_str!("call_reports.rs"),
            include_str!("catalogue.rs"),
            include_str!("logs.rs"),
            include_str!("secrets.rs"),
            include_str!("triggers.rs"),
            include_str!("version_changes.rs"),
            include_str!("watches.rs"),
        ];
        let names = sources.iter().flat_map(|source| source.split("\n    pub fn ").skip(1));
        let requests = names.filter(|rest| {
            let signature = rest.split(" {\n").next().unwrap_or_default();
            signature.contains("&self") && signature.contains("ControlError>")
        });
        let requests: Vec<&str> = requests.filter_map(|rest| rest.split('(').next()).collect();
        assert!(requests.len() > 60, "they are found: {requests:?}");
        for request in requests {
            assert!(METHODS.contains(&request), "{request}");
        }
    }

    #[tokio::test]
    async fn a_request_without_a_server_is_an_error_and_others_run_meanwhile() {
        // A port without a listener.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let control = AsyncControl::from(Control::new(&free.to_string(), Some("t")));
        let (first, second) = tokio::join!(control.health(), control.tables("shop"));
        assert!(matches!(first, Err(ControlError::Unreachable { .. })), "{first:?}");
        assert!(matches!(second, Err(ControlError::Unreachable { .. })), "{second:?}");
    }
}
