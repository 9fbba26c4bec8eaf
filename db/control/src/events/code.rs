//! The codes of events: stable words for programs.

use serde::{Deserialize, Serialize};

/// Declares the codes: name in Rust, code, meaning.
macro_rules! event_codes {
    ($( $name:ident, $code:literal, $meaning:literal; )*) => {
        /// What happened. A code keeps its meaning; later versions may add some.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum EventCode {
            $( #[doc = $meaning] #[serde(rename = $code)] $name, )*
        }

        impl EventCode {
            /// All codes.
            pub const ALL: &'static [EventCode] = &[$( EventCode::$name ),*];

            /// The code, as programs see it.
            pub fn name(self) -> &'static str {
                match self { $( EventCode::$name => $code, )* }
            }

            /// Its meaning, for people.
            pub fn meaning(self) -> &'static str {
                match self { $( EventCode::$name => $meaning, )* }
            }
        }
    };
}

event_codes! {
    ServerStarted, "server.started", "The server began to serve its control port.";
    ServerStopping, "server.stopping", "The operator asked the server to stop.";
    ServerStopped, "server.stopped", "The server stopped in order. If it is missing before `server.started`, it did not.";
    SlowThresholdChanged, "server.slow_threshold_changed", "The time from which requests are kept as slow was changed.";
    LogScrubBegun, "log.scrub_begun",
        "The log, and copies of other servers' logs, were told to be read again from the disk.";
    LogDamaged, "log.damaged",
        "The disk has changed, or does not read, a part of the server's log; a checkpoint of the records in memory takes \
         its place. The text says which file and byte.";
    SlotMovesBegun, "cluster.moves_begun", "Slots of the cluster were told to move to another server.";
    SlotMovesCancelled, "cluster.moves_cancelled", "Moves of slots that were not handed over yet were cancelled.";
    ClusterServerDrained, "cluster.server_drained", "A server of the cluster was told to give all its slots away.";
    ClusterServerAdded, "cluster.server_added", "A server of the cluster was told to take its share of the slots.";
    ClusterBalanced, "cluster.balanced", "Slots of the cluster were told to move, so that servers have equal loads.";
    ClusterSplit, "cluster.split",
        "About half of what a server of the cluster has to do was told to move to another one.";
    ClusterServerRemoved, "cluster.server_removed", "A server was removed from the cluster.";
    ClusterServerFailedOver, "cluster.server_failed_over", "A server was told to take the place of another one.";
    ClusterFailoverBegun, "cluster.failover_begun",
        "The server takes the place of another one that is gone, by itself.";
    ClusterFailoverDone, "cluster.failover_done",
        "The server has taken the place of another one; the text says whether by itself or by command.";
    ClusterFailoverNotPossible, "cluster.failover_not_possible",
        "A server is gone, and this one, which has a copy of its log, does not take its place, or the one that was to \
         take it is gone as well; the text says why.";
    ClusterCopyDamaged, "cluster.copy_damaged",
        "The copy of another server's log that is here is damaged: it counts for nothing any more, and its owner makes \
         another one. The text says which file and byte.";
    TenantCreated, "tenant.created", "A tenant was created.";
    TenantChanged, "tenant.changed", "Quotas, home worker, openness or code policy of a tenant were changed.";
    TenantDeleted, "tenant.deleted", "A tenant was deleted with all that it had.";
    TenantHomeMoved, "tenant.home_moved",
        "The server moved a tenant to another home worker after its load; the text says how much there was.";
    TenantTokenRotated, "tenant.token_rotated", "A tenant got a new token.";
    TenantOldTokenRevoked, "tenant.old_token_revoked", "The grace of a tenant's old token was ended.";
    TenantThrottled, "tenant.throttled", "A part of a tenant's datagrams is dropped early: it sends more than it may, or than is served.";
    TenantUnthrottled, "tenant.unthrottled", "None of a tenant's datagrams were dropped early for ten seconds.";
    OperatorTokenRotated, "operator.token_rotated", "The operator got a new token.";
    OperatorOldTokenRevoked, "operator.old_token_revoked", "The grace of the operator's old token was ended.";
    TokenCreated, "token.created", "A token was made for a viewer.";
    TokenRevoked, "token.revoked", "A viewer's token was revoked.";
    PageCodeMade, "page.code_made", "A code was made that begins a session of the page.";
    PageSignedIn, "page.signed_in", "A browser signed in to the page.";
    TableCreated, "table.created", "A table was created.";
    TableChanged, "table.changed", "A table got another name, mode, quota, durability or use of its backing; the text says which.";
    TableFlushed, "table.flushed", "The backing of a table was given all records that were changed.";
    TableDropped, "table.dropped", "A table was dropped with its records.";
    GrantGiven, "grant.given", "A table was granted to another tenant, or the grant was changed.";
    GrantRevoked, "grant.revoked", "A grant was ended by the owner's side.";
    GrantGivenUp, "grant.given_up", "A granted table was given up by the grantee's side.";
    SecretSet, "secret.set", "A secret of a tenant was set, or replaced.";
    SecretRemoved, "secret.removed", "A secret of a tenant was removed.";
    TriggerCreated, "trigger.created", "A trigger was created.";
    TriggerChanged, "trigger.changed", "A trigger was changed, by `trigger set` or by a push with its manifest.";
    TriggerDeleted, "trigger.deleted", "A trigger was deleted with its dead letters.";
    TriggerPaused, "trigger.paused", "A trigger makes no calls until it is resumed: by its tenant or the operator, or by itself; then the text says why.";
    TriggerResumed, "trigger.resumed", "A trigger makes calls again.";
    TriggerReplayed, "trigger.replayed", "Calls of a trigger are made again.";
    TriggerLettersDiscarded, "trigger.letters_discarded", "The dead letters of a trigger were removed.";
    ExtensionPushed, "extension.pushed", "A version of an extension was loaded.";
    ExtensionRefused, "extension.refused", "A push was refused, or failed; the text says why.";
    ExtensionRolledBack, "extension.rolled_back", "Another version of an extension that was kept is called again; the text says which.";
    ExtensionDeployed, "extension.deployed", "A kept version of an extension got a share of its calls, or the share was changed or ended.";
    ExtensionDeploymentEnded, "extension.deployment_ended", "The server ended the share of a version: it was killed, failed or was slow more than the other; the text says how much.";
    ExtensionShared, "extension.shared", "An extension may be enabled by other tenants; the text says by which.";
    ExtensionShareEnded, "extension.share_ended", "An extension may be enabled by others no more; the text says what became of those who had it.";
    ExtensionEnabled, "extension.enabled", "Another tenant's extension was enabled, for one tenant or for many.";
    ExtensionDisabled, "extension.disabled", "Another tenant's extension is not enabled any more.";
    ExtensionUnloaded, "extension.unloaded", "An extension was unloaded.";
    ExtensionSuspended, "extension.suspended", "Calls of an extension are refused until it is resumed.";
    ExtensionResumed, "extension.resumed", "The suspension of an extension was ended.";
    ExtensionBudgetChanged, "extension.budget_changed", "An extension's budget was changed.";
    ExtensionSlowed, "extension.slowed", "Calls of an extension are admitted at a bounded rate, because they keep being killed.";
    ExtensionReleased, "extension.released", "Calls of an extension are admitted without a bound again.";
    ExtensionMoved, "extension.moved", "An extension was built again, for another tier or under other rules.";
    ExtensionLeftOut, "extension.left_out", "An extension could not be loaded; the text says why.";
    CallKilled, "call.killed", "The server ended calls of an extension. An event stands for `count` kills of one cause, of a second or more.";
    WebhookFailing, "webhook.failing", "A webhook does not take events; they are sent again, after longer and longer pauses.";
    WebhookRecovered, "webhook.recovered", "A webhook takes events again; the text says how many were left out.";
    OtlpFailing, "otlp.failing", "The endpoint of metrics does not take them; they are pushed again, after longer and longer pauses.";
    OtlpRejected, "otlp.rejected", "The endpoint of metrics takes a part of them; the text says how much it left out, and why.";
    OtlpRecovered, "otlp.recovered", "The endpoint of metrics takes them again.";
    NativeRechecked, "native.rechecked", "All native code is checked again, perhaps with one more pattern that is denied.";
    NativeDenialEnded, "native.denial_ended", "A pattern is denied to native code no more.";
}
