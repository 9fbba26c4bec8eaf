"""The five applications of the cookbook, called from Python. The suite runs it."""

import json
import os

import sandstorm
from chat import ChatClient
from features import FeaturesClient
from leaderboard import LeaderboardClient
from queue_client import QueueClient
from shop import ShopClient

address, token = os.environ["HTTP"].removeprefix("http://"), os.environ["TOKEN"]
with sandstorm.Client(address, "shop", token, timeout=120.0) as client:
    board = LeaderboardClient(client)
    assert board.add({"player": "python", "points": 10})["points"] == 10
    rank = board.add({"player": "python", "points": 5})
    assert (rank["player"], rank["points"]) == ("python", 15), rank
    rank = board.place("python")
    assert rank in board.top(100) and rank in board.around("python"), rank
    try:
        board.place("nobody")
        raise AssertionError("there is no such player")
    except sandstorm.Failed as error:
        assert error.kind == "not_found", error.kind

    # In a file of another name than Python's own module.
    queue = QueueClient(client)
    queue.add({"work": "from python", "delay_s": None})
    job = queue.take(600)
    assert (job["work"], job["tries"]) == ("from python", 1) and queue.take(600) is None
    assert queue.retry({"id": job["id"], "delay_s": 0}) is True
    job = queue.take(600)
    assert (job["work"], job["tries"]) == ("from python", 2)
    assert queue.done(job["id"]) is None and queue.counts() == {"jobs": 0, "given_up": 0}
    assert queue.given_up() == []

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
