//! Advice: what to write in place of something that is refused.

/// In place of a module of the standard library; empty: `core` and `alloc` have the rest of it.
pub(super) fn instead_of_std(module: &str) -> &'static str {
    match module {
        "collections" => "`sandstorm_api::collections` has a `HashMap`, the prelude a `BTreeMap`",
        "time" => "`db.now_ms()` is the time",
        "thread" | "sync" | "task" => "a call is one task: `get_many` reads at once, and others run while it waits",
        "fs" | "net" | "env" | "process" | "io" | "os" | "path" => {
            "an extension reaches its tenant's tables alone: what comes from elsewhere comes as arguments, or is a record"
        }
        _ => "",
    }
}

/// In place of a macro.
pub(super) fn instead_of_macro(name: &str) -> String {
    let advice = match name {
        "println" | "print" | "eprintln" | "eprint" | "dbg" => "`info!` writes a line to the tenant's log",
        "include_str" | "include_bytes" | "include" | "env" | "option_env" => "write the constant in the source",
        "thread_local" | "lazy_static" => "only records last longer than a call",
        _ => "a function or a closure will do",
    };
    format!("`{name}!`; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_newcomers_look_for_has_something_in_its_place() {
        assert!(instead_of_std("collections").contains("sandstorm_api::collections"));
        assert!(instead_of_std("fs").contains("as arguments"));
        assert_eq!(instead_of_std("cmp"), "");
        assert!(
            instead_of_macro("println").starts_with("`println!`") && instead_of_macro("println").contains("`info!`")
        );
        assert!(instead_of_macro("my_own").contains("function"));
    }
}
