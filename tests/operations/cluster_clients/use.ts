// Calls with keys at a cluster whose slots move, over RESP and HTTP: each runs once, where its key is.
import { BankClient, HttpTransport, RespTransport, SandstormError, type Transport } from "./bank.js";

declare const process: { env: Record<string, string | undefined> };
const module: string = "node:fs";
const { existsSync, writeFileSync } = await import(module);

const { HTTP = "", RESP = "", TOKEN = "", READY = "", STOP = "" } = process.env;
const as = { tenant: "dev", timeoutMs: 120_000 };
const sums = new Map<string, number>();

async function deposit(bank: BankClient, name: string): Promise<void> {
  for (;;) {
    try {
      const sum = await bank.deposit({ name, balance: 1 }, { key: name });
      if (sum !== (sums.get(name) ?? 0) + 1) throw new Error(`${name}: ${sum} behind ${sums.get(name)}`);
      sums.set(name, sum);
      return;
    } catch (error) {
      // Its slot was given away while it ran: its transaction has written nothing.
      const isAway = error instanceof SandstormError && error.code === "failed" && error.kind === "wrong_server";
      if (!isAway) throw error;
    }
  }
}

async function round(over: Transport, prefix: string): Promise<void> {
  const bank = new BankClient(over);
  await Promise.all(Array.from({ length: 24 }, (_, number) => deposit(bank, `${prefix}:${number}`)));
}

const resp = new RespTransport({ ...as, server: RESP, token: "" });
const http = new HttpTransport({ ...as, server: HTTP, token: TOKEN });
do {
  await Promise.all([round(resp, "node"), round(http, "node over HTTP")]);
  writeFileSync(READY, "");
} while (!existsSync(STOP));
await resp.close();
