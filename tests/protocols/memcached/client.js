// What a program does with node's `memcached`, against the port that is named.
const assert = require("assert");
const { promisify } = require("util");
const Memcached = require("memcached");

const client = new Memcached(`127.0.0.1:${process.argv[2]}`, { timeout: 60000, retries: 0 });
const call = (name, ...args) => promisify(client[name]).apply(client, args);

(async () => {
  assert.strictEqual(await call("set", "a", "one", 100), true);
  assert.strictEqual(await call("get", "a"), "one");
  assert.strictEqual(await call("get", "nothing"), undefined);
  await assert.rejects(call("add", "a", "two", 0));
  assert.strictEqual(await call("replace", "a", "two", 0), true);
  assert.strictEqual(await call("append", "a", " more"), true);
  assert.strictEqual(await call("prepend", "a", "no "), true);
  const found = await call("gets", "a");
  assert.strictEqual(found.a, "no two more");
  assert.strictEqual(await call("cas", "a", "three", found.cas, 0), true);
  assert.strictEqual(await call("cas", "a", "four", found.cas, 0), false);
  assert.strictEqual(await call("set", "object", { deep: [1, 2] }, 0), true);
  assert.deepStrictEqual(await call("getMulti", ["a", "object", "none"]), { a: "three", object: { deep: [1, 2] } });
  await call("set", "n", 10, 0);
  assert.strictEqual(await call("incr", "n", 5), 15);
  assert.strictEqual(await call("decr", "n", 100), 0);
  assert.strictEqual(await call("touch", "a", 50), true);
  assert.strictEqual(await call("del", "a"), true);
  assert.strictEqual(await call("del", "a"), false);
  const large = "x".repeat(900000);
  assert.strictEqual(await call("set", "large", large, 0), true);
  assert.strictEqual(await call("get", "large"), large);
  assert.strictEqual((await call("version"))[0].version.split("-")[0], "1.6.18");
  assert.ok((await call("stats"))[0].curr_items >= 3);
  await call("flush");
  assert.strictEqual(await call("get", "n"), undefined);
  client.end();
  console.log("all good");
})();
