/**
 * Calls over a port for Redis clients, with FCALL and RESP3, by the sockets of node (Deno and Bun have them, too). In a
 * cluster a call with a `key` runs at the server that has it.
 */
export class RespTransport implements Transport {
  private readonly options: SandstormOptions;
  private readonly first: RespServer;
  /** Servers of a cluster that others have named, by their addresses. */
  private readonly named = new Map<string, RespServer>();
  /** Where the keys of a slot were found. */
  private readonly owners = new Map<number, RespServer>();
  private isClosed = false;

  constructor(options: SandstormOptions) {
    this.options = options;
    this.first = new RespServer(options);
  }

  async call(name: string, json: string, options: CallOptions = {}): Promise<unknown> {
    const { signal, timeoutMs, key, version, onCost } = options;
    const called = version === undefined ? name : `${name}@${version}`;
    const limit = limitOf(timeoutMs ?? this.options.timeoutMs, signal);
    const command = onCost === undefined ? "FCALL" : "FCALL_COST";
    if (key === undefined) return withCost(await this.first.call([command, called, "0", json], limit), onCost);
    const bytes = keyBytes(key);
    const words = [command, called, "1", bytes, json];
    const slot = slotOf(bytes);
    let server = this.owners.get(slot) ?? this.first;
    for (let hop = 1; ; hop++) {
      let answer: unknown;
      try {
        answer = await server.call(words, limit);
      } catch (error) {
        if (!(error instanceof ElsewhereError)) {
          if (hasNoAnswer(error)) this.forget(server);
          throw error;
        }
        const owner = error.owner === undefined ? undefined : this.at(error.owner);
        if (owner !== undefined) this.owners.set(slot, owner);
        // Servers that learn of a change at different times send on to each other for a moment.
        if (owner !== undefined && owner !== server && hop % CLUSTER_HOPS !== 0) {
          server = owner;
          continue;
        }
        // The slot is changing its server: the first one knows when that is over.
        if (leftMs(limit) <= CLUSTER_PAUSE_MS) throw error;
        await new Promise((resolve) => setTimeout(resolve, CLUSTER_PAUSE_MS));
        server = this.first;
        continue;
      }
      return withCost(answer, onCost);
    }
  }

  async close(): Promise<void> {
    this.isClosed = true;
    this.first.close();
    this.named.forEach((server) => server.close());
  }

  /** The server at an address that another one has named. */
  private at(address: string): RespServer {
    if (this.isClosed) throw closedFailure();
    const scheme = /^rediss:/i.test(this.options.server) ? "rediss" : "redis";
    const place = `${scheme}://${address}`;
    if (place === this.options.server) return this.first;
    const known = this.named.get(address);
    if (known !== undefined) return known;
    if (this.named.size >= CLUSTER_SERVERS) this.dropIdle();
    const server = new RespServer({ ...this.options, server: place });
    this.named.set(address, server);
    return server;
  }

  /** Makes room for another server. */
  private dropIdle(): void {
    for (const [address, server] of this.named) {
      if (!server.isIdle()) continue;
      this.named.delete(address);
      this.forget(server);
      server.close();
      return;
    }
    throw failure("wrong_server", `over ${CLUSTER_SERVERS} servers were named: the call has not run`);
  }

  /** Forgets what was found at a server that has not answered: it may be another one's now. */
  private forget(server: RespServer): void {
    for (const [slot, owner] of this.owners) if (owner === server) this.owners.delete(slot);
  }
}

/** The reply in an answer that tells what the call cost besides, if that was asked for. */
function withCost(answer: unknown, onCost?: (cost: CallCost) => void): unknown {
  if (onCost === undefined) return answer;
  if (!Array.isArray(answer) || answer.length !== 2 || !(answer[0] instanceof Map)) {
    throw failure("protocol", "what answered tells no cost; the call has run");
  }
  const [cost, reply] = answer as [Map<string, unknown>, unknown];
  onCost(callCost((name) => cost.get(name)));
  if (reply instanceof RespErrorText) throw errorOf(reply.text);
  return reply;
}

/** Servers that are remembered, at most: as many as a cluster may have. */
const CLUSTER_SERVERS = 64;
/** Servers that are asked one after the other, before the first one is asked again. */
const CLUSTER_HOPS = 4;
/** Milliseconds between two questions while a slot changes its server, which takes some. */
const CLUSTER_PAUSE_MS = 20;
/** Slots of keys, as Redis Cluster has them. */
const SLOTS = 16384;

/** A call has not run: its key is at another server, or at none now. */
class ElsewhereError extends SandstormError {
  /** HOST:PORT, over HTTP the control port's URL, if there is one. */
  readonly owner: string | undefined;

  constructor(message: string, owner?: string, status = 0) {
    super(status, { code: "wrong_server", message });
    this.owner = owner;
  }
}

/** Whether it may be that nothing is there any more. */
function hasNoAnswer(error: unknown): boolean {
  return error instanceof SandstormError && ["unreachable", "lost", "timeout"].includes(error.code);
}

/** The slot of a key: by what stands between its first `{` and the next `}`, or by all of it. */
function slotOf(key: Uint8Array): number {
  const open = key.indexOf(123);
  const close = open < 0 ? -1 : key.indexOf(125, open + 1);
  const hashed = close > open + 1 ? key.subarray(open + 1, close) : key;
  let crc = 0;
  for (const byte of hashed) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = ((crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
  }
  return crc % SLOTS;
}
