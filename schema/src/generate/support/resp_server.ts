/** A port for Redis clients: connections to it are opened when they are needed. */
class RespServer {
  private readonly options: SandstormOptions;
  private readonly place: SocketPlace;
  private readonly pool: PooledConnection[];
  private isClosed = false;

  constructor(options: SandstormOptions) {
    this.options = options;
    this.place = placeOf(options);
    const count = Math.max(1, options.connections ?? DEFAULT_CONNECTIONS);
    this.pool = Array.from({ length: count }, () => ({ load: 0, connection: undefined, opening: undefined }));
  }

  /** Sends a command, and waits for its answer. */
  async call(words: CommandWord[], limit: CallLimit): Promise<unknown> {
    // The one with the fewest calls, the first of those: a program that calls one after the other has one connection.
    const pooled = this.pool.reduce((best, one) => (one.load < best.load ? one : best));
    pooled.load++;
    try {
      for (;;) {
        if (limit.signal?.aborted) throw notSent(limit);
        const connection = pooled.connection ?? (await withinLimit(this.opened(pooled), limit, this.place.text));
        if (connection.isUsable()) return await connection.send(words, limit);
        if (pooled.connection === connection) pooled.connection = undefined;
      }
    } finally {
      pooled.load--;
    }
  }

  /** Whether no call uses it. */
  isIdle(): boolean {
    return this.pool.every((pooled) => pooled.load === 0);
  }

  close(): void {
    this.isClosed = true;
    this.pool.forEach((pooled) => pooled.connection?.end(closedFailure()));
  }

  private opened(pooled: PooledConnection): Promise<RespConnection> {
    if (this.isClosed) return Promise.reject(closedFailure());
    // Calls that come meanwhile wait for the same one.
    pooled.opening ??= this.open()
      .then((connection) => {
        if (this.isClosed) connection.end(closedFailure());
        return (pooled.connection = connection);
      })
      .finally(() => (pooled.opening = undefined));
    return pooled.opening;
  }

  private async open(): Promise<RespConnection> {
    const { tenant, token } = this.options;
    const limit = limitOf(this.options.timeoutMs);
    const socket = await connected(this.place, limit);
    const connection = new RespConnection(socket, limit.mostMs);
    const identity = token === "" ? [] : ["AUTH", tenant === "" ? "default" : tenant, token];
    try {
      await connection.send(["HELLO", "3", ...identity], limit);
    } catch (error) {
      connection.end(failure("lost", "the connection was not opened"));
      if (!(error instanceof SandstormError)) throw error;
      // What ended while it was opened has carried no call.
      throw error.code === "lost" || error.code === "timeout" ? failure("unreachable", error.message, error) : error;
    }
    return connection;
  }
}

function closedFailure(): SandstormError {
  return failure("closed", "the transport was closed");
}

function notSent({ signal }: CallLimit): SandstormError {
  return failure("cancelled", "the call was cancelled: it was not sent", signal?.reason);
}

/** A connection, if it is there before the call's time is over. */
function withinLimit<T>(awaited: Promise<T>, limit: CallLimit, place: string): Promise<T> {
  return new Promise((resolve, reject) => {
    const cancel = () => give(notSent(limit));
    const late = () => give(failure("unreachable", `no connection to ${place} in ${limit.mostMs} ms: nothing was sent`));
    const timer = setTimeout(late, leftMs(limit));
    const settle = () => {
      clearTimeout(timer);
      limit.signal?.removeEventListener("abort", cancel);
    };
    const give = (error: unknown) => {
      settle();
      reject(error);
    };
    limit.signal?.addEventListener("abort", cancel);
    awaited.then((value) => {
      settle();
      resolve(value);
    }, give);
  });
}

/** A connection, or room for one: at most one at a time. */
interface PooledConnection {
  /** Calls that use it. */
  load: number;
  connection: RespConnection | undefined;
  opening: Promise<RespConnection> | undefined;
}

interface SocketPlace {
  module: string;
  options: Record<string, unknown>;
  text: string;
}

/** What is used of node's sockets; their own types need a package. */
interface NodeSocket {
  write(bytes: Uint8Array): boolean;
  on(event: string, listener: (given: never) => void): unknown;
  destroy(): unknown;
  ref(): unknown;
  unref(): unknown;
  setNoDelay(on: boolean): unknown;
}

function placeOf({ server, tls = {} }: SandstormOptions): SocketPlace {
  if (server.startsWith("unix:")) return { module: "node:net", options: { path: server.slice(5) }, text: server };
  const found = /^(rediss?):\/\/(\[[^\]]+\]|[^:/@]+)(?::(\d+))?\/?$/i.exec(server);
  if (found === null) {
    const forms = "redis://HOST:PORT, rediss://HOST:PORT or unix:/PATH";
    throw failure("invalid", `${JSON.stringify(server)} is no port for Redis clients: write ${forms}`);
  }
  const host = (found[2] ?? "").replace(/^\[|\]$/g, "");
  const where = { host, port: Number(found[3] ?? "6379") };
  if (found[1]?.toLowerCase() === "redis") return { module: "node:net", options: where, text: server };
  // A name is sent to the server that has several certificates; an address is none.
  const name = /^[\d.]+$|:/.test(host) ? {} : { servername: host };
  return { module: "node:tls", options: { ...where, ...name, ...tls }, text: server };
}

