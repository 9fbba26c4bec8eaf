"""The five applications of the cookbook, called from Python. The suite runs it."""

import json
import os

import sandstorm
from chat import ChatClient
from features import FeaturesClient
from shop import ShopClient

address, token = os.environ["HTTP"].removeprefix("http://"), os.environ["TOKEN"]
with sandstorm.Client(address, "shop", token, timeout=120.0) as client:
    assert client.invoke("leaderboard", b"add python 10") == b"10"
    assert client.invoke("leaderboard", b"add python 5") == b"15"
    place = int(client.invoke("leaderboard", b"place python"))
    assert f"{place}. python 15\n" in client.invoke("leaderboard", b"top 100").decode()
    try:
        client.invoke("leaderboard", b"place nobody")
        raise AssertionError("there is no such player")
    except sandstorm.Failed as error:
        assert error.kind == "not_found", error.kind

    client.invoke("queue", b"add 0 from python")
    job, _, words = client.invoke("queue", b"take 600").partition(b" ")
    assert words == b"from python" and client.invoke("queue", b"take 600") == b""
    assert client.invoke("queue", b"done " + job) == b"done" and client.invoke("queue", b"count") == b"0"

    shop = ShopClient(client)
    assert shop.offer({"name": "python tea", "price": 250, "count": 10}) == 10
    assert shop.pay({"customer": "python", "amount": 600}) == 600
    order = {"customer": "python", "article": "python tea", "count": 2}
    receipt = {"article": "python tea", "count": 2, "total": 500}
    assert shop.buy(order) == {"receipt": receipt, "left": 8, "balance": 100}
    try:
        shop.buy(order)
        raise AssertionError("it was bought without money")
    except sandstorm.Failed as error:
        assert error.kind == "other" and "has not as much" in str(error), error
    assert shop.orders("python") == [receipt]

    position = client.end_of_changes("messages")
    at = ChatClient(client).say({"room": "python", "author": "ann", "text": "hello"})
    lines = [{"at_us": at, "author": "ann", "text": "hello"}]
    assert ChatClient(client).read({"room": "python", "limit": 9, "before_us": None}) == lines
    change = next(iter(client.changes("messages", position)))
    assert (change.op, change.value) == ("put", b"ann: hello"), change

    features = FeaturesClient(client)
    features.observe({"user": "python", "amount": 12.5})
    assert features.observe({"user": "python", "amount": 2.5})["mean"] == 7.5
    known, unknown = features.read(["python", "nobody"])
    assert (known["purchases"], known["largest"], unknown["purchases"]) == (2, 12.5, 0)
    assert unknown["idle_ms"] is None and json.dumps(known)
