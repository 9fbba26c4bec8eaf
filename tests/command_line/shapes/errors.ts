// How calls end, by name, over both transports.
import { HttpTransport, RespTransport, SandstormError, ShapesClient, type Transport } from "./shapes.js";

declare const process: { env: Record<string, string | undefined> };

const { HTTP = "", RESP = "", TOKEN = "", ENDS = "[]" } = process.env;
const ends = JSON.parse(ENDS) as [string, string, string, string][];
const as = { tenant: "shop", token: TOKEN, timeoutMs: 60_000 };
const transports: Transport[] = [new HttpTransport({ ...as, server: HTTP }), new RespTransport({ ...as, server: RESP })];
for (const over of transports) {
  for (const [called, word, code, name] of ends) {
    try {
      await (called === "shapes.end" ? new ShapesClient(over).end(word) : over.call(called, JSON.stringify(word)));
    } catch (error) {
      if (!(error instanceof SandstormError)) throw error;
      const found = [error.code, error.kind ?? error.cause_ ?? ""];
      if (found[0] !== code || found[1] !== name) throw new Error(`${called}: ${found} instead of ${code} ${name}: ${error.message}`);
      continue;
    }
    throw new Error(`${called}: it was no error`);
  }
  await over.close();
}
