//! docs/control.md lists the routes that exist, their permissions, and the fields of their bodies.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::*;

const PAGE: &str = include_str!("../../../../../docs/control.md");
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Method, path and who may, of each row about a route.
fn routes() -> Vec<(&'static str, &'static str, &'static str)> {
    let route = |line: &'static str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (method, path) = cells.next()?.strip_suffix('`')?.split_once(' ')?;
        METHODS.contains(&method).then_some((method, path, cells.next()?))
    };
    PAGE.lines().filter_map(route).collect()
}

/// Whether a path is one of a route's.
fn is_of(path: &str, route: &str) -> bool {
    let (path, route): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), route.split('/').collect());
    let fits = |(part, of): (&&str, &&str)| of.starts_with('{') || part == of;
    path.len() == route.len() && path.iter().zip(&route).all(fits)
}

#[test]
fn the_page_has_the_routes_and_methods_that_there_are() {
    let server = Server::without_builder();
    let routes = routes();
    let paths: BTreeSet<&str> = routes.iter().map(|(_, path, _)| *path).collect();
    for path in &paths {
        let there = path.replace(['{', '}'], "");
        for method in METHODS {
            // A method that a route does not have is refused without a check of the token.
            let (status, text) = server.raw(method, &there, None, b"");
            let told = routes.iter().any(|(of, route, _)| (of, route) == (&method, path));
            let expected = match (told, *path) {
                (true, "/v1/health") => 200,
                (true, _) => 401,
                (false, _) => 405,
            };
            assert_eq!(status, expected, "{method} {path}: {text}");
        }
    }
    let router = include_str!("../routes.rs").split('"').skip(1).step_by(2);
    let served: BTreeSet<&str> =
        router.filter(|text| *text == "/metrics" || (text.starts_with("/v1/") && text.len() > 4)).collect();
    assert_eq!(served, paths, "what the router has, and what the page has");
}

#[test]
fn the_page_says_who_may() {
    let mut looked_at = 0;
    for (method, route, who) in routes() {
        let Some((_, path, _, [_, own, other, none])) =
            MATRIX.iter().find(|(of, path, ..)| *of == method && is_of(path, route))
        else {
            continue;
        };
        looked_at += 1;
        let is_so = match who {
            "anyone" => *none == 200,
            "either" => *own == 200 && *other == 200 && *none == 401,
            "tenant" => *own != 403 && *other == 403,
            "operator" => *own == 403 && *other == 403,
            _ => false,
        };
        assert!(is_so, "{method} {path}: {who:?}");
    }
    assert!(looked_at > 25, "{looked_at}");
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
    fields_of::<types::CreateTableRequest>("CreateTable");
    fields_of::<types::CreateGrantRequest>("CreateGrant");
    fields_of::<types::PushRequest>("Push");
    fields_of::<types::ChangeBudgetRequest>("ChangeBudget");
    fields_of::<types::RecheckRequest>("Recheck");
    fields_of::<types::ChangeSlowRequest>("ChangeSlow");
}
