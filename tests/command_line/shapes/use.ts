// Over both transports: the same replies and the same errors. The suite compiles it with `--strict`, and runs it with node.
import {
  HttpTransport,
  RespTransport,
  SandstormError,
  ShapesClient,
  type CallCost,
  type Nested,
  type Numbers,
  type Shape,
  type Transport,
} from "./shapes.js";
import { ShapesClient as ExactClient } from "./exact.js";

declare const process: { env: Record<string, string | undefined> };

interface FakeSocket {
  write(text: string): void;
  destroy(): void;
  unref(): void;
  on(event: string, listener: (given: { toString(): string }) => void): void;
}

function ordered(value: unknown): string {
  return JSON.stringify(value, (_, part) => {
    if (typeof part === "bigint") return `${part}n`;
    if (typeof part === "number" && !Number.isFinite(part)) return String(part);
    const isObject = part && typeof part === "object" && !Array.isArray(part);
    return isObject ? Object.fromEntries(Object.entries(part).sort()) : part;
  });
}

function same(found: unknown, expected: unknown, what = ""): void {
  if (ordered(found) !== ordered(expected)) throw new Error(`${what}: ${ordered(found)}, not ${ordered(expected)}`);
}

async function fails(call: Promise<unknown>, ...expected: (string | undefined)[]): Promise<SandstormError> {
  try {
    await call;
  } catch (error) {
    if (!(error instanceof SandstormError)) throw error;
    same([error.code, error.kind ?? error.cause_], [expected[0], expected[1]], error.message);
    return error;
  }
  throw new Error(`it was no error: ${expected}`);
}

const numbers: Numbers = {
  a: 255, b: 65535, c: 4294967295, d: 2 ** 53 - 1, e: -128, f: -32768, g: -2147483648, h: -(2 ** 53) + 1, i: 0.5, j: -1e300, yes: true,
};
const shapes: Shape[] = [
  "Empty",
  { Circle: 0.25 },
  { Segment: [-5, 7] },
  { Labelled: { name: 'a "label"\r\n🏜', tags: ["x", ""] } },
  { Blob: "AAH/gA==" },
  { Inner: "DarkGreen" },
  { Maybe: null },
  { Maybe: 9 },
];
const nested: Nested = {
  colour: "Red", texts: ["a", null, ""], grid: [[], [1, 2]], blob: "/w==", parts: ["", "AA=="], maybe: "", numbers, shapes,
};

async function replies(client: ShapesClient): Promise<void> {
  same(await client.numbers(numbers), numbers, "numbers");
  same(await client.nested(nested), nested, "nested");
  const least: Nested = { texts: [], grid: [], blob: "", parts: [], shapes: [] };
  same(await client.nested(least), { ...least, colour: null, maybe: null, numbers: null }, "what is left out is null");
  for (const shape of shapes) same(await client.shape(shape), shape, "shape");
  same(await client.transport({ options: [{ error: 1 }] }), { options: [{ error: 1 }] }, "names");
  same(await client.blob("AAECAw=="), "AAECAw==", "bytes");
  same([await client.maybe(null), await client.maybe(-1), await client.nothing()], [null, -1, null], "null");
  same(await client.integer(5, { version: 1 }), 5, "of a version");
  same((await client.long(30_000)).length, 30_000, "long");
  same(await Promise.all([1, 2, 3, 4, 5, 6, 7, 8].map((one) => client.integer(one))), [1, 2, 3, 4, 5, 6, 7, 8], "many at a time");
}

async function errors(client: ShapesClient): Promise<void> {
  same((await fails(client.end("not_found"), "failed", "not_found")).message, "no such order");
  await fails(client.integer(5, { version: 9 }), "unknown_extension");
  same((await fails(client.end("invalid"), "failed", "invalid")).message, "not (so)");
  await fails(client.end("unknown_table"), "failed", "unknown_table");
  await fails(client.end("any"), "failed", "other");
  await fails(client.end("panic"), "killed", "panic");
  await fails(client.end("loop"), "killed", "total_budget");
  // What numbers do not hold is an error, and never another number.
  same((await fails(client.largest(), "reply")).message.includes("--bigint"), true);
  await fails(client.integer(2 ** 60), "invalid");
  // The server judges the rest.
  const wrong = { ...numbers, a: 256 };
  same((await fails(client.numbers(wrong), "invalid")).message, "args.a: 256 is no u8");
  // @ts-expect-error there is no such variant
  await fails(client.shape({ Square: 1 }), "invalid");
  // @ts-expect-error a field is missing
  await fails(client.numbers({ a: 1 }), "invalid");
  const stop = AbortSignal.abort();
  await fails(client.integer(1, { signal: stop }), "cancelled");
  same(await client.integer(1), 1, "it goes on");
}

