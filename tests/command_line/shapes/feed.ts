// Change feeds: what is asked for, and what becomes of the answers. The server says what this file tells it; one of
// Sandstorm is asked by the applications.
import { HttpTransport, SandstormError, type TableChange } from "./shapes.js";

interface FakeRequest {
  method: string;
  url: string;
  headers: Record<string, string | undefined>;
  socket: { destroy(): void };
}
interface FakeResponse {
  writeHead(status: number, headers: Record<string, string>): void;
  end(body: string): void;
}
/** What the server says: its status and a body. `null` ends the connection. */
type Answer = [number, string] | null;

const module = "node:http";
const { createServer } = await import(module);
const answers: Answer[] = [];
const asked: string[] = [];
/** Is told when something was asked for that has no answer yet. */
let noteWait = () => {};

const server = createServer((request: FakeRequest, response: FakeResponse) => {
  asked.push(`${request.method} ${request.url} ${request.headers["authorization"]}`);
  const answer = answers.shift();
  if (answer === undefined) return noteWait();
  if (answer === null) return request.socket.destroy();
  response.writeHead(answer[0], { connection: "close" });
  response.end(answer[1]);
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const as = { server: `http://127.0.0.1:${server.address().port}`, tenant: "shop", token: "none" };

function same(found: unknown, expected: unknown, what: string): void {
  const text = (value: unknown) =>
    JSON.stringify(value, (_, part) =>
      typeof part === "bigint" ? `${part}` : part instanceof Uint8Array ? [...part] : part,
    );
  if (text(found) !== text(expected)) throw new Error(`${what}: ${text(found)}, not ${text(expected)}`);
}

async function fails(step: Promise<unknown>, code: string): Promise<void> {
  const error = await step.then(() => undefined, (error: unknown) => error);
  if (!(error instanceof SandstormError)) throw error ?? new Error(`it was no error: ${code}`);
  same(error.code, code, error.message);
}

const page = (next: string, ...changes: unknown[]): Answer => [200, JSON.stringify({ changes, next, at_end: true })];
const aPut = { position: "20", op: "put", key: "a", value_base64: "/wA=", version: 1, flags: 7, expires_at_ms: 1_700_000_000_000 };
const aDelete = { position: "20", op: "delete", key_base64: "/w==", version: 4, flags: 0, expires_at_ms: 0 };
const aClear = { position: "30", op: "clear", version: 5, flags: 0, expires_at_ms: 0 };
// Of a version that no number of JavaScript's is.
const [, text] = page("30", aPut, aDelete, aClear)!;

const http = new HttpTransport(as);
const feed = http.changes("a/b");
same(feed.position, undefined, "before the first step");
answers.push(page("10"), [200, text.replace('"version":1,', '"version":18446744073709551615,')], page("40", { ...aClear, position: "40" }));
const put: TableChange = {
  position: "20", op: "put", key: new Uint8Array([97]), value: new Uint8Array([255, 0]), version: 18446744073709551615n,
  flags: 7, expiresAtMs: 1_700_000_000_000, isLast: false,
};
const empty = new Uint8Array(0);
same(await feed.next(), { done: false, value: put }, "a put");
same(feed.position, "10", "nothing was handled yet");
// Steps that are asked for at once come one after the other.
const [second, third] = await Promise.all([feed.next(), feed.next()]);
same(second.value, { ...put, op: "delete", key: [255], value: empty, version: 4n, flags: 0, expiresAtMs: 0, isLast: true }, "a delete");
same(third.value, { ...second.value, position: "30", op: "clear", key: empty, version: 5n }, "a clear");
same(feed.position, "20", "a transaction is whole");
for await (const change of feed) {
  same([change.position, feed.position], ["40", "30"], "a loop goes on from there");
  break;
}
same(asked.splice(0), [
  "GET /v1/tenants/shop/tables/a%2Fb/changes?wait_s=0 Bearer none",
  "GET /v1/tenants/shop/tables/a%2Fb/changes?wait_s=5&after=10 Bearer none",
  "GET /v1/tenants/shop/tables/a%2Fb/changes?wait_s=5&after=30 Bearer none",
], "what was asked for");

// At the log's end, which has moved on.
const over = http.changes("items", "40", { waitMs: 0 });
answers.push(page("50"));
same([await over.next(), await over.next(), over.position], [{ done: true }, { done: true }, "50"], "it stays at its end");
same(asked.splice(0), ["GET /v1/tenants/shop/tables/items/changes?wait_s=0&after=40 Bearer none"], "asked once");
answers.push(page("60"));
same(await http.endOfChanges("items"), "60", "the end of the log");

// It goes on after an error: as many pages are made as there may be; the connection is lost; the log has it no more.
const refused = (status: number, code: string): Answer => [status, JSON.stringify({ code, message: "why" })];
answers.push(refused(503, "busy"), null, page("70", aPut));
const again = http.changes("items", "60");
same((await again.next()).value.key, [97], "what came at last");
answers.push(null, null, null);
await fails(again.next(), "lost");
same(answers.length, 0, "two times, no more");
for (const [status, code] of [[410, "too_old"], [409, "not_logged"], [404, "unknown_table"]] as const) {
  answers.push(refused(status, code));
  await fails(again.next(), code);
}
for (const body of ["{}", '{"next": "1", "changes": [{}]}', "<html>"]) {
  answers.push([200, body]);
  await fails(again.next(), "protocol");
}
answers.push(page("80", aClear));
same((await again.next()).value.op, "clear", "it goes on");
// It asks again while there is no room for it, and not for ever.
const busy = new SandstormError(503, { code: "busy", message: "why" });
const pauses = Array.from({ length: 8 }, () => again["pauseMs"](busy));
same([pauses[0], pauses[7]], [100, 12_800], "pauses");
let thrown: unknown;
try {
  again["pauseMs"](busy);
} catch (error) {
  thrown = error;
}
same([thrown === busy, again["pauseMs"](busy)], [true, 100], "not for ever, and from the start");

// A signal, and the end of the transport, end the wait; nothing is lost.
const [ends, leaves, asks] = [new AbortController(), new AbortController(), () => new Promise<void>((resolve) => (noteWait = resolve))];
const cancelled = http.changes("items", "80", { signal: ends.signal });
let hasAsked = asks();
let step = cancelled.next();
await hasAsked;
ends.abort();
await fails(step, "cancelled");
await fails(cancelled.next(), "cancelled");
same(cancelled.position, "80", "it may go on from there");
hasAsked = asks();
step = again.next();
await hasAsked;
await http.close();
await fails(step, "closed");
await fails(http.endOfChanges("items"), "closed");

// So do they while it pauses because there is no room: at once, though the pause is of an hour, and nothing is asked for
// any more.
for (const [code, end] of [["closed", (over: HttpTransport) => over.close()], ["cancelled", () => leaves.abort()]] as const) {
  const over = new HttpTransport(as);
  const paused = over.changes("items", "80", code === "closed" ? {} : { signal: leaves.signal });
  const pauseMs = paused["pauseMs"].bind(paused);
  const pauses = new Promise<void>((resolve) => {
    paused["pauseMs"] = (error) => {
      same(pauseMs(error), 100, "the first pause");
      resolve();
      return 3_600_000;
    };
  });
  asked.length = 0;
  answers.push(refused(503, "busy"));
  step = paused.next();
  await pauses;
  // Once it waits.
  await new Promise((resolve) => setTimeout(resolve));
  await end(over);
  await fails(step, code);
  await fails(paused.next(), code);
  same([asked.length, paused.position], [1, "80"], "what was asked for");
}
server.close();
