// The five applications of the cookbook, called from TypeScript over RESP and HTTP. The suite compiles and runs it.
import * as chatting from "./chat.js";
import { FeaturesClient } from "./features.js";
import { HttpTransport, LeaderboardClient, SandstormError as BoardError } from "./leaderboard.js";
import * as queueing from "./queue.js";
import { RespTransport, SandstormError, ShopClient } from "./shop.js";

declare const process: { env: Record<string, string | undefined> };

const [http, resp, token] = [process.env["HTTP"] ?? "", process.env["RESP"] ?? "", process.env["TOKEN"] ?? ""];

function same(found: unknown, expected: unknown): void {
  const text = (value: unknown) =>
    JSON.stringify(value, (_, part) =>
      part && typeof part === "object" && !Array.isArray(part) ? Object.fromEntries(Object.entries(part).sort()) : part,
    );
  if (text(found) !== text(expected)) throw new Error(`${text(found)}, not ${text(expected)}`);
}

/** Each generated file has an error class of its own. */
async function fails(
  call: Promise<unknown>,
  code: string,
  kind: string | undefined,
  type: typeof SandstormError = SandstormError,
): Promise<void> {
  const error = await call.then(() => undefined, (error: unknown) => error);
  if (!(error instanceof type)) throw error ?? new Error("it was no error");
  same([error.code, error.kind], [code, kind]);
}

const board = new LeaderboardClient(new HttpTransport({ server: http, tenant: "shop", token, timeoutMs: 60_000 }));
same((await board.add({ player: "node", points: 10 }, { key: "node" })).points, 10);
same((await board.add({ player: "node", points: 5 })).points, 15);
const rank = await board.place("node");
same((await board.top(100)).filter((other) => other.player === "node"), [rank]);
same((await board.around("node")).filter((other) => other.player === "node"), [rank]);
await fails(board.place("nobody"), "failed", "not_found", BoardError);

const queue = new queueing.QueueClient(new queueing.HttpTransport({ server: http, tenant: "shop", token, timeoutMs: 60_000 }));
await queue.add({ work: "from node" });
const taken = await queue.take(600);
same([taken?.work, taken?.tries, await queue.take(600)], ["from node", 1, null]);
same(await queue.retry({ id: taken?.id ?? "", delay_s: 0 }), true);
const again = await queue.take(600);
same([again?.work, again?.tries], ["from node", 2]);
await queue.done(again?.id ?? "");
same([await queue.counts(), await queue.given_up()], [{ jobs: 0, given_up: 0 }, []]);

const over = new RespTransport({ server: resp, tenant: "shop", token, timeoutMs: 120_000 });
const shop = new ShopClient(over);
same(await shop.offer({ name: "node tea", price: 250, count: 10 }), 10);
same(await shop.pay({ customer: "node", amount: 600 }), 600);
const order = { customer: "node", article: "node tea", count: 2 };
const receipt = { article: "node tea", count: 2, total: 500 };
same(await shop.buy(order, { key: "node" }), { receipt, left: 8, balance: 100 });
await fails(shop.buy(order), "failed", "other");
same(await shop.orders("node"), [receipt]);

// A feed is over HTTP, wherever calls go.
const feeds = new chatting.HttpTransport({ server: http, tenant: "shop", token });
const position = await feeds.endOfChanges("messages");
const chat = new chatting.ChatClient(over);
// It waits for what is said.
const listener = feeds.changes("messages", position);
const heard = listener.next();
const at = await chat.say({ room: "node", author: "ann", text: "hello" });
same(await chat.read({ room: "node", limit: 9 }), [{ at_us: at, author: "ann", text: "hello" }]);
const text = (value: Uint8Array) => new TextDecoder().decode(value);
const first = (await heard).value;
same([first?.op, text(first?.value), first?.isLast], ["put", "ann: hello", true]);
await chat.say({ room: "node", author: "bob", text: "two sugars, please" });
await chat.say({ room: "node", author: "ann", text: "here you are" });
same([text((await listener.next()).value.value), listener.position], ["bob: two sugars, please", first?.position]);
// From a position that was kept, up to the end of the log.
const [lines, from] = [[] as string[], first?.position];
const missed = feeds.changes("messages", from, { waitMs: 0 });
for await (const change of missed) lines.push(text(change.value));
same(lines, ["bob: two sugars, please", "ann: here you are"]);
same(Number(missed.position) > Number(from), true);
await fails(feeds.endOfChanges("unlogged"), "not_logged", undefined, chatting.SandstormError);
await fails(feeds.changes("nothing", from).next(), "unknown_table", undefined, chatting.SandstormError);
await fails(feeds.changes("messages", "99999999999999").next(), "invalid", undefined, chatting.SandstormError);
const waits = listener.next();
same(text((await waits).value.value), "ann: here you are");
const closed = listener.next();
await feeds.close();
await fails(closed, "closed", undefined, chatting.SandstormError);

const features = new FeaturesClient(over);
await features.observe({ user: "node", amount: 12.5 });
same((await features.observe({ user: "node", amount: 2.5 })).mean, 7.5);
const [known, unknown] = await features.read(["node", "nobody"]);
same([known?.purchases, known?.largest, unknown?.purchases, unknown?.idle_ms], [2, 12.5, 0, null]);
await over.close();
