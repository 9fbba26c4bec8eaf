//! Checks that the tables of docs/modules.md are what the code has: the functions of the host, their types, the structs
//! in a module's memory, the limits.

use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};

use sandstorm_sandbox::guest_types::{
    GuestChange, GuestCursor, GuestHeader, GuestKey, GuestKeys, GuestRange, GuestRangeRead, GuestRead, GuestRecord,
    GuestRow, GuestWrite,
};
use sandstorm_sandbox::layout::MAX_VARIABLES;
use sandstorm_sandbox::{HostFunction, NumberType};
use sandstorm_translator::limits;

const PAGE: &str = include_str!("../../docs/modules.md");

fn number(kind: &NumberType) -> &'static str {
    match kind {
        NumberType::I32 => "i32",
        NumberType::I64 => "i64",
    }
}

/// A function as the page writes it.
fn signature(function: HostFunction) -> String {
    let named = function.parameter_names().iter().zip(function.parameters());
    let parameters: Vec<String> = named.map(|(name, kind)| format!("{name}: {}", number(kind))).collect();
    let result = function.result().as_ref().map_or_else(String::new, |kind| format!(" -> {}", number(kind)));
    format!("{}({}){result}", function.name(), parameters.join(", "))
}

/// The first cell of each row of the page's tables, where it is code.
fn first_cells() -> BTreeSet<String> {
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    PAGE.lines().filter_map(cell).collect()
}

#[test]
fn the_page_has_every_function_that_may_be_imported_and_no_other() {
    let importable = HostFunction::ALL.iter().filter(|function| HostFunction::by_name(function.name()).is_some());
    let expected: BTreeSet<String> = importable.map(|function| signature(*function)).collect();
    let found: BTreeSet<String> = first_cells().into_iter().filter(|cell| cell.contains('(')).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_parameter_of_a_function_has_a_name() {
    for function in HostFunction::ALL {
        assert_eq!(function.parameter_names().len(), function.parameters().len(), "{}", function.name());
    }
}

/// A struct's row: its size, and where its fields lie.
macro_rules! row {
    ($name:literal, $kind:ty, $($field:ident $shown:literal),*) => {{
        let fields = [$(format!("{} `{}` {}", offset_of!($kind, $field), stringify!($field), $shown)),*];
        format!("| `{}` | {} | {} |", $name, size_of::<$kind>(), fields.join(", "))
    }};
}

#[test]
fn the_page_has_the_structs_as_they_lie_in_memory() {
    let rows = [
        row!("header", GuestHeader, host "i32", args "i32", args_len "i32", padding "i32", now_ms "i64", interleave "i32",
            transaction "i32", arena_next "i32", arena_end "i32", arena_limit "i32", arena_free "24 of i32", notes "i32",
            log_level "i32", nested "i32"),
        row!("record", GuestRecord, value "i32", value_len "i32", key "i32", key_len "i32", version "i64", flags "i32",
            reserved "i32"),
        row!("key", GuestKey, first "i32", len "i32"),
        row!("write", GuestWrite, condition "i32", flags "i32", version "i64", ttl_ms "i64"),
        row!("cursor", GuestCursor, position "i64", finished "i64"),
        row!("range", GuestRange, from "i32", from_len "i32", to "i32", to_len "i32", backward "i32", past "i32",
            finished "i32", reserved "i32"),
        row!("keys", GuestKeys, bytes "i32", bytes_len "i32", ends "i32", ends_len "i32", filled "i32"),
        row!("row", GuestRow, key "i32", key_len "i32", version "i64"),
        row!("range_read", GuestRangeRead, table "i64", from "i32", from_len "i32", to "i32", to_len "i32", rows "i32",
            rows_len "i32", included "i32", backward "i32"),
        row!("read", GuestRead, table "i64", hash "i64", key "i32", key_len "i32", version "i64"),
        row!("change", GuestChange, table "i64", key "i32", key_len "i32", value "i32", value_len "i32",
            expires_at_ms "i64", flags "i32", kind "i32"),
    ];
    for row in rows {
        assert!(PAGE.lines().any(|line| line == row), "the page lacks this line:\n{row}");
    }
}

/// A number as the page writes it.
fn grouped(number: usize) -> String {
    let (thousands, rest) = (number / 1_000, number % 1_000);
    if thousands == 0 { rest.to_string() } else { format!("{thousands},{rest:03}") }
}

#[test]
fn the_page_has_the_limits() {
    let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
    let rows = [
        format!("| module | {} |", mib(limits::MODULE_MAX_BYTES)),
        format!("| code of all functions | {} |", mib(limits::CODE_MAX_BYTES)),
        format!("| code of one function | {} KiB |", limits::FUNCTION_MAX_BYTES >> 10),
        format!(
            "| functions; types of functions | {}; {} |",
            grouped(limits::FUNCTIONS_MAX),
            grouped(limits::TYPES_MAX)
        ),
        format!(
            "| local variables of a function, parameters | {}; {} |",
            grouped(limits::LOCALS_MAX),
            grouped(limits::PARAMETERS_MAX)
        ),
        format!("| blocks within each other | {} |", limits::NESTING_MAX),
        format!("| entries of the table | {} |", grouped(limits::TABLE_MAX)),
        format!("| globals that change | {MAX_VARIABLES} |"),
        format!(
            "| data at the start; data segments | {} KiB; {} |",
            sandstorm_sandbox::limits::DATA_MAX_BYTES >> 10,
            grouped(sandstorm_sandbox::limits::DATA_SEGMENTS_MAX)
        ),
    ];
    for row in rows {
        assert!(PAGE.lines().any(|line| line.starts_with(&row)), "the page lacks this line:\n{row}");
    }
}