/** What a call cost is told however it ended, and not of one that has not run. */
async function costs(client: ShapesClient): Promise<void> {
  const told: CallCost[] = [];
  const onCost = (cost: CallCost) => void told.push(cost);
  same(await client.integer(7, { onCost, key: "a key" }), 7, "a reply beside its cost");
  same(await client.nested({ texts: ["a"], grid: [], blob: "", parts: [], shapes: [] }, { onCost }).then((one) => one.texts), ["a"], "a map");
  await fails(client.end("panic", { onCost }), "killed", "panic");
  await fails(client.end("not_found", { onCost }), "failed", "not_found");
  same(told.length, 4, "costs");
  for (const { cpuNs, wallNs, firstTurnNs, turns, switches, reads, readBytes, commitTries } of told) {
    if (!(cpuNs > 0 && cpuNs <= wallNs && firstTurnNs <= wallNs && turns >= 1)) throw new Error(ordered(told));
    same([switches <= turns, reads, readBytes, commitTries], [true, 0, 0, 0], "a cost");
  }
  await fails(client.numbers({ ...numbers, a: 256 }, { onCost }), "invalid");
  same(told.length, 4, "it has not run");
}

async function exact(over: Transport): Promise<void> {
  const client = new ExactClient(over);
  same(await client.largest(), 18446744073709551615n, "largest");
  for (const one of [0n, 2n ** 53n + 1n, 2n ** 63n, 2n ** 64n - 1n]) same(await client.integer(one), one, "exact");
  same(await client.shape({ Segment: [-(2n ** 63n), 2n ** 64n - 1n] }), { Segment: [-(2n ** 63n), 2n ** 64n - 1n] }, "exact shape");
  same(await client.maybe(-(2n ** 53n) - 1n), -(2n ** 53n) - 1n, "exact option");
}

