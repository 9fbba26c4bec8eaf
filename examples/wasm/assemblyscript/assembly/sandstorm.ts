// The host's functions for extensions in AssemblyScript, and the structs that they take: docs/modules.md says what each
// does. Addresses are usize; integers are little-endian.

// What sandstorm_start and sandstorm_poll answer.
export const PENDING: i32 = 0;
export const DONE: i32 = 1;
export const FAILED: i32 = 2;
export const AGAIN: i32 = 3;

// What the host's functions answer; also the codes of fail, of which OTHER is the extension's own.
export const OK: i32 = 0;
export const NOT_FOUND: i32 = 1;
export const CONFLICT: i32 = 2;
export const UNKNOWN_TABLE: i32 = 3;
export const OUT_OF_MEMORY: i32 = 4;
export const TOO_LARGE: i32 = 5;
export const NOT_A_NUMBER: i32 = 6;
export const WRONG_SERVER: i32 = 7;
export const INVALID: i32 = 8;
export const READ_ONLY: i32 = 9;
export const CONTENDED: i32 = 10;
export const NOT_ORDERED: i32 = 11;
export const OTHER: i32 = 100;

/** A record: what `get` fills. */
@unmanaged
export class RawRecord {
  value: usize;
  valueLen: u32;
  key: usize;
  keyLen: u32;
  version: u64;
  flags: u32;
  reserved: u32;
}

/** Options of a write. */
@unmanaged
export class RawWrite {
  condition: u32;
  flags: u32;
  version: u64;
  ttlMs: u64;
}

@external("sandstorm", "args_len")
export declare function argsLen(): u32;
@external("sandstorm", "args_copy")
export declare function argsCopy(to: usize): void;
@external("sandstorm", "now_ms")
export declare function nowMs(): u64;
@external("sandstorm", "table_by_name")
export declare function tableByName(name: usize, nameLen: u32, table: usize): i32;
@external("sandstorm", "get")
export declare function get(table: u64, hash: u64, key: usize, keyLen: u32, record: usize): i32;
@external("sandstorm", "get_copy")
export declare function getCopy(table: u64, key: usize, keyLen: u32, to: usize, capacity: u32, valueLen: usize): i32;
@external("sandstorm", "put")
export declare function put(
  table: u64,
  key: usize,
  keyLen: u32,
  value: usize,
  valueLen: u32,
  options: usize,
  version: usize,
): i32;
@external("sandstorm", "delete")
export declare function remove(table: u64, key: usize, keyLen: u32, options: usize): i32;
@external("sandstorm", "increment")
export declare function increment(table: u64, key: usize, keyLen: u32, delta: i64, sum: usize): i32;
@external("sandstorm", "scan")
export declare function scan(table: u64, cursor: usize, records: usize, limit: u32, filled: usize): i32;
@external("sandstorm", "range")
export declare function range(table: u64, range: usize, records: usize, limit: u32, filled: usize): i32;
@external("sandstorm", "reply")
export declare function reply(bytes: usize, len: u32): i32;
@external("sandstorm", "fail")
export declare function fail(code: u32, text: usize, textLen: u32): i32;
@external("sandstorm", "abort")
declare function hostAbort(cause: u32, text: usize, textLen: u32): void;

/** Fails the call with a code and a text. */
export function failed(code: i32, text: string): i32 {
  const bytes = String.UTF8.encode(text);
  fail(code, changetype<usize>(bytes), bytes.byteLength);
  return FAILED;
}

/** What AssemblyScript calls where others throw: the call is ended as by a panic. `--use abort=` names it. */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  const where = file === null ? "" : " at " + file + ":" + line.toString() + ":" + column.toString();
  const text = String.UTF8.encode((message === null ? "aborted" : message) + where);
  hostAbort(1, changetype<usize>(text), text.byteLength);
  unreachable();
}
