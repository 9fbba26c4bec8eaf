//! Client and server have the same tables with a backing.

use sandstorm_catalog::{BackingSettings, BackingStats};
use sandstorm_client::control as client;
use sandstorm_control::admin::types as server;

use super::mirrors;

/// Checks that the server takes what the client sends.
fn takes<Server: serde::de::DeserializeOwned>(sent: impl serde::Serialize) -> Server {
    serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap()
}

#[test]
fn client_and_server_have_the_same_backings() {
    let settings = BackingSettings { secret: Some("s".into()), ..BackingSettings::of("memory:a") };
    let stats = BackingStats { last_error: Some("e".into()), ..BackingStats::default() };
    mirrors::<client::BackingStatus>(server::BackingResponse::of(settings, stats));
    mirrors::<client::FlushReport>(server::FlushResponse { flushes: 1 });
    takes::<server::CreateTableRequest>(client::TableSpec {
        name: "t".into(),
        id: Some(1),
        mode: client::TableMode::Cache,
        quota_bytes: Some(1),
        ordered: true,
        durability: Some(client::DurabilityLevel::Interval),
        backing: None,
    });
    let spec = client::BackingSpec { url: "memory:a".into(), fresh_ms: Some(1), ..client::BackingSpec::default() };
    let new = client::TableSpec { name: "t".into(), backing: Some(spec), ..client::TableSpec::default() };
    let new: server::CreateTableRequest = takes(new);
    assert_eq!(new.backing.map(|backing| backing.fresh_ms), Some(1));
    let policy = Some(client::WritePolicy::WriteBack);
    let backing = Some(client::BackingPatch { policy, ..client::BackingPatch::default() });
    let change: server::ChangeTableRequest = takes(client::TablePatch { backing, ..client::TablePatch::default() });
    assert!(change.backing.is_some_and(|backing| backing.policy.is_some()));
    takes::<server::FlushRequest>(client::FlushSpec { conflicts: client::ConflictRemedy::Ours, wait_ms: Some(1) });
}

#[test]
fn the_commands_of_tables_with_a_backing_parse() {
    for line in [
        "table set t --policy write-back --dirty 1MiB",
        "table create t --backing file:///srv/t --policy write-through --fresh 1000 --stale 5000",
        "table flush t --conflicts ours --wait 5",
    ] {
        super::cli(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}
