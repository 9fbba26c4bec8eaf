// The k records with the highest scores, of those that a list names.
//
// Arguments: table u64, k u32, then the key of the list. The list's value is `len u16, key`, repeated. Each record begins
// with its score (u64). Reply: for each of the best, score u64, key length u16, key; the highest score comes first.
// Integers are little-endian. Keys without a record, or with a shorter one, are left out.
import * as sandstorm from "./sandstorm";

class Entry {
  constructor(
    public score: u64,
    public key: usize,
    public keyLen: u16,
  ) {}
}

const ARGS_LEN: u32 = 12;

/** Puts an entry behind those of higher or equal scores, of which at most k are kept. */
function insert(best: Entry[], entry: Entry, k: u32): void {
  let at = best.length;
  while (at > 0 && best[at - 1].score < entry.score) at--;
  if (<u32>at >= k) return;
  best.push(entry);
  for (let from = best.length - 1; from > at; from--) best[from] = best[from - 1];
  best[at] = entry;
  if (<u32>best.length > k) best.pop();
}

export function sandstorm_start(slot: i32, invocation: usize): i32 {
  // The header of the invocation: the arguments' address at 4, their length at 8.
  const args = load<usize>(invocation, 4);
  const argsLen = load<u32>(invocation, 8);
  if (argsLen < ARGS_LEN) return sandstorm.failed(sandstorm.INVALID, "args: table u64, k u32, key of the list");
  const table = load<u64>(args);
  const k = load<u32>(args, 8);
  const record = new sandstorm.RawRecord();
  const out = changetype<usize>(record);
  let status = sandstorm.get(table, 0, args + ARGS_LEN, argsLen - ARGS_LEN, out);
  if (status != sandstorm.OK) return sandstorm.failed(status, "the list cannot be read");
  let at = record.value;
  const end = at + record.valueLen;
  const best: Entry[] = [];
  while (at < end) {
    // Lengths are compared, never addresses beyond the end: they would wrap around.
    if (end - at < 2 || end - at - 2 < load<u16>(at)) return sandstorm.failed(sandstorm.INVALID, "the list is cut short");
    const keyLen = load<u16>(at);
    const key = at + 2;
    status = sandstorm.get(table, 0, key, keyLen, out);
    if (status == sandstorm.OK && record.valueLen >= 8) insert(best, new Entry(load<u64>(record.value), key, keyLen), k);
    else if (status != sandstorm.OK && status != sandstorm.NOT_FOUND) return sandstorm.failed(status, "a record cannot be read");
    at = key + keyLen;
  }
  const head = memory.data(10);
  for (let index = 0; index < best.length; index++) {
    const entry = best[index];
    store<u64>(head, entry.score);
    store<u16>(head, entry.keyLen, 8);
    if (sandstorm.reply(head, 10) != sandstorm.OK || sandstorm.reply(entry.key, entry.keyLen) != sandstorm.OK)
      return sandstorm.failed(sandstorm.TOO_LARGE, "the reply is too long");
  }
  return sandstorm.DONE;
}
