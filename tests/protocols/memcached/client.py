"""What a program does with pymemcache, against the port that is named."""
import sys
from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError

where = ("127.0.0.1", int(sys.argv[1]))
client = Client(where, connect_timeout=60, timeout=60, default_noreply=False)
assert client.set("a", "one", expire=100, flags=7)
assert client.get("a") == b"one"
assert client.get("nothing") is None
assert not client.add("a", "two") and client.replace("a", "two")
assert client.append("a", " more") and client.prepend("a", "no ")
value, number = client.gets("a")
assert value == b"no two more"
assert client.cas("a", "three", number) is True
assert client.cas("a", "four", number) is False
assert client.cas("nothing", "four", number) is None
assert client.set_many({f"k{i}": str(i) for i in range(1000)}) == []
found = client.get_many([f"k{i}" for i in range(1100)])
assert found == {f"k{i}": str(i).encode() for i in range(1000)}
assert client.set("n", "10") and client.incr("n", 5) == 15 and client.decr("n", 100) == 0
assert client.incr("nothing", 1) is None
assert client.touch("a", 50) and client.get("a") == b"three"
assert client.delete("a") and not client.delete("a")
large = "x" * 1_000_000
assert client.set("large", large) and client.get("large") == large.encode()
client.set("silent", "1", noreply=True)
assert client.get("silent") == b"1"
assert b"curr_items" in client.stats() and client.version().startswith(b"1.6")
try:
    client.incr("large", 1)
    raise SystemExit("a long text is no number")
except MemcacheClientError:
    pass
try:
    client.set("has blank", "1")
    raise SystemExit("no key has a blank")
except MemcacheIllegalInputError:
    pass
assert client.flush_all() and client.get("k1") is None
spread = HashClient([where], use_pooling=True, timeout=60)
assert spread.set("b", "1", noreply=False) and spread.get_many(["b", "c"]) == {"b": b"1"}
client.quit()
print("all good")
