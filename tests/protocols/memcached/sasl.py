"""What a program does with python-binary-memcached, which shows who it is by SASL, against the port that is named."""
import sys
import bmemcached
from bmemcached.exceptions import MemcachedException

where, token = (f"127.0.0.1:{sys.argv[1]}",), "a-token-of-twenty-characters"
client = bmemcached.Client(where, "shop/t", token)
assert client.set("a", "one", time=100)
assert client.get("a") == "one" and client.get("nothing") is None
assert not client.add("a", "two") and client.replace("a", "two")
value, number = client.gets("a")
assert value == "two"
assert client.cas("a", "three", number) and not client.cas("a", "four", number)
client.set_multi({f"k{i}": i for i in range(1000)})
assert client.get_multi([f"k{i}" for i in range(1100)]) == {f"k{i}": i for i in range(1000)}
assert client.incr("n", 5, default=10) == 10 and client.incr("n", 5) == 15 and client.decr("n", 100) == 0
large = "x" * 3_000_000
assert client.set("large", large) and client.get("large") == large
assert client.delete("a") and client.get("a") is None
other = bmemcached.Client(where, "shop", token)
assert other.get("n") is None, "the table that is used where none is named is another one"
(stats,) = client.stats().values()
assert int(stats[b"cas_hits"] if b"cas_hits" in stats else stats["cas_hits"]) == 1, stats
wrong = bmemcached.Client(where, "shop", "another-token-of-twenty-characters")
try:
    wrong.set("a", "1")
    raise SystemExit("that token is wrong")
except MemcachedException:
    pass
assert client.flush_all() and client.get("k1") is None
client.disconnect_all()
print("all good")
