//! What operators look at: the bodies (latencies, events, extensions of all tenants), and the commands that show them.

use sandstorm_net::CodeTier;

use super::{cli, mirrors};

#[test]
fn client_and_server_have_the_same_events() {
    use sandstorm_control::events::{EventActor, EventCode, ServerEvent};
    let event = ServerEvent {
        id: 1,
        at_ms: 2,
        code: EventCode::TableDropped,
        actor: EventActor::Tenant,
        from: Some([10, 0, 0, 1].into()),
        tenant: Some("a".into()),
        tenant_id: Some(3),
        subject: Some("t".into()),
        count: 1,
        text: "x".into(),
    };
    mirrors::<sandstorm_client::control::EventBatch>(sandstorm_control::admin::types::EventsResponse {
        events: vec![event],
        next: 1,
        missed: true,
    });
}

#[test]
fn client_and_server_have_the_same_tokens_of_viewers() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let access = server::AccessTokenResponse {
        name: "prometheus".into(),
        role: "tenant-viewer",
        tenant: Some("a".into()),
        created_ms: 1,
        expires_ms: Some(2),
    };
    mirrors::<client::CreatedAccessToken>(server::CreateAccessTokenResponse { access, token: "x".into() });
    mirrors::<client::PageCode>(server::PageCodeResponse { code: "y".into(), lifetime_s: 120, path: "/ui" });
    let severity = sandstorm_control::admin::FindingSeverity::Bad;
    let (title, text, advice) = ("a".to_owned(), "b".to_owned(), "c".to_owned());
    mirrors::<client::LiveFinding>(sandstorm_control::admin::ServerFinding {
        code: "x",
        severity,
        title,
        text,
        advice,
    });
    let spec = client::AccessTokenSpec { name: "n".into(), expires_s: Some(3) };
    let text = serde_json::to_string(&spec).expect("it can be written");
    let read: server::CreateAccessTokenRequest = serde_json::from_str(&text).expect("the server reads it");
    assert_eq!((read.name.as_str(), read.expires_s), ("n", Some(3)));
}

#[test]
fn client_and_server_have_the_same_latencies() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    mirrors::<client::LatencyReport>(server::LatencyResponse {
        at_ms: 1,
        rows: vec![server::LatencyRowResponse {
            tenant: "a".into(),
            class: "call",
            extension: Some("x".into()),
            version: 2,
            total: server::DurationResponse {
                count: 1,
                sum_ns: 2,
                p50_ns: 3,
                p90_ns: 4,
                p99_ns: 5,
                p999_ns: 6,
                buckets: vec![(7, 8)],
            },
            waiting: server::DurationResponse::default(),
            service: server::DurationResponse::default(),
            sending: server::DurationResponse::default(),
        }],
    });
}

