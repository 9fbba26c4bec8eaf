// Calls with keys at a cluster whose slots move: each runs once, where its key is.
import { BankClient, RespTransport, SandstormError } from "./bank.js";

declare const process: { env: Record<string, string | undefined> };
const module: string = "node:fs";
const { existsSync, writeFileSync } = await import(module);

const { RESP = "", READY = "", STOP = "" } = process.env;
const over = new RespTransport({ server: RESP, tenant: "dev", token: "", timeoutMs: 120_000 });
const bank = new BankClient(over);
const names = Array.from({ length: 24 }, (_, number) => `node:${number}`);
const sums = new Map<string, number>();

async function deposit(name: string): Promise<void> {
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

do {
  await Promise.all(names.map(deposit));
  writeFileSync(READY, "");
} while (!existsSync(STOP));
await over.close();
