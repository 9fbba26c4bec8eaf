// Over HTTP: what is sent again, and where a call with a key goes. The servers say what this file tells them.
import { HttpTransport, RespTransport, SandstormError, ShapesClient } from "./shapes.js";

interface FakeRequest {
  headers: Record<string, string | undefined>;
  on(event: string, listener: () => void): void;
  resume(): void;
  socket: { destroy(): void };
}
interface FakeResponse {
  writeHead(status: number, headers: Record<string, string>): void;
  end(body: string): void;
}
/** What a server says to a request: its status, its start, a body. `null` ends the connection. */
type Answer = [number, string, string] | null;

const module = "node:http";
const { createServer } = await import(module);

async function answering() {
  const [answers, asked]: [Answer[], Record<string, string | undefined>[]] = [[], []];
  const server = createServer((request: FakeRequest, response: FakeResponse) => {
    request.resume();
    request.on("end", () => {
      asked.push(request.headers);
      const answer = answers.shift();
      if (answer === null || answer === undefined) return request.socket.destroy();
      response.writeHead(answer[0], { "sandstorm-start": answer[1], "sandstorm-cost": "cpu_ns=1", connection: "close" });
      response.end(answer[2]);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { answers, asked, server, url: `http://127.0.0.1:${server.address().port}` };
}

function same(found: unknown, expected: unknown, what: string): void {
  const texts = [found, expected].map((one) => JSON.stringify(one));
  if (texts[0] !== texts[1]) throw new Error(`${what}: ${texts[0]}, not ${texts[1]}`);
}

async function fails(call: Promise<unknown>, code: string): Promise<SandstormError> {
  try {
    await call;
  } catch (error) {
    if (!(error instanceof SandstormError)) throw error;
    same(error.code, code, error.message);
    return error;
  }
  throw new Error(`it was no error: ${code}`);
}

const [first, second] = [await answering(), await answering()];
const as = { tenant: "shop", token: "none", timeoutMs: 60_000 };
const good = (body: string): Answer => [200, "one", body];
const elsewhere = (server?: string): Answer => [
  server === undefined ? 503 : 409, "one", JSON.stringify({ code: "wrong_server", message: "elsewhere", epoch: 3, server }),
];

// A call is sent again to the same start of its server alone. Which that is, is not known at first.
const client = new ShapesClient(new HttpTransport({ ...as, server: first.url }));
first.answers.push(null);
await fails(client.integer(1), "lost");
first.answers.push(good("7"), null, null, good("8"));
same([await client.integer(1), await client.integer(1)], [7, 8], "it is sent again");
const [, , ...again] = first.asked.splice(0);
same(again.map((headers) => headers["sandstorm-start"]), [undefined, "one", "one"], "the start");
same(new Set(again.map((headers) => headers["idempotency-key"])).size, 1, "one key");
first.answers.push(null, null, null);
await fails(client.integer(1), "lost");
same(first.answers.length, 0, "two times, no more");
// What says nothing of the first request is not its end, and how a call has ended is.
for (const [code, expected] of [
  ["stale", "lost"], ["busy", "lost"], ["wrong_server", "lost"], ["conflict", "conflict"], ["timeout", "timeout"],
] as const) {
  first.answers.push(null, [500, "one", JSON.stringify({ code, message: "why" })]);
  await fails(client.integer(1), expected);
}
const never = new ShapesClient(new HttpTransport({ ...as, server: first.url, retries: 0 }));
first.answers.push(good("9"), null);
same(await never.integer(1), 9, "once");
await fails(never.integer(1), "lost");
first.answers.push([200, "one", "1".repeat(9 << 20)]);
await fails(client.integer(1), "protocol");

// What older servers call it.
first.answers.push([401, "one", JSON.stringify({ code: "unauthorised", message: "why" })]);
await fails(client.integer(1), "unauthenticated");

// What to do about it.
for (const [said, hint] of [["wait a second", "wait a second"], [null, undefined], [undefined, undefined]] as const) {
  first.answers.push([429, "one", JSON.stringify({ code: "over_quota", message: "why", hint: said })]);
  same((await fails(client.integer(1), "over_quota")).hint, hint, "the hint");
}

// A cluster: each server says where a key is. Slots are those of Redis Cluster.
first.asked.length = 0;
first.answers.push(elsewhere(second.url));
second.answers.push(good("1"), good("2"));
same(await client.integer(1, { key: "foo" }), 1, "the server that has the key");
same(first.asked[0]?.["idempotency-key"], second.asked[0]?.["idempotency-key"], "one key");
same(await client.integer(1, { key: new TextEncoder().encode("x{foo}y{bar}") }), 2, "the same slot");
first.answers.push(good("3"), good("4"));
same([await client.integer(1), await client.integer(1, { key: "{}foo" })], [3, 4], "others go to the first one");
second.answers.push(elsewhere());
first.answers.push(elsewhere(), good("5"));
same(await client.integer(1, { key: "foo" }), 5, "it is asked again while a slot changes its server");
second.answers.push(null, elsewhere(first.url));
await fails(client.integer(1, { key: "foo" }), "lost");
first.answers.push(elsewhere("http://127.0.0.1:2"), good("6"));
same(await client.integer(1, { key: "bar" }), 6, "nothing was sent where no server is");
first.answers.push(elsewhere("file:///etc"), good("7"));
same(await client.integer(1, { key: "bar" }), 7, "what is no URL of a server is not followed");
same([first.answers.length, second.answers.length], [0, 0], "answers");

// What the caller's function throws is no failure of the call, which is not sent again.
const thrown = new SandstormError(0, { code: "unreachable", message: "the caller's" });
for (const error of [new TypeError("the caller's"), thrown]) {
  first.asked.length = 0;
  first.answers.push(good("8"));
  const call = client.integer(1, { onCost: () => { throw error; } });
  same(await call.catch((found: unknown) => found === error), true, "the caller's error");
  same(first.asked.length, 1, "once");
}

// Where a token may go is said by schemes, however they are written, and what is followed is a server alone.
const follows = (server: string, owner: string) => new HttpTransport({ ...as, server })["follows"](1, { owner } as never);
for (const [server, owner, may] of [
  ["HTTPS://one", "http://two", false], ["https://one", "HTTP://two", false], ["HTTPS://one", "https://two:7399", true],
  ["https://one", "HTTPS://two", true], ["HTTP://one", "http://two", true], ["http://one", "https://two", true],
  ["http://one", "http://two/", false], ["http://one", "http://two/path", false], ["http://one", "http://two?a=b", false],
  ["http://one", "http://two#a", false], ["http://one", "http://a@two", false], ["http://one", "ftp://two", false],
  ["http://one", "http://", false], ["http://one", "http://[::1]:7399", true],
] as const) {
  same(follows(server, owner), may ? owner : undefined, `${server} names ${owner}`);
}
const secured = new RespTransport({ ...as, server: "REDISS://one" });
same(secured["at"]("two:6379")["place"].module, "node:tls", "the token would go without TLS");

// As many servers are remembered as a cluster may have, besides the first one: the latest.
const many = new HttpTransport({ ...as, server: first.url });
for (let number = 0; number < 200; number++) many["follows"](number, { owner: `http://server${number}` } as never);
same([many["starts"].size, many["owners"].size], [65, 64], "servers");
same([many["starts"].has(first.url), many["owners"].has(199), many["owners"].has(135)], [true, true, false], "which");
first.server.close();
second.server.close();