#[test]
fn the_commands_that_show_them_parse() {
    for line in [
        "stat latency --interval 0.5 -n 3 --sort waiting --limit 5 --tenant acme",
        "stat latency --all",
        "token create prometheus --expires 90d",
        "token create dashboard --role tenant-viewer --tenant acme",
        "token list",
        "token revoke dashboard --role tenant-viewer",
        "ui --open",
        "doctor --live",
        "kills --tenant a --extension x --cause panic --since 30m --follow",
        "ext profile x --seconds 3 --format svg -o file",
        "heat t --seconds 3 --ranges 4",
        "big t --limit 5",
        "ext list --all --sort cpu --limit 3",
        "events --follow --since 12h --code extension --after 7 --limit 5",
        "slow --tenant acme --since 30m --follow --limit 3",
        "slow --threshold-us 0",
        "explain 17",
        "hot items --seconds 3 --limit 5 --tenant acme",
        "hot",
        "hot --tenant acme --limit 5",
        "history --by hours --since 7d --sort p99 --limit 3 --tenant acme",
        "history",
        "top",
        "top extensions --sort kills_per_s --filter acme --interval 0.5",
        "top tables --batch -n 3 --limit 5",
        "top tenants --once --tenant acme",
    ] {
        cli(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "stat latency --all --count 2",
        "stat --all latency",
        "events --since 5w",
        "ext list --sort cpu",
        "top records",
        "top --once -n 2",
        "stat --once -n 2",
        "stat --once --all",
    ] {
        assert!(cli(line).is_err(), "{line}");
    }
}

#[test]
fn client_and_server_have_the_same_summaries_of_extensions() {
    use sandstorm_control::admin::types as server;
    mirrors::<sandstorm_client::control::ExtensionSummary>(server::ExtensionSummaryResponse {
        tenant: "a".into(),
        name: "x".into(),
        version: 1,
        tier: CodeTier::Sandboxed,
        suspended: true,
        slowed_to_per_s: 2,
        stats: server::ExtensionStatsResponse {
            invocations: 3,
            killed_by: [("panic", 4)].into(),
            ..server::ExtensionStatsResponse::default()
        },
        p50_ns: 5,
        p99_ns: 6,
    });
}

fn table_use() -> sandstorm_control::admin::types::TableUseResponse {
    use sandstorm_control::admin::types as server;
    server::TableUseResponse {
        tenant: "a".into(),
        name: "t".into(),
        id: 1,
        mode: "cache",
        records: 2,
        bytes: 3,
        quota_bytes: 4,
        garbage_bytes: 5,
        evictions: 6,
        expirations: 7,
        refusals: 8,
        hot_key_per_mille: 9,
        reads_per_s: 10,
        writes_per_s: 11,
    }
}

#[test]
fn client_and_server_have_the_same_uses() {
    use sandstorm_control::admin::types as server;
    let latency =
        || server::DurationResponse { count: 1, buckets: vec![(7, 8)], ..server::DurationResponse::default() };
    mirrors::<sandstorm_client::control::TopReport>(server::TopResponse {
        at_ms: 1,
        uptime_us: 2,
        workers: 3,
        tenants: vec![server::TenantUseResponse {
            name: "a".into(),
            id: 1,
            home_worker: 1,
            cpu_ns: 2,
            plain_cpu_ns: 3,
            requests: 3,
            over_quota: 4,
            over_rate: 4,
            calls: 5,
            failed: 6,
            killed: 7,
            switches: 8,
            running: 9,
            connections: 10,
            records: 11,
            record_bytes: 12,
            invocation_memory_bytes: 13,
            throttled_per_mille: 14,
            suspended: 15,
            slowed: 16,
            quota: server::QuotaUseResponse { name: "tables".into(), used: 1, limit: 2 },
            latency: latency(),
            waiting: latency(),
            service: latency(),
            sending: latency(),
            isolation: Some(server::IsolationResponse {
                class: "get",
                quiet_p99_ns: 1,
                beside_p99_ns: 2,
                ratio_per_mille: 2_000,
            }),
        }],
        extensions: vec![server::ExtensionUseResponse {
            tenant: "a".into(),
            name: "x".into(),
            version: 1,
            tier: CodeTier::Native,
            suspended: true,
            slowed_to_per_s: 2,
            cpu_ns: 3,
            calls: 4,
            failed: 5,
            killed: 6,
            switches: 7,
            running: 8,
            memory_bytes: 9,
            budget_cpu_ns: 10,
            budget_memory_bytes: 11,
            latency: latency(),
            waiting: latency(),
            service: latency(),
            sending: latency(),
        }],
        tables: vec![table_use()],
    });
}

#[test]
fn client_and_server_have_the_same_slow_requests() {
    use sandstorm_control::admin::types as server;
    mirrors::<sandstorm_client::control::SlowReport>(server::SlowResponse {
        threshold_us: 1,
        left_out: 2,
        requests: vec![server::SlowRequestResponse {
            id: 1,
            at_ms: 2,
            tenant: "a".into(),
            class: "call".into(),
            operation: "invoke".into(),
            table: Some("t".into()),
            key: Some("k".into()),
            key_digest: Some("0".into()),
            key_bytes: 3,
            count: 4,
            total_ns: 5,
            waiting_ns: 6,
            service_ns: 7,
            waits: server::RequestWaitsResponse { disk_ns: 1, backing_ns: 2, log_ns: 3, copies_ns: 4, backed_ns: 5 },
            worker: 8,
            call: Some(server::SlowCallResponse {
                log_call: 4,
                extension: "x".into(),
                version: 1,
                outcome: "ok".into(),
                cpu_ns: 2,
                turns: 3,
                switches: 4,
                waits: 5,
                cold_waits: 5,
                cold_ns: 6,
                reads: 6,
                read_bytes: 7,
                retries: 8,
                nested_calls: 10,
                nested_cpu_ns: 11,
                queue_ns: 8,
                first_turn_ns: 9,
                pauses: Default::default(),
                arguments: "a".into(),
            }),
            turns: vec![server::TurnShareResponse { tenant: Some("b".into()), turns: 1, cpu_ns: 2, requests: 3 }],
            known_ns: 9,
        }],
    });
}

#[test]
fn client_and_server_have_the_same_history() {
    use sandstorm_control::history::{HistoryPeriod, HistoryRow};
    let row = HistoryRow {
        tenant: Some("a".into()),
        tenant_id: 1,
        cpu_us: 2,
        requests: 3,
        over_quota: 4,
        calls: 5,
        killed: 6,
        switches: 7,
        p99_ns: 8,
        memory_bytes: 9,
        throttled_per_mille: 10,
    };
    mirrors::<sandstorm_client::control::HistoryReport>(sandstorm_control::admin::types::HistoryResponse {
        periods: vec![HistoryPeriod { at_ms: 1, length_ms: 2, rows: vec![row] }],
    });
}

#[test]
fn client_and_server_have_the_same_hot_keys() {
    use sandstorm_control::admin::types as server;
    let key = || server::HotKeyResponse {
        key: Some("k".into()),
        key_digest: "0".into(),
        key_bytes: 1,
        count: 2,
        error: 3,
        share: 0.5,
    };
    mirrors::<sandstorm_client::control::HotReport>(server::HotResponse {
        seconds: 1,
        requests: 2,
        bytes: 3,
        missed: 4,
        by_requests: vec![key()],
        by_bytes: vec![key()],
        cpu_ns: 5,
        by_cpu: vec![key()],
    });
    mirrors::<sandstorm_client::control::HotSpotsReport>(server::HotSpotsResponse {
        at_ms: 1,
        keys: vec![server::HotSpotResponse {
            tenant: "a".into(),
            table: "t".into(),
            key: Some("k".into()),
            key_digest: "0".into(),
            key_bytes: 1,
            share: 0.5,
            per_s: 2.5,
            samples: 3,
        }],
    });
}

#[test]
fn client_and_server_have_the_same_heat_maps_large_records_profiles_and_kills() {
    use sandstorm_control::admin::types as server;
    let range = server::HeatRangeResponse { first: Some("a".into()), last: Some("b".into()), accesses: vec![1] };
    let (accesses, sampled, ranges) = (vec![1], vec![1], vec![range]);
    let heat = server::HeatResponse { seconds: 1, accesses, sampled, missed: 2, ranges };
    mirrors::<sandstorm_client::control::HeatMapReport>(heat);
    let record =
        server::BigRecordResponse { key: Some("k".into()), key_digest: "0".into(), key_bytes: 1, value_bytes: 2 };
    mirrors::<sandstorm_client::control::BigReport>(server::BigResponse {
        records: 1,
        looked_at: 2,
        p50_bytes: 3,
        p99_bytes: 4,
        max_bytes: 5,
        sum_bytes: 6,
        largest: vec![record],
    });
    let place = || server::CodePlaceResponse { function: "f".into(), file: "src/lib.rs".into(), line: 7 };
    mirrors::<sandstorm_client::control::ProfileReport>(server::ProfileResponse {
        extension: "e".into(),
        version: 1,
        seconds: 2,
        samples_per_s: 3,
        samples: 4,
        named: 5,
        unlisted: 6,
        calls: 7,
        cpu_us: 8,
        waiting_us: 9,
        stacks: vec![server::ProfiledStackResponse { samples: 1, in_host: true, places: vec![0] }],
        places: vec![place()],
    });
    mirrors::<sandstorm_client::control::KillReport>(server::KillResponse {
        at_ms: 1,
        tenant: "t".into(),
        extension: "e".into(),
        version: 2,
        cause: "panic".into(),
        text: "x".into(),
        cpu_us: 3,
        wall_us: 4,
        worker: 5,
        places: vec![place()],
        arguments: "a".into(),
    });
}

#[test]
fn client_and_server_have_the_same_clusters() {
    use sandstorm_control::admin::types as server;
    let one = server::ClusterServerResponse {
        id: "a".into(),
        is_this: true,
        lives: true,
        data_address: "127.0.0.1:1".into(),
        redis_address: Some("127.0.0.1:2".into()),
        memcached_address: None,
        control_url: "http://127.0.0.1:3".into(),
        draining: false,
        has_same_tenants: true,
        slots: vec![[0, 16_383]],
    };
    mirrors::<sandstorm_client::control::ClusterStatus>(server::ClusterResponse {
        server: "a".into(),
        epoch: 1,
        servers: vec![one],
        unowned: vec![[1, 2]],
        moves: vec![server::ClusterMoveResponse {
            slots: [0, 99],
            from: "a".into(),
            to: "b".into(),
            handed_over: false,
            mib_per_s: 5,
            state: Some("copies table 1 of 1".into()),
            records: Some(3),
            bytes: Some(4),
        }],
        copies: server::CopiesResponse {
            wanted: 1,
            stalled: true,
            position: 5,
            copies: vec![server::CopyResponse {
                server: "b".into(),
                needed: true,
                confirms: false,
                behind_bytes: 6,
                held: Some(7),
                trouble: Some("no answer".into()),
            }],
            generations: vec![server::GenerationResponse {
                owner: "a".into(),
                number: 2,
                servers: vec!["b".into()],
                successor: Some("b".into()),
            }],
            kept: vec![server::StoredCopyResponse {
                owner: "b".into(),
                bytes: 8,
                sealed: true,
                checked_s_ago: Some(9),
                damage: Some("byte 5".into()),
            }],
            suspected: vec![server::SuspectedServerResponse {
                server: "b".into(),
                silent_ms: 9,
                gone: true,
                obstacle: Some("by command".into()),
            }],
        },
        trouble: Some("no answer".into()),
        trouble_since_ms: Some(3),
    });
}

#[test]
fn client_and_server_have_the_same_splits() {
    use sandstorm_client::control as client;
    use sandstorm_control::admin::types as server;
    let one = server::PlannedMoveResponse { slots: [1, 2], from: "a".into(), to: "b".into() };
    mirrors::<client::SplitReport>(server::SplitResponse {
        begun: true,
        moves: vec![one],
        measure: "accesses",
        part: 0.5,
        slots: 2,
        bytes: 3,
        remarks: vec!["slot 1 alone".into()],
    });
    let wanted =
        client::SplitSpec { from: "a".into(), to: "b".into(), tenant: Some("shop".into()), plan: true, mib_per_s: 5 };
    let taken: server::SplitRequest = serde_json::from_value(serde_json::to_value(wanted).unwrap()).unwrap();
    assert_eq!((taken.tenant.as_deref(), taken.plan, taken.mib_per_s), (Some("shop"), true, 5));
}

#[test]
fn client_and_server_have_the_same_report_of_what_is_read_again() {
    use sandstorm_control::admin::types as server;
    let last = Some(server::ScrubPassResponse { ended_s_ago: 1, bytes: 2, damage: 3 });
    mirrors::<sandstorm_client::control::ScrubReport>(server::ScrubResponse {
        under_way: true,
        pass_bytes: 4,
        last,
        log_damage: Some("byte 5".into()),
    });
}

#[test]
fn client_and_server_have_the_same_pages_of_records() {
    use sandstorm_control::admin::types as server;
    let text = server::RecordResponse {
        key: Some("k".into()),
        key_base64: None,
        value: Some("v".into()),
        value_base64: None,
        version: 1,
        flags: 2,
        expires_at_ms: 3,
    };
    let (key_base64, value_base64) = (Some("AA==".into()), Some("/w==".into()));
    let bytes = server::RecordResponse { key: None, key_base64, value: None, value_base64, ..text.clone() };
    mirrors::<sandstorm_client::control::RecordPage>(server::RecordPageResponse {
        records: vec![text, bytes],
        next: Some("18446744073709551615".into()),
        unreadable: 4,
    });
}

#[test]
fn client_and_server_have_the_same_lines_of_logs() {
    let line = sandstorm_control::admin::types::LogLineResponse {
        id: 1,
        at_us: 2,
        level: "info",
        extension: "x".into(),
        version: 3,
        call: 4,
        text: "t".into(),
    };
    mirrors::<sandstorm_client::control::LogBatch>(sandstorm_control::admin::types::LogResponse {
        lines: vec![line],
        next: 1,
        missed: true,
        left_out: 5,
    });
}

#[test]
fn times_are_civil() {
    for (at_ms, expected) in [
        (0, "1970-01-01 00:00:00"),
        (951_782_399_999, "2000-02-28 23:59:59"),
        (951_782_400_000, "2000-02-29 00:00:00"),
        (1_709_251_200_000, "2024-03-01 00:00:00"),
        (4_102_444_799_000, "2099-12-31 23:59:59"),
        (u64::MAX, "9999-12-30 22:00:00"),
    ] {
        assert_eq!(sandstorm_catalog::format_utc(at_ms), expected);
    }
}