function given(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set`);
  return value;
}

const [http, resp, tls, ca, unix, token] = [given("HTTP"), given("RESP"), given("TLS"), given("CERTIFICATE"), given("UNIX"), given("TOKEN")];
const as = { tenant: "shop", token, timeoutMs: 60_000 };
const transports: Transport[] = [
  new HttpTransport({ ...as, server: http }),
  new RespTransport({ ...as, server: resp }),
  new RespTransport({ ...as, server: resp, connections: 1 }),
  new RespTransport({ ...as, server: tls, tls: { ca, servername: "localhost" } }),
  // A port that acts for the tenant.
  new RespTransport({ ...as, server: unix, token: "" }),
];
for (const over of transports) {
  const client = new ShapesClient(over);
  await replies(client);
  await errors(client);
  await costs(client);
  await exact(over);
}
same(await new ShapesClient({ ...as, server: http }).integer(3), 3, "options alone are HTTP");
same([await new ShapesClient(transports[0]!).infinite(), await new ShapesClient(transports[1]!).infinite()], [NaN, Infinity], "infinite");
await fails(new ShapesClient(transports[1]!).long(70_000), "reply");
await fails(new ShapesClient(transports[1]!).blob("A".repeat(40_000)), "too_large");

// Who is refused, and what is not there.
for (const over of [new HttpTransport({ ...as, server: http, token: "wrong" }), new RespTransport({ ...as, server: resp, token: "wrong" })]) {
  same((await fails(new ShapesClient(over).integer(1), "unauthenticated")).oldCode, "unauthorised", "the old name");
  await over.close();
}
await fails(new ShapesClient(new RespTransport({ ...as, server: tls })).integer(1), "unreachable");
await fails(new ShapesClient(new RespTransport({ ...as, server: "redis://127.0.0.1:2" })).integer(1), "unreachable");
await fails(new ShapesClient(new HttpTransport({ ...as, server: "http://127.0.0.1:2", retries: 0 })).integer(1), "unreachable");
try {
  new RespTransport({ ...as, server: "http://db.example" });
  throw new Error("an address of HTTP was taken");
} catch (error) {
  if (!(error instanceof SandstormError)) throw error;
}

// Connections that the server ends: a call that was under way is lost, and the next one has another connection.
const module = "node:net";
const { connect, createServer } = await import(module);
const other: FakeSocket = connect({ path: unix.slice("unix:".length) });
const killed = await new Promise<string>((resolve) => {
  other.on("data", (bytes) => resolve(bytes.toString()));
  other.write("CLIENT KILL TYPE normal SKIPME yes\r\n");
});
if (!/^:[1-9]/.test(killed)) throw new Error(`no connection was ended: ${killed}`);
other.destroy();
for (const over of transports.slice(1)) {
  for (let isAnswered = false; !isAnswered; ) {
    try {
      same(await new ShapesClient(over).integer(5), 5, "another connection");
      isAnswered = true;
    } catch (error) {
      if (!(error instanceof SandstormError && error.code === "lost")) throw error;
    }
  }
}

// A server that says what no server of ours says. The connection after one that ended is another one.
const hello = "%1\r\n$5\r\nproto\r\n:3\r\n";
const said: (string | null)[] = [];
/** A server that gives these answers to calls, one after the other; `null` ends the connection. */
async function answering(answers: (string | null)[]) {
  const server = createServer((socket: FakeSocket) => {
    socket.unref();
    socket.on("error", () => {});
    socket.on("data", (bytes) => {
      for (const command of bytes.toString().split("*").slice(1)) {
        const answer = command.includes("HELLO") ? hello : answers.shift();
        if (answer === null || answer === undefined) socket.destroy();
        else socket.write(answer);
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, at: `127.0.0.1:${server.address().port}` };
}
const { server, at } = await answering(said);
const one = { ...as, server: `redis://${at}`, connections: 1 };
const fake = new ShapesClient(new RespTransport(one));
said.push(":4\r\n", null, ":5\r\n", ">2\r\n+invalidate\r\n_\r\n:6\r\n");
same(await fake.integer(1), 4, "a server that is no fake");
await fails(fake.integer(1), "lost");
same([await fake.integer(1), await fake.integer(1)], [5, 6], "it connects again, and passes over what is pushed");
for (const [answer, code, kind] of [
  ["?\r\n", "protocol"],
  ["$99999999999\r\n", "protocol"],
  ["*99999999\r\n", "protocol"],
  ["*1\r\n".repeat(100) + ":1\r\n", "protocol"],
  ["x".repeat(5 << 20), "protocol"],
  [":1\n", "protocol"],
  ["+OK\r\n", "reply"],
  ["-KILLED (of_tomorrow) why\r\n", "killed", "of_tomorrow"],
  ["-TRYAGAIN later\r\n", "wrong_server"],
  ["-LOADING the server is shutting down\r\n", "shutting_down"],
  ["-BUSY the worker has all the invocations that it can hold\r\n", "overloaded"],
  ["-MISCONF the disk has failed\r\n", "not_durable"],
  ["-OVERQUOTA requests_per_s\r\n", "over_quota"],
] as [string, string, string?][]) {
  said.push(answer);
  await fails(fake.integer(1), code, kind);
}
// An answer in pieces, and one that comes after its call has ended: each call has its own.
const slow = new ShapesClient(new RespTransport(one));
said.push(":");
const waits = slow.integer(1);
const later = slow.integer(2);
said.push("7\r\n:8\r\n");
same([await waits, await later], [7, 8], "pieces");
said.push("", ":9\r\n:10\r\n");
await fails(slow.integer(1, { timeoutMs: 1 }), "timeout");
same(await slow.integer(1), 10, "the answer of the call before is dropped");
// A connection that says nothing is given up: what waits on it is told, and what comes has another one.
const silent = new ShapesClient(new RespTransport({ ...one, timeoutMs: 200 }));
async function reached<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      // A busy machine takes its time for the login.
      if (!(error instanceof SandstormError && error.code === "unreachable")) throw error;
    }
  }
}
said.push("", ":11\r\n");
await fails(reached(() => silent.integer(1, { timeoutMs: 300 })), "timeout");
while (said.length > 1) await new Promise((resolve) => setTimeout(resolve, 1));
same(await reached(() => silent.integer(1, { timeoutMs: 60_000 })), 11, "another connection");
// What is under way when it is closed is told so, and so is what comes after.
const closing = new RespTransport(one);
said.push("");
const open = fails(new ShapesClient(closing).integer(1), "closed");
while (said.length > 0) await new Promise((resolve) => setTimeout(resolve, 1));
await closing.close();
await open;
await fails(new ShapesClient(closing).integer(1), "closed");
// Neither a call that was given up nor an open connection keeps the program from its end.
const stop = new AbortController();
said.push("");
const givenUp = fails(new ShapesClient(new RespTransport(one)).integer(1, { signal: stop.signal }), "cancelled");
while (said.length > 0) await new Promise((resolve) => setTimeout(resolve, 1));
stop.abort();
await givenUp;
server.close();

