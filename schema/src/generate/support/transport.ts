/** What a call without a reply is. Those from "failed" to "timeout" are the server's, as docs/control.md lists them. */
export type SandstormCode =
  | "failed" // the extension returned an error, of some `kind`
  | "killed" // the server ended it, for some `cause_`
  | "conflict" // its transaction met others each time
  | "invalid" // the argument is not of its type: it has not run
  | "too_large"
  | "unknown_extension"
  | "unknown_function"
  | "unauthenticated" // no token, a wrong one, or one that is not for this
  | "suspended"
  | "over_quota"
  | "busy"
  | "overloaded"
  | "shutting_down"
  | "not_durable" // it ran, and a crash may take it back
  | "not_kept" // it ran, and there was no room to keep its answer until it was asked for again
  | "timeout" // no answer yet: it goes on, and may run
  | "wrong_server" // in a cluster: no server had its key in time, and it has not run
  | "reply" // it has run, and its reply is not of the type that this file has
  | "unreachable" // no server was reached: it has not run
  | "lost" // the connection ended before the answer: it may have run
  | "closed" // by `close`: it may have run, if it was under way
  | "cancelled" // by `signal`: it may run all the same
  | "protocol" // what answered is no server of Sandstorm
  | "unknown_table" // of a feed, as the next two
  | "not_logged" // the table has durability none
  | "too_old" // the log does not go back to that position: read the table anew
  | (string & {});

/** A call without a reply, from whichever transport: `code`, for some `cause_` or `kind`. */
export class SandstormError extends Error {
  /** HTTP's; 0 over RESP, and where there was no answer. */
  readonly status: number;
  readonly code: SandstormCode;
  /** What the code was called in the release before, where it has another name now; until the next release. */
  readonly oldCode: string | undefined;
  /** Why a call was killed, such as "panic". */
  readonly cause_: string | undefined;
  /** Of an error that the extension returned, such as "not_found". */
  readonly kind: string | undefined;
  /** Over HTTP: what to do about it, where the server says so. */
  readonly hint: string | undefined;

  constructor(
    status: number,
    said: { code: SandstormCode; message: string; cause?: string; kind?: string; hint?: string },
    below?: unknown,
  ) {
    super(said.message, below === undefined ? undefined : { cause: below });
    this.name = "SandstormError";
    this.status = status;
    // Older servers say the old one.
    this.code = said.code === OLD_UNAUTHENTICATED ? "unauthenticated" : said.code;
    this.oldCode = this.code === "unauthenticated" ? OLD_UNAUTHENTICATED : undefined;
    this.cause_ = said.cause;
    this.kind = said.kind;
    // Of a feed's error it may be null.
    this.hint = said.hint ?? undefined;
  }
}

const OLD_UNAUTHENTICATED = "unauthorised";

function failure(code: SandstormCode, message: string, below?: unknown): SandstormError {
  return new SandstormError(0, { code, message }, below);
}

/** Where the server is, and as whom to call. */
export interface SandstormOptions {
  /**
   * Over HTTP the control port, such as `https://db.example:7399`. Over RESP a port for Redis clients:
   * `redis://db.example:6379`, `rediss://…` with TLS, or `unix:/PATH`.
   */
  server: string;
  tenant: string;
  /** The tenant's. Over RESP it may be empty, at a port that acts for a tenant. */
  token: string;
  /** Milliseconds that a call may take, with all that it waits for, such as a connection; 2,000 by default. */
  timeoutMs?: number;
  /**
   * Over HTTP: how often a call is sent again when its connection is lost, or none was made; it runs once all the same.
   * 2 by default. Over RESP a call is sent once.
   */
  retries?: number;
  /**
   * Over RESP: connections at most; each runs one call after the other, so more are opened while calls are under way.
   * 4 by default.
   */
  connections?: number;
  /** Over RESP with TLS: what node's `tls.connect` takes, such as `ca` and `servername`. */
  tls?: Record<string, unknown>;
}

/** What a single call may say. */
export interface CallOptions {
  /** Ends the wait; the call may run all the same. */
  signal?: AbortSignal;
  /** Instead of that of the options. */
  timeoutMs?: number;
  /**
   * What the call is about, such as the key of a record that it reads. While a version is tried on a share of the calls,
   * all calls of a key go to the same one. In a cluster the call runs at the server that has the key.
   */
  key?: string | Uint8Array;
  /** A kept version of the extension, instead of the newest. Its types have to be those of this file. */
  version?: number;
  /** Is told what the call cost, also if it failed or was killed, before its promise is settled. */
  onCost?: (cost: CallCost) => void;
}

