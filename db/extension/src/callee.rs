//! What code that calls another extension hands over, as that extension takes it.

use std::borrow::Cow;

use sandstorm_api::abi::{STATUS_INVALID, STATUS_NOT_FOUND};
use sandstorm_api::typed::callee::{self, CalleeName};
use sandstorm_schema::{ExtensionSchema, fingerprint};

/// Why a call cannot be made: the kind of the error, and its text.
pub type CalleeRefusal = (u32, String);

/// The arguments that an extension with these typed functions gets of a call from code: behind the function's
/// fingerprint, if the caller named one and has its types.
///
/// # Errors
/// The extension has no such function, or it takes other types.
pub fn callee_arguments<'a>(
    schema: Option<&ExtensionSchema>,
    name: CalleeName<'_>,
    args: &'a [u8],
) -> Result<Cow<'a, [u8]>, CalleeRefusal> {
    let CalleeName { extension, function, types } = name;
    let invalid = |text: String| Err((STATUS_INVALID, text));
    let Some(schema) = schema else {
        return if function.is_some() { invalid(callee::not_typed(extension)) } else { Ok(Cow::Borrowed(args)) };
    };
    let Some(function) = function else {
        // Bytes that are a whole call of a function are taken, as from clients.
        let called = args.first_chunk::<4>().map(|first| u32::from_le_bytes(*first));
        let is_call = called.is_some_and(|called| schema.functions.iter().any(|one| one.fingerprint == called));
        let first = schema.functions.first().map_or("", |one| one.name.as_str());
        return if is_call { Ok(Cow::Borrowed(args)) } else { invalid(callee::bytes_for_typed(extension, first)) };
    };
    let Some(found) = schema.function(Some(function)) else {
        let there: Vec<&str> = schema.functions.iter().map(|one| one.name.as_str()).collect();
        return Err((STATUS_NOT_FOUND, callee::no_function(function, &there)));
    };
    match types {
        None => invalid(callee::bytes_for_typed(extension, function)),
        Some(types) if fingerprint(types) != found.fingerprint => {
            invalid(callee::other_types(extension, &schema.types_text(found), types))
        }
        Some(_) => Ok(Cow::Owned([&found.fingerprint.to_le_bytes(), args].concat())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"functions": [{"name": "pay", "args": "Pay", "reply": "u64"},
        {"name": "total", "args": "()", "reply": "u64"}],
        "types": [{"name": "Pay", "struct": {"fields": [{"name": "to", "type": "String"}]}}]}"#;

    fn of(name: &str, args: &[u8]) -> Result<Vec<u8>, CalleeRefusal> {
        let schema = ExtensionSchema::parse(SCHEMA).expect("a schema");
        callee_arguments(Some(&schema), CalleeName::parse(name), args).map(Cow::into_owned)
    }

    #[test]
    fn a_function_is_found_by_its_name_and_takes_its_own_types_alone() {
        let schema = ExtensionSchema::parse(SCHEMA).expect("a schema");
        let types = schema.types_text(&schema.functions[0]);
        assert_eq!(types, "sandstorm call 1\npay(Pay) u64\nstruct Pay { to: String }\n");
        let called = of(&CalleeName::with_types("bank.pay", &types), b"x").expect("its types");
        assert_eq!(called, [&schema.functions[0].fingerprint.to_le_bytes()[..], b"x"].concat());
        // As a client would call it.
        assert_eq!(of("bank", &called), Ok(called));
        let (code, text) = of(&CalleeName::with_types("bank.pay", &types.replace("to:", "dest:")), b"x").unwrap_err();
        assert_eq!(code, STATUS_INVALID);
        assert!(
            text.contains("`struct Pay { dest: String }` in the caller, `struct Pay { to: String }` there"),
            "{text}"
        );
        assert!(text.contains("sandstorm ext show bank"), "{text}");
        let (code, text) = of(&CalleeName::with_types("bank.buy", &types), b"").unwrap_err();
        assert!(code == STATUS_NOT_FOUND && text.contains("there are pay, total"), "{text}");
        for (name, function) in [("bank", "pay"), ("bank.total", "total")] {
            let (code, text) = of(name, b"bytes").unwrap_err();
            assert_eq!(code, STATUS_INVALID);
            assert!(text.contains(&format!("db.call_typed(\"bank.{function}\"")), "{text}");
        }
        // However long a caller makes it.
        let many = CalleeName::with_types("bank.pay", &format!("{}{types}", "\n".repeat(55_000)));
        let (code, text) = of(&many, b"x").unwrap_err();
        assert!(code == STATUS_INVALID && text.contains("`` in the caller, `sandstorm call 1` there"), "{text}");
        let (code, text) = of(&format!("bank.{}", "\u{7f}".repeat(60_000)), b"x").unwrap_err();
        assert!(code == STATUS_NOT_FOUND && text.len() < 600, "{}", text.len());
        let (_, text) = callee_arguments(None, CalleeName::parse("bank.pay"), b"").unwrap_err();
        assert!(text.contains("db.call(\"bank\", bytes)"), "{text}");
        assert_eq!(callee_arguments(None, CalleeName::parse("bank"), b"any"), Ok(Cow::Borrowed(&b"any"[..])));
    }
}
