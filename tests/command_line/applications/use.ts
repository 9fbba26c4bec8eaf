// The five applications of the cookbook, called from TypeScript over RESP and HTTP. The suite compiles and runs it.
import { ChatClient } from "./chat.js";
import { FeaturesClient } from "./features.js";
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

/** Calls an extension that takes bytes: for those there is HTTP. */
async function invoke(extension: string, body: string): Promise<string> {
  const headers = { authorization: `Bearer ${token}`, "idempotency-key": crypto.randomUUID(), "sandstorm-timeout-ms": "60000" };
  const response = await fetch(`${http}/v1/call/shop/${extension}`, { method: "POST", headers, body });
  const text = await response.text();
  if (!response.ok) throw new SandstormError(response.status, JSON.parse(text));
  return text;
}

async function fails(call: Promise<unknown>, code: string, kind: string): Promise<void> {
  const error = await call.then(() => undefined, (error: unknown) => error);
  if (!(error instanceof SandstormError)) throw error ?? new Error("it was no error");
  same([error.code, error.kind], [code, kind]);
}

same([await invoke("leaderboard", "add node 10"), await invoke("leaderboard", "add node 5")], ["10", "15"]);
const place = await invoke("leaderboard", "place node");
same((await invoke("leaderboard", "top 100")).split("\n").includes(`${place}. node 15`), true);
await fails(invoke("leaderboard", "place nobody"), "failed", "not_found");

await invoke("queue", "add 0 from node");
const taken = await invoke("queue", "take 600");
same([taken.slice(33), await invoke("queue", "take 600")], ["from node", ""]);
same([await invoke("queue", `done ${taken.slice(0, 32)}`), await invoke("queue", "count")], ["done", "0"]);

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
