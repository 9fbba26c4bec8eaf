const decoder = new TextDecoder("utf-8", { fatal: true });
/** Bytes of an answer, at most: a server writes 1 MiB of a typed one. */
const ANSWER_BYTES = 4 << 20;
/** Values within values: types nest 16 deep, and each may be a variant with something in it. */
const ANSWER_DEPTH = 64;
const INCOMPLETE = Symbol("incomplete");
const PUSHED = Symbol("pushed");

class RespErrorText {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** Reads answers of RESP3 from pieces of them. */
class RespReader {
  private bytes = new Uint8Array(0);
  private at = 0;

  push(bytes: Uint8Array): void {
    const left = this.bytes.subarray(this.at);
    if (left.length > ANSWER_BYTES) throw new Error(`an answer of over ${ANSWER_BYTES} bytes`);
    const joined = new Uint8Array(left.length + bytes.length);
    joined.set(left);
    joined.set(bytes, left.length);
    [this.bytes, this.at] = [joined, 0];
  }

  /** The next answer; INCOMPLETE: there is none yet. */
  next(): unknown {
    const begin = this.at;
    try {
      return this.value(0);
    } catch (error) {
      if (error !== INCOMPLETE) throw error;
      this.at = begin;
      return INCOMPLETE;
    }
  }

  private value(depth: number): unknown {
    if (depth > ANSWER_DEPTH) throw new Error("values are nested too deep");
    const line = this.line();
    const rest = line.slice(1);
    switch (line[0]) {
      case "+":
        return rest;
      case "-":
        return new RespErrorText(rest);
      case ":":
      case "(":
        if (!/^-?\d+$/.test(rest)) throw new Error("no integer");
        return BigInt(rest);
      case ",":
        return rest === "inf" ? Infinity : rest === "-inf" ? -Infinity : Number(rest);
      case "#":
        return rest === "t";
      case "_":
        return null;
      case "$":
        return rest === "-1" ? null : this.bulk(rest);
      case "!":
        return new RespErrorText(decoder.decode(this.bulk(rest)));
      case "=":
        return this.bulk(rest).subarray(4);
      case "*":
      case "~":
        return rest === "-1" ? null : this.list(this.count(rest, 1), depth);
      case ">":
        this.list(this.count(rest, 1), depth);
        return PUSHED;
      case "%": {
        const pairs = this.list(this.count(rest, 2), depth);
        const map = new Map<string, unknown>();
        for (let at = 0; at < pairs.length; at += 2) map.set(textOf(pairs[at]), pairs[at + 1]);
        return map;
      }
      case "|":
        this.list(this.count(rest, 2), depth);
        return this.value(depth);
      default:
        throw new Error(`an answer that begins with ${JSON.stringify(line[0] ?? "")}`);
    }
  }

  private line(): string {
    const end = this.bytes.indexOf(10, this.at);
    if (end < 0) throw INCOMPLETE;
    if (this.bytes[end - 1] !== 13) throw new Error("a line without its end");
    const line = decoder.decode(this.bytes.subarray(this.at, end - 1));
    this.at = end + 1;
    return line;
  }

  /** So many values, of which each has 3 bytes at least. */
  private count(digits: string, each: number): number {
    const count = Number(digits) * each;
    if (!/^\d+$/.test(digits) || count > ANSWER_BYTES / 3) throw new Error("a count that cannot be");
    return count;
  }

  private list(count: number, depth: number): unknown[] {
    const values: unknown[] = [];
    while (values.length < count) values.push(this.value(depth + 1));
    return values;
  }

  private bulk(digits: string): Uint8Array {
    const length = Number(digits);
    if (!/^\d+$/.test(digits) || length > ANSWER_BYTES) throw new Error("a length that cannot be");
    const end = this.at + length;
    if (this.bytes.length < end + 2) throw INCOMPLETE;
    const bytes = this.bytes.slice(this.at, end);
    this.at = end + 2;
    return bytes;
  }
}

/** The error that a server's line says, with the code that it has over HTTP. */
function errorOf(line: string): SandstormError {
  const [, word = "", rest = ""] = /^(\S*) ?([\s\S]*)$/.exec(line) ?? [];
  // As in `FAILED (not_found) no such order`.
  const [, name = "unknown", message = rest] = /^\((\w+)\) ?([\s\S]*)$/.exec(rest) ?? [];
  if (word === "FAILED") return new SandstormError(0, { code: "failed", message, kind: name });
  if (word === "KILLED") {
    return new SandstormError(0, { code: "killed", message: `the call was killed (${name}): ${message}`, cause: name });
  }
  // As in `MOVED 130 10.0.0.2:6379`.
  if (word === "MOVED") return new ElsewhereError(rest, rest.split(" ")[1]);
  if (word === "TRYAGAIN" || word === "CLUSTERDOWN" || word === "CROSSSLOT") return new ElsewhereError(rest);
  return failure(ERROR_CODES[word] ?? (word === "ERR" ? refusal(rest) : word.toLowerCase()), rest);
}

const ERROR_CODES: Record<string, SandstormCode | undefined> = {
  OVERQUOTA: "over_quota",
  TOOLARGE: "too_large",
  BUSY: "overloaded",
  LOADING: "shutting_down",
  MISCONF: "not_durable",
  NOAUTH: "unauthenticated",
  WRONGPASS: "unauthenticated",
};

/** What an error without a word of its own is about. */
function refusal(text: string): SandstormCode {
  if (text === "Function not found" || text.startsWith("Version not found: ")) return "unknown_extension";
  if (text.startsWith("Function not found: ")) return "unknown_function";
  if (text.startsWith("the call has run")) return "reply";
  if (text.startsWith("the JSON of a typed function has at most")) return "too_large";
  return "invalid";
}
