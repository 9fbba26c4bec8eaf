/** Bytes of a page of changes, at most: about a MiB of them, and as much more as the largest change has. */
const PAGE_BYTES = 16 << 20;
/** Seconds for which a page waits for a change. One that was given up keeps its place, of a tenant's few, so long. */
const PAGE_WAIT_S = 5;
/** Milliseconds between tries while as many pages are made for the tenant as there may be: half a minute together. */
const BUSY_PAUSES_MS = [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800];

/** A change of a table. */
export interface TableChange {
  /** The position behind it; the changes of one transaction have the same. */
  position: string;
  /** `clear`: of all records up to `version`. */
  op: "put" | "delete" | "expire" | "clear";
  /** Of `clear` it is empty. */
  key: Uint8Array;
  /** Of a put; else empty. */
  value: Uint8Array;
  version: bigint;
  flags: number;
  /** Milliseconds since the Unix epoch from which on the record counts as absent, or did; 0: never. */
  expiresAtMs: number;
  /** Whether no other change of the same position follows: now `position` may be remembered. */
  isLast: boolean;
}

/** For how long a feed waits for changes. */
export interface ChangeFeedOptions {
  /** Milliseconds without a change after which it ends; 0: at the log's end. It waits for ever by default. */
  waitMs?: number;
  /** Ends the wait; nothing is lost. */
  signal?: AbortSignal;
}

interface ChangePage {
  changes: TableChange[];
  next: string;
  atEnd: boolean;
}

/** What a feed has of its transport. Closing that ends both. */
interface PageSource {
  ask(after: string | undefined, waitS: number): Promise<ChangePage>;
  /** Waits so many milliseconds, unless the transport is closed or the feed's signal says so. */
  pause(ms: number): Promise<void>;
}

/**
 * The changes of a table, of `HttpTransport.changes`. One that has thrown an error, such as "unreachable", or that was
 * left by `break`, may be asked again: it goes on from where it was. Closing the transport ends the wait, with "closed".
 */
export class ChangeFeed implements AsyncIterableIterator<TableChange> {
  private readonly source: PageSource;
  private readonly options: ChangeFeedOptions;
  /** What is there already; the next one is last. */
  private waiting: TableChange[] = [];
  private taken: TableChange | undefined;
  private handled: string | undefined;
  private following: string | undefined;
  private quietSinceMs: number | undefined;
  private busy = 0;
  private isEnded = false;
  private turn: Promise<unknown> = Promise.resolve();

  constructor(source: PageSource, from: string | undefined, options: ChangeFeedOptions) {
    this.source = source;
    this.options = options;
    this.handled = this.following = from;
  }

  /**
   * Where to go on another time: behind what was handled before the last step. It moves on while other tables change,
   * too. `undefined`: before the first step.
   */
  get position(): string | undefined {
    return this.handled;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next change. Steps that are asked for at once come one after the other. */
  next(): Promise<IteratorResult<TableChange>> {
    const step = this.turn.then(() => this.step());
    this.turn = step.catch(() => undefined);
    return step;
  }

  private async step(): Promise<IteratorResult<TableChange>> {
    for (;;) {
      const change = this.take();
      if (change !== undefined) return { done: false, value: change };
      if (this.isEnded) return { done: true, value: undefined };
      this.quietSinceMs ??= performance.now();
      try {
        this.note(await this.source.ask(this.following, this.waitS(this.quietSinceMs)), this.quietSinceMs);
      } catch (error) {
        await this.source.pause(this.pauseMs(error));
      }
    }
  }

  /** The next change that is there already. The one before it has been handled. */
  private take(): TableChange | undefined {
    if (this.taken?.isLast) this.handled = this.taken.position;
    this.taken = this.waiting.pop();
    if (this.taken === undefined) this.handled = this.following;
    return this.taken;
  }

  private waitS(quietSinceMs: number): number {
    const { waitMs } = this.options;
    if (this.following === undefined) return 0;
    if (waitMs === undefined) return PAGE_WAIT_S;
    const left = Math.ceil((quietSinceMs + waitMs - performance.now()) / 1_000);
    return Math.min(PAGE_WAIT_S, Math.max(0, left));
  }

  private note({ changes, next, atEnd }: ChangePage, quietSinceMs: number): void {
    const { waitMs } = this.options;
    this.busy = 0;
    this.waiting = changes.reverse();
    this.following = next;
    if (changes.length > 0) {
      this.quietSinceMs = undefined;
    } else if (waitMs !== undefined && atEnd && performance.now() - quietSinceMs >= waitMs) {
      this.isEnded = true;
    }
  }

  /** Milliseconds until the next try, or the error. */
  private pauseMs(error: unknown): number {
    const isBusy = error instanceof SandstormError && PAGE_LATER.includes(error.code);
    const pauseMs = isBusy ? BUSY_PAUSES_MS[this.busy] : undefined;
    this.busy = pauseMs === undefined ? 0 : this.busy + 1;
    if (pauseMs === undefined) throw error;
    return pauseMs;
  }
}

/** Why there is no page now, but may be one later. */
const PAGE_LATER: SandstormCode[] = ["busy", "overloaded", "over_quota", "shutting_down"];

function changePageOf(said: unknown): ChangePage {
  try {
    const page = entriesOf(said);
    const rows = page.get("changes");
    if (!Array.isArray(rows)) throw new Error(`${nameOf(rows)} where a list is expected`);
    const changes = rows.map(changeOf);
    // A page ends where a unit of the log does.
    changes.forEach((change, at) => (change.isLast = change.position !== changes[at + 1]?.position));
    return { changes, next: textOf(page.get("next")), atEnd: page.get("at_end") === true };
  } catch (error) {
    throw failure("protocol", `no page of changes: ${error instanceof Error ? error.message : String(error)}`, error);
  }
}

function changeOf(row: unknown): TableChange {
  const fields = entriesOf(row);
  const op = textOf(fields.get("op")) as TableChange["op"];
  return {
    position: textOf(fields.get("position")),
    op,
    key: op === "clear" ? new Uint8Array(0) : bytesOf(fields, "key"),
    value: op === "put" ? bytesOf(fields, "value") : new Uint8Array(0),
    version: integerOf(fields.get("version")),
    flags: Number(integerOf(fields.get("flags"))),
    expiresAtMs: Number(integerOf(fields.get("expires_at_ms"))),
    isLast: true,
  };
}

/** A field that is a text, or bytes in base64. */
function bytesOf(fields: Map<string, unknown>, name: string): Uint8Array {
  const text = fields.get(name);
  if (text !== undefined && text !== null) return encoder.encode(textOf(text));
  return Uint8Array.from(atob(textOf(fields.get(`${name}_base64`))), (letter) => letter.charCodeAt(0));
}