/** What one call cost its server, as docs/wire.md has it. */
export interface CallCost {
  /** Nanoseconds that it computed. */
  cpuNs: number;
  /** Nanoseconds from its arrival to its answer, and the part of them before its first turn. */
  wallNs: number;
  firstTurnNs: number;
  /** Its turns; between two of them it waited. Those that ended because it had computed for as long as one may. */
  turns: number;
  switches: number;
  /** Records that it read, and bytes of their values. */
  reads: number;
  readBytes: number;
  /** Tries of its transaction that came to the commit. */
  commitTries: number;
}

/** What carries calls: `HttpTransport`, `RespTransport`, or what a test puts in their place. */
export interface Transport {
  /**
   * Calls a function with its argument as JSON. The reply is as JSON has it, where an integer may be a `bigint` or its
   * digits, bytes a `Uint8Array`, and an object a `Map`.
   */
  call(name: string, json: string, options?: CallOptions): Promise<unknown>;
  /** Ends its connections; what is under way is rejected. */
  close(): Promise<void>;
}

/** A cost, of fields as the server names them: in a header, or in RESP. */
function callCost(field: (name: string) => unknown): CallCost {
  const of = (name: string) => Number(field(name) ?? 0);
  return {
    cpuNs: of("cpu_ns"),
    wallNs: of("wall_ns"),
    firstTurnNs: of("first_turn_ns"),
    turns: of("turns"),
    switches: of("switches"),
    reads: of("reads"),
    readBytes: of("read_bytes"),
    commitTries: of("commit_tries"),
  };
}

function transportOf(over: Transport | SandstormOptions): Transport {
  return "call" in over ? over : new HttpTransport(over);
}

async function callBy<A, R>(
  over: Transport,
  name: string,
  argument: readonly [Codec<A>, A] | null,
  reply: Codec<R>,
  options?: CallOptions,
): Promise<R> {
  const said = await over.call(name, argument === null ? "null" : (argument[0].write(argument[1]) ?? "null"), options);
  try {
    return reply.read(said);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw failure("reply", `${name} has run, and its reply is not of its type: ${why}`, error);
  }
}

const DEFAULT_TIMEOUT_MS = 2_000;
/** What timers can wait for. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;
/** Bytes of a key over HTTP, at most. */
const HTTP_KEY_BYTES = 256;
const encoder = new TextEncoder();

/** How long a call may take, all in all, and what ends its wait. */
interface CallLimit {
  readonly mostMs: number;
  readonly untilMs: number;
  readonly signal: AbortSignal | undefined;
}

function limitOf(timeoutMs = DEFAULT_TIMEOUT_MS, signal?: AbortSignal): CallLimit {
  const mostMs = Math.min(Math.max(timeoutMs, 0), LONGEST_TIMEOUT_MS);
  return { mostMs, untilMs: performance.now() + mostMs, signal };
}

/** Waits, but no longer than the call may take, nor when it is cancelled. */
function waitWithin(ms: number, limit: CallLimit): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      limit.signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, Math.min(ms, leftMs(limit)));
    limit.signal?.addEventListener("abort", done);
    if (limit.signal?.aborted) done();
  });
}

function leftMs({ untilMs }: CallLimit): number {
  return Math.max(0, untilMs - performance.now());
}

function keyBytes(key: string | Uint8Array): Uint8Array {
  const bytes = typeof key === "string" ? encoder.encode(key) : key;
  if (bytes.length === 0) throw failure("invalid", "a call's key has at least a byte");
  return bytes;
}

/** A key as a header has it: byte for byte, where it can. */
function keyHeader(key: string | Uint8Array): string {
  const text = String.fromCharCode(...keyBytes(key).subarray(0, HTTP_KEY_BYTES + 1));
  if (text.length > HTTP_KEY_BYTES || /[\x00-\x1f\x7f]|^ | $/.test(text)) {
    const what = `1 to ${HTTP_KEY_BYTES} bytes without control characters, and without spaces around it`;
    throw failure("invalid", `over HTTP a call's key is ${what}: call over RESP`);
  }
  return text;
}
/** Connections of a RESP transport unless its options say otherwise: a few slow calls do not hold up the others. */
const DEFAULT_CONNECTIONS = 4;

/**
 * JSON whose integers of 16 digits and more are texts of their digits: a number would be rounded. `undefined`: it is
 * none.
 */
function parsedJson(text: string): unknown {
  const token = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  const exact = (part: string) => (/^-?\d{16,}$/.test(part) ? `"${part}"` : part);
  try {
    return JSON.parse(/\d{16}/.test(text) ? text.replace(token, exact) : text);
  } catch {
    return undefined;
  }
}

function isFailure(said: unknown): said is { code: string; message: string; cause?: string; kind?: string; hint?: string; server?: string } {
  if (typeof said !== "object" || said === null) return false;
  return "code" in said && typeof said.code === "string" && "message" in said;
}