async function connected({ module, options, text }: SocketPlace, limit: CallLimit): Promise<NodeSocket> {
  // By a name that is not written here: tools that make bundles for browsers, where there are no sockets, pass it over.
  const sockets: { connect(options: Record<string, unknown>): NodeSocket } = await import(
    /* webpackIgnore: true */ /* @vite-ignore */ module
  );
  return new Promise((resolve, reject) => {
    const socket = sockets.connect(options);
    const give = (why: string, below?: unknown) => {
      clearTimeout(timer);
      socket.destroy();
      reject(failure("unreachable", `no connection to ${text}: ${why}`, below));
    };
    const timer = setTimeout(() => give(`nothing in ${limit.mostMs} ms`), leftMs(limit));
    socket.on("error", (error: Error) => give(error.message, error));
    socket.on("close", () => give("it was closed"));
    socket.on(module === "node:tls" ? "secureConnect" : "connect", () => {
      clearTimeout(timer);
      socket.setNoDelay(true);
      resolve(socket);
    });
  });
}

/** A call that waits for its answer. */
interface PendingCall {
  sentMs: number;
  take(answer: unknown): void;
  fail(error: SandstormError): void;
}

/** A connection: calls are sent at once, and answered in their order. */
class RespConnection {
  private readonly socket: NodeSocket;
  private readonly stallMs: number;
  private readonly reader = new RespReader();
  private readonly pending: PendingCall[] = [];
  /** Calls whose callers wait: one that was cancelled has none. */
  private waiting = 0;
  private heardMs = 0;
  private broken: SandstormError | undefined;

  constructor(socket: NodeSocket, stallMs: number) {
    this.socket = socket;
    this.stallMs = stallMs;
    socket.on("data", (bytes: Uint8Array) => this.receive(bytes));
    socket.on("error", (error: Error) => this.end(lost(error.message, error)));
    socket.on("close", () => this.end(lost("the server closed it")));
  }

  /** Whether another call may be sent. One that answers nothing for as long as an answer may take is given up. */
  isUsable(): boolean {
    const oldest = this.pending[0];
    if (oldest !== undefined && performance.now() - Math.max(oldest.sentMs, this.heardMs) > this.stallMs) {
      this.end(lost(`it has answered nothing for ${this.stallMs} ms`));
    }
    return this.broken === undefined;
  }

  send(words: CommandWord[], limit: CallLimit): Promise<unknown> {
    const signal = limit.signal;
    return new Promise((resolve, reject) => {
      if (this.broken !== undefined) return reject(this.broken);
      let isSettled = false;
      const settle = () => {
        if (isSettled) return;
        isSettled = true;
        clearTimeout(timer);
        signal?.removeEventListener("abort", cancel);
        // A program ends while it waits for nothing, as it does over HTTP.
        if (--this.waiting === 0) this.socket.unref();
      };
      const fail = (error: SandstormError) => {
        settle();
        reject(error);
      };
      // Its answer, if it comes, is taken in its turn and dropped.
      const cancel = () => fail(failure("cancelled", "the call was cancelled: it may run all the same", signal?.reason));
      const timer = setTimeout(() => {
        fail(failure("timeout", `no answer in ${limit.mostMs} ms: the call may run all the same`));
        this.isUsable();
      }, leftMs(limit));
      signal?.addEventListener("abort", cancel);
      const take = (answer: unknown) => {
        settle();
        if (answer instanceof RespErrorText) reject(errorOf(answer.text));
        else resolve(answer);
      };
      this.pending.push({ sentMs: performance.now(), take, fail });
      this.waiting++;
      this.socket.ref();
      this.socket.write(encodedCommand(words));
    });
  }

  /** Ends it; calls that wait are told so. */
  end(why: SandstormError): void {
    if (this.broken !== undefined) return;
    this.broken = why;
    this.socket.destroy();
    this.pending.splice(0).forEach((call) => call.fail(why));
  }

  private receive(bytes: Uint8Array): void {
    try {
      this.reader.push(bytes);
      for (let answer = this.reader.next(); answer !== INCOMPLETE; answer = this.reader.next()) {
        if (answer === PUSHED) continue;
        const call = this.pending.shift();
        if (call === undefined) throw new Error("an answer to nothing");
        this.heardMs = performance.now();
        call.take(answer);
      }
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.end(failure("protocol", `what answered speaks no RESP3: ${why}; the call may have run`, error));
    }
  }
}

function lost(why: string, below?: unknown, uncertain = MAY_RUN): SandstormError {
  return failure("lost", `the connection ended before the answer came: ${why}; ${uncertain}`, below);
}

/** A word of a command: a text, or bytes as they are. */
type CommandWord = string | Uint8Array;

function encodedCommand(words: CommandWord[]): Uint8Array {
  const parts: Uint8Array[] = [encoder.encode(`*${words.length}\r\n`)];
  for (const word of words) {
    const bytes = typeof word === "string" ? encoder.encode(word) : word;
    parts.push(encoder.encode(`$${bytes.length}\r\n`), bytes, encoder.encode("\r\n"));
  }
  const command = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    command.set(part, at);
    at += part.length;
  }
  return command;
}
