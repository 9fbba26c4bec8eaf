// The five applications of the cookbook, called from TypeScript over RESP and HTTP. The suite compiles and runs it.
import { ChatClient } from "./chat.js";
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
async function fails(call: Promise<unknown>, code: string, kind: string, type: typeof SandstormError = SandstormError): Promise<void> {
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

async function changes(query: string): Promise<{ next: string; changes: { op: string; value?: string }[] }> {
  const response = await fetch(`${http}/v1/tenants/shop/tables/messages/changes${query}`, {
    headers: { authorization: `Bearer ${token}` },
  });
  return JSON.parse(await response.text());
}

const position = (await changes("")).next;
const chat = new ChatClient(over);
const at = await chat.say({ room: "node", author: "ann", text: "hello" });
same(await chat.read({ room: "node", limit: 9 }), [{ at_us: at, author: "ann", text: "hello" }]);
const [change] = (await changes(`?after=${position}`)).changes;
same([change?.op, change?.value], ["put", "ann: hello"]);

const features = new FeaturesClient(over);
await features.observe({ user: "node", amount: 12.5 });
same((await features.observe({ user: "node", amount: 2.5 })).mean, 7.5);
const [known, unknown] = await features.read(["node", "nobody"]);
same([known?.purchases, known?.largest, unknown?.purchases, unknown?.idle_ms], [2, 12.5, 0, null]);
await over.close();
