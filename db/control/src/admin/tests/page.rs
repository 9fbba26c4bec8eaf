//! docs/control.md lists the routes that exist, their permissions, and the fields of their bodies.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::*;
use crate::admin::routes::ROUTES;

const PAGE: &str = include_str!("../../../../../docs/control.md");
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Method, path and permitted callers, of each row about a route.
fn routes() -> Vec<(&'static str, &'static str, &'static str)> {
    let route = |line: &'static str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (method, path) = cells.next()?.strip_suffix('`')?.split_once(' ')?;
        METHODS.contains(&method).then_some((method, path, cells.next()?))
    };
    PAGE.lines().filter_map(route).collect()
}

#[test]
fn the_page_has_the_routes_that_there_are_and_says_who_may() {
    let told: BTreeSet<_> = routes().into_iter().collect();
    let served: BTreeSet<_> = ROUTES.iter().map(|route| (route.method, route.path, route.access.name())).collect();
    assert_eq!(told, served);
    assert_eq!(routes().len(), ROUTES.len(), "each once");
}

#[test]
fn a_method_that_a_route_does_not_have_is_refused_without_a_look_at_the_token() {
    let server = Server::without_builder();
    for path in ROUTES.iter().map(|route| route.path).collect::<BTreeSet<&str>>() {
        for method in METHODS {
            let is_served = ROUTES.iter().any(|route| (route.method, route.path) == (method, path));
            let (status, text) = server.raw(method, &path.replace(['{', '}'], ""), None, b"");
            assert_eq!(status == 405, !is_served, "{method} {path}: {status} {text}");
        }
    }
}

fn fields_of<T: DeserializeOwned>(name: &str) {
    let Err(error) = serde_json::from_str::<T>(r#"{"zz":0}"#) else { panic!("{name} takes anything") };
    let text = error.to_string();
    let taken: BTreeSet<&str> = text.split('`').skip(1).step_by(2).filter(|word| *word != "zz").collect();
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {name} | "))).expect(name);
    let is_field = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let told: BTreeSet<&str> = row.split('`').skip(1).step_by(2).filter(is_field).collect();
    assert_eq!(told, taken, "{name}: {text}");
}

#[test]
fn the_page_has_the_fields_of_the_bodies() {
    fields_of::<types::CreateTenantRequest>("CreateTenant");
    fields_of::<types::ChangeTenantRequest>("ChangeTenant");
    fields_of::<types::RotateTokenRequest>("Rotate");
    fields_of::<types::CreateAccessTokenRequest>("CreateToken");
    fields_of::<types::CreateTableRequest>("CreateTable");
    fields_of::<crate::triggers::TriggerDefinition>("CreateTrigger");
    fields_of::<types::ReplayTriggerRequest>("ReplayTrigger");
    fields_of::<types::CreateGrantRequest>("CreateGrant");
    fields_of::<types::PushRequest>("Push");
    fields_of::<types::ChangeBudgetRequest>("ChangeBudget");
    fields_of::<types::RecheckRequest>("Recheck");
    fields_of::<types::ChangeSlowRequest>("ChangeSlow");
    fields_of::<types::BeginMovesRequest>("BeginMoves");
    fields_of::<types::ChangeServerRequest>("ChangeServer");
    fields_of::<types::CancelMovesRequest>("CancelMoves");
}