// A cluster: each server says where a key is. Slots are those of Redis Cluster.
const [ofFirst, ofSecond]: [(string | null)[], (string | null)[]] = [[], []];
const [first, second] = [await answering(ofFirst), await answering(ofSecond)];
const cluster = new ShapesClient(new RespTransport({ ...as, server: `redis://${first.at}` }));
ofFirst.push(`-MOVED 12182 ${second.at}\r\n`);
ofSecond.push(":1\r\n", ":2\r\n");
same(await cluster.integer(1, { key: "foo" }), 1, "the server that has the key");
same(await cluster.integer(1, { key: new TextEncoder().encode("x{foo}y{bar}") }), 2, "a key of the same slot goes there at once");
ofFirst.push(":3\r\n", ":4\r\n");
same([await cluster.integer(1), await cluster.integer(1, { key: "{}foo" })], [3, 4], "others go to the first one");
ofSecond.push("-TRYAGAIN The slot is changing its server\r\n");
ofFirst.push("-CLUSTERDOWN Hash slot not served\r\n", ":5\r\n");
same(await cluster.integer(1, { key: "foo" }), 5, "it is asked again while a slot changes its server");
ofSecond.push(`-MOVED 12182 ${first.at}\r\n`, `-MOVED 12182 ${first.at}\r\n`);
ofFirst.push(`-MOVED 12182 ${second.at}\r\n`, ":6\r\n");
same(await cluster.integer(1, { key: "foo" }), 6, "servers that send on to each other");
ofFirst.push(`-MOVED 12182 ${second.at}\r\n`);
ofSecond.push(null);
await fails(cluster.integer(1, { key: "foo" }), "lost");
ofFirst.push(":7\r\n");
same(await cluster.integer(1, { key: "foo" }), 7, "where nothing answered is forgotten");
ofFirst.push("-MOVED 12182 127.0.0.1:2\r\n");
await fails(cluster.integer(1, { key: "foo" }), "unreachable");
first.server.close();
second.server.close();

// Keys that a header cannot have as they are, and those that it can.
const overHttp = new ShapesClient(transports[0]!);
for (const key of ["", "a\nb", " a", "a".repeat(257)]) await fails(overHttp.integer(1, { key }), "invalid");
await fails(new ShapesClient(transports[1]!).integer(1, { key: "" }), "invalid");
for (const over of transports) same(await new ShapesClient(over).integer(1, { key: "user ä:7" }), 1, "a key");

// What does not log in: a call waits for a connection as long as it may take, and no longer.
const mute: FakeSocket[] = [];
const muteServer = createServer((socket: FakeSocket) => {
  socket.on("error", () => {});
  socket.unref();
  mute.push(socket);
});
await new Promise<void>((resolve) => muteServer.listen(0, "127.0.0.1", resolve));
const muteOver = { ...as, timeoutMs: 3_600_000, server: `redis://127.0.0.1:${muteServer.address().port}` };
await fails(new ShapesClient(new RespTransport(muteOver)).integer(1, { timeoutMs: 5 }), "unreachable");
const muteHttp = new HttpTransport({ ...muteOver, server: muteOver.server.replace("redis", "http") });
await fails(new ShapesClient(muteHttp).integer(1, { timeoutMs: 5 }), "timeout");
while (mute.length < 1) await new Promise((resolve) => setTimeout(resolve, 1));
mute.forEach((socket) => socket.destroy());
muteServer.close();
