//! Names of the kinds of errors that extensions return.

/// The name of a kind, as docs/extensions.md has it: of the number that comes with [`super::RpcStatus::Failed`].
/// `None` for a number that this version does not know.
///
/// ```
/// use sandstorm_net::rpc::failure_name;
///
/// assert_eq!(failure_name(1), Some("not_found"));
/// assert_eq!(failure_name(77), None);
/// ```
pub fn failure_name(code: u64) -> Option<&'static str> {
    Some(match code {
        1 => "not_found",
        2 => "conflict",
        3 => "unknown_table",
        4 => "out_of_memory",
        5 => "too_large",
        6 => "not_a_number",
        7 => "wrong_server",
        8 => "invalid",
        9 => "read_only",
        10 => "contended",
        13 => "callee_killed",
        14 => "not_read",
        17 => "not_backed",
        100 => "other",
        _ => return None,
    })
}
