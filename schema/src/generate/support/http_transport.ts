/** Times that a call over HTTP is sent again, unless the options say otherwise. */
const DEFAULT_RETRIES = 2;
/** Milliseconds before a call is sent again; twice as long before the next time. A part of it is left to chance. */
const RETRY_PAUSE_MS = 50;
/** Milliseconds that a server waits for a call over HTTP, at most. */
const SERVER_TIMEOUT_MS = 60_000;
/** Bytes of a response, at most: a server makes JSON of about 4 MiB. */
const HTTP_ANSWER_BYTES = 8 << 20;
/** Servers of a cluster that are remembered besides the first one, at most: as many as a cluster may have. */
const HTTP_SERVERS = 64;
/** What may be followed: the URL of a server, without a user, a path or a query. */
const SERVER_URL = /^https?:\/\/[^\/?#@\\\s]+$/i;
/** Milliseconds for a page of changes, besides its wait: as with the Rust client. */
const PAGE_TIMEOUT_MS = 60_000;
/** How a call has ended, or that it goes on; other codes of a response say nothing of an earlier request. */
const ENDS_OF_A_CALL = [
  "failed", "killed", "conflict", "reply", "not_durable", "not_kept", "stopped", "timeout", "cancelled",
];

/**
 * Calls over HTTP, by `fetch`, and the changes of tables. In a cluster a call with a `key` runs at the server that has
 * it; a feed has the changes of the server that is asked.
 */
export class HttpTransport implements Transport {
  private readonly options: SandstormOptions;
  /** Where the keys of a slot were found. */
  private readonly owners = new Map<number, string>();
  /** The servers that are known, the first one included: which start of each has answered last. The latest is last. */
  private readonly starts = new Map<string, string | undefined>();
  /** Pages of changes that are asked for, and pauses of feeds. */
  private readonly waits = new Set<AbortController>();
  private isClosed = false;

  constructor(options: SandstormOptions) {
    this.options = options;
    this.starts.set(options.server, undefined);
  }

  async call(name: string, json: string, options: CallOptions = {}): Promise<unknown> {
    const { onCost, version } = options;
    const query = version === undefined ? [] : [`version=${version}`];
    if (onCost === undefined) return this.run(pathOf(name, query), json, options);
    let told: CallCost | undefined;
    try {
      return await this.run(pathOf(name, [...query, "cost=true"]), json, options, (cost) => (told = cost));
    } finally {
      // Once the call has ended: what the caller's function throws is no failure of it.
      if (told !== undefined) onCost(told);
    }
  }

  private async run(
    name: string,
    json: string,
    { signal, timeoutMs, key }: CallOptions,
    note?: (cost: CallCost) => void,
  ): Promise<unknown> {
    const limit = limitOf(timeoutMs ?? this.options.timeoutMs, signal);
    const slot = key === undefined ? undefined : slotOf(keyBytes(key));
    const headers: Record<string, string> = {
      authorization: `Bearer ${this.options.token}`,
      "content-type": "application/json",
      "idempotency-key": crypto.randomUUID(),
      ...(key === undefined ? {} : { "sandstorm-key": keyHeader(key) }),
    };
    const request = { method: "POST", headers, body: json };
    let server = (slot === undefined ? undefined : this.owners.get(slot)) ?? this.options.server;
    // Of a request that may have run. From then on the call is that server's, and that start's.
    let lost: SandstormError | undefined;
    let repeats = 0;
    for (let hop = 1; ; hop++) {
      const start = this.starts.get(server);
      // What the server waits for at most. It answers what has no time left, too.
      headers["sandstorm-timeout-ms"] = String(Math.min(Math.max(1, Math.ceil(leftMs(limit))), SERVER_TIMEOUT_MS));
      try {
        return await this.send(server, name, request, limit, note);
      } catch (error) {
        if (!(error instanceof SandstormError)) throw error;
        if (error instanceof ElsewhereError && slot !== undefined && lost === undefined) {
          const owner = this.follows(slot, error);
          // As over RESP.
          if (owner !== undefined && owner !== server && hop % CLUSTER_HOPS !== 0) {
            server = owner;
            continue;
          }
          if (leftMs(limit) <= CLUSTER_PAUSE_MS) throw error;
          await waitWithin(CLUSTER_PAUSE_MS, limit);
          server = this.options.server;
          continue;
        }
        if (hasNoAnswer(error)) this.forget(server);
        const mayRepeat = error.code === "unreachable" || (error.code === "lost" && (lost ?? start) !== undefined);
        if (!mayRepeat || repeats >= (this.options.retries ?? DEFAULT_RETRIES) || leftMs(limit) === 0) {
          throw lost === undefined || ENDS_OF_A_CALL.includes(error.code) ? error : lost;
        }
        if (lost === undefined && error.code === "lost" && start !== undefined) {
          lost = error;
          // A server that has started since does not run it.
          headers["sandstorm-start"] = start;
        }
        if (lost === undefined) server = this.options.server;
        await waitWithin(retryPauseMs(repeats++), limit);
      }
    }
  }

  /** Where the log of a table's changes ends now: what is read of the table from now on has all before. */
  async endOfChanges(table: string, options: { signal?: AbortSignal } = {}): Promise<string> {
    return (await this.page(table, undefined, 0, options.signal)).next;
  }

  /**
   * The changes of a table behind a position, in their order: `for await (const change of http.changes("items", from))`.
   * Without a position: those from the first step on. The table needs durability.
   */
  changes(table: string, from?: string, options: ChangeFeedOptions = {}): ChangeFeed {
    const ask = (after: string | undefined, waitS: number) => this.page(table, after, waitS, options.signal);
    const pause = (ms: number) =>
      this.untilClosed(options.signal, (ends) => waitWithin(ms, limitOf(ms, ends)));
    return new ChangeFeed({ ask, pause }, from, options);
  }

  /** Ends feeds that wait for changes; the connections are those of `fetch`. */
  async close(): Promise<void> {
    this.isClosed = true;
    this.waits.forEach((wait) => wait.abort());
  }

  /** Does what ends when the transport is closed, and with the caller's signal. */
  private async untilClosed<T>(signal: AbortSignal | undefined, run: (ends: AbortSignal) => Promise<T>): Promise<T> {
    const ends = new AbortController();
    const cancel = () => ends.abort(signal?.reason);
    signal?.addEventListener("abort", cancel);
    if (signal?.aborted || this.isClosed) cancel();
    this.waits.add(ends);
    try {
      return await run(ends.signal);
    } finally {
      this.waits.delete(ends);
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** A page of changes, or the end of the log. It is asked for again if the connection was lost. */
  private async page(table: string, after: string | undefined, waitS: number, signal?: AbortSignal): Promise<ChangePage> {
    const { server, tenant, token, retries = DEFAULT_RETRIES } = this.options;
    const place = `${encodeURIComponent(tenant)}/tables/${encodeURIComponent(table)}/changes?wait_s=${waitS}`;
    const from = after === undefined ? "" : `&after=${encodeURIComponent(after)}`;
    const request = { headers: { authorization: `Bearer ${token}` } };
    return this.untilClosed(signal, async (ends) => {
      for (let repeats = 0; ; repeats++) {
        if (this.isClosed) throw closedFailure();
        const limit = limitOf(PAGE_TIMEOUT_MS + waitS * 1_000, ends);
        try {
          const answer = await exchanged(`${server}/v1/tenants/${place}${from}`, request, limit, PAGE_BYTES, "ask again");
          return changePageOf(saidBy(answer));
        } catch (error) {
          if (this.isClosed) throw closedFailure();
          const mayRepeat = error instanceof SandstormError && ["lost", "unreachable"].includes(error.code);
          if (!mayRepeat || repeats >= retries) throw error;
        }
        await waitWithin(retryPauseMs(repeats), limitOf(PAGE_TIMEOUT_MS, ends));
      }
    });
  }

  /** Where a key is that another server has, if the token may be sent there. */
  private follows(slot: number, { owner }: ElsewhereError): string | undefined {
    if (owner === undefined || !SERVER_URL.test(owner)) return undefined;
    const [own, found] = [this.options.server, owner].map(schemeOf);
    if (found === undefined || (found !== "https:" && own !== "http:")) return undefined;
    this.remember(owner);
    this.owners.set(slot, owner);
    return owner;
  }

  /** Notes a server, and forgets the one that was noted longest ago if there are too many. */
  private remember(server: string, start = this.starts.get(server)): void {
    this.starts.delete(server);
    this.starts.set(server, start);
    if (this.starts.size <= HTTP_SERVERS + 1) return;
    for (const known of this.starts.keys()) {
      if (known === this.options.server) continue;
      this.starts.delete(known);
      this.forget(known);
      return;
    }
  }

  /** Forgets what was found at a server that has not answered: it may be another one's now. */
  private forget(server: string): void {
    for (const [slot, owner] of this.owners) if (owner === server) this.owners.delete(slot);
  }

  private async send(
    server: string,
    name: string,
    request: RequestInit,
    limit: CallLimit,
    note?: (cost: CallCost) => void,
  ): Promise<unknown> {
    const url = `${server}/v1/call/${encodeURIComponent(this.options.tenant)}/${name}`;
    const noteStart = (header: HeaderReader) => {
      const start = header("sandstorm-start");
      if (start !== null) this.remember(server, start);
    };
    const answer = await exchanged(url, request, limit, HTTP_ANSWER_BYTES, MAY_RUN, noteStart);
    const cost = answer.header("sandstorm-cost");
    // Such as `cpu_ns=4100, wall_ns=9000`.
    if (cost !== null) note?.(callCost((field) => new RegExp(`\\b${field}=(\\d+)`).exec(cost)?.[1]));
    return saidBy(answer);
  }
}

/** What is said where an answer is missing: the call may have run. */
const MAY_RUN = "the call may have run";

type HeaderReader = (name: string) => string | null;

/** The response to a request. */
interface HttpAnswer {
  status: number;
  isGood: boolean;
  header: HeaderReader;
  text: string;
}

/** Sends a request and reads its response. `uncertain` is said where there is none. */
async function exchanged(
  url: string,
  request: RequestInit,
  limit: CallLimit,
  mostBytes: number,
  uncertain: string,
  noteHead?: (header: HeaderReader) => void,
): Promise<HttpAnswer> {
  const signal = limit.signal;
  const ends = new AbortController();
  const cancel = () => ends.abort();
  const timer = setTimeout(cancel, leftMs(limit));
  signal?.addEventListener("abort", cancel);
  try {
    if (signal?.aborted) cancel();
    const response = await fetch(url, { ...request, signal: ends.signal });
    const header = (name: string) => response.headers.get(name);
    noteHead?.(header);
    const text = await boundedText(response.body, ends, mostBytes, uncertain);
    return { status: response.status, isGood: response.ok, header, text };
  } catch (error) {
    if (error instanceof SandstormError) throw error;
    if (signal?.aborted) throw failure("cancelled", `it was cancelled: ${uncertain}`, error);
    if (ends.signal.aborted) throw failure("timeout", `no answer in ${limit.mostMs} ms: ${uncertain}`, error);
    const below = (error as { cause?: { code?: unknown; message?: unknown } }).cause;
    const why = `${below?.message ?? error}`;
    if (NOTHING_SENT.test(`${below?.code}`)) throw failure("unreachable", `no answer from ${url}: ${why}`, error);
    throw lost(why, error, uncertain);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", cancel);
  }
}

/** What a response says, or the error that it is. */
function saidBy({ status, isGood, text }: HttpAnswer): unknown {
  const said = parsedJson(text);
  if (isGood && said !== undefined) return said;
  if (!isFailure(said)) {
    throw new SandstormError(status, { code: "protocol", message: `no answer of a server: ${text.slice(0, 200)}` });
  }
  throw said.code === "wrong_server" ? new ElsewhereError(said.message, said.server, status) : new SandstormError(status, said);
}

/** A part of the pause is left to chance. */
function retryPauseMs(repeats: number): number {
  return RETRY_PAUSE_MS * 2 ** repeats * (0.5 + Math.random() / 2);
}

function pathOf(name: string, query: string[]): string {
  return query.length === 0 ? name : `${name}?${query.join("&")}`;
}

/** The scheme of a URL in lower case, such as `https:`. `undefined`: it is none. */
function schemeOf(url: string): string | undefined {
  try {
    return new URL(url).protocol;
  } catch {
    return undefined;
  }
}

/** What node says of a connection that was not made, or whose certificate is not believed. */
const NOTHING_SENT =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|.*SELF_SIGNED.*|.*CERT_.*|UNABLE_TO_.*)$/;

/** The text of a response's body. */
async function boundedText(
  body: ReadableStream<Uint8Array> | null,
  ends: AbortController,
  mostBytes: number,
  uncertain: string,
): Promise<string> {
  const [reader, decoder] = [body?.getReader(), new TextDecoder()];
  let [text, bytes] = ["", 0];
  for (;;) {
    const piece = await reader?.read();
    if (piece === undefined || piece.done) return text + decoder.decode();
    bytes += piece.value.length;
    if (bytes > mostBytes) {
      ends.abort();
      throw failure("protocol", `an answer of over ${mostBytes} bytes; ${uncertain}`);
    }
    text += decoder.decode(piece.value, { stream: true });
  }
}
