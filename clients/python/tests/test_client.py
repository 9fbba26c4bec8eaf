"""Promise: the Python client does what docs/python.md says, plain and with asyncio. The suite runs it
(tests/command_line/python.rs) against a server with ext/bank and ext/bad: SANDSTORM_TEST has its address and token."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import queue
import threading
import unittest
from unittest import mock

import sandstorm
from sandstorm import errors

SERVER, TENANT, TOKEN = json.loads(os.environ["SANDSTORM_TEST"])


class PlainTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = sandstorm.Client(SERVER, TENANT, TOKEN, timeout=30)
        self.addCleanup(self.client.close)

    def test_records(self) -> None:
        client = self.client
        self.assertIsNone(client.get("items", b"plain"))
        version = client.put("items", "plain", "1", flags=7)
        self.assertEqual(client.get("items", "plain"), b"1")
        self.assertEqual(client.get_record("items", b"plain"), sandstorm.Record(b"1", version, 7))
        with self.assertRaises(sandstorm.Conflict):
            client.put("items", b"plain", b"2", if_absent=True)
        with self.assertRaises(sandstorm.Conflict):
            client.put("items", b"plain", b"2", if_version=version + 1)
        self.assertGreater(client.put("items", b"plain", b"2", if_version=version), version)
        self.assertEqual(client.increment("items", b"plain", 40), 42)
        self.assertEqual(client.increment("items", b"plain", -2), 40)
        found = client.get_many("items", [b"plain", b"nothing"])
        self.assertEqual([record and record.value for record in found], [b"40", None])
        self.assertTrue(client.delete("items", b"plain"))
        self.assertFalse(client.delete("items", b"plain"))
        large = os.urandom(1 << 20)
        client.put("items", b"large", large)
        self.assertEqual(client.get("items", b"large"), large)
        client.ping()

    def test_what_is_no_text_and_no_bytes(self) -> None:
        client = self.client
        # As bytes, a number would be as many zero bytes.
        for wrong in (7, 0, True, 1.5, None, ["a"]):
            for call in (
                lambda: client.put("items", "number", wrong),
                lambda: client.put("items", wrong, "number"),
                lambda: client.get("items", wrong),
                lambda: client.get_many("items", ["number", wrong]),
                lambda: client.invoke("bank", wrong),
            ):
                with self.assertRaisesRegex(TypeError, f"bytes or a text, not {type(wrong).__name__}"):
                    call()
        self.assertIsNone(client.get("items", "number"))
        client.put("items", "number", memoryview(b"7"))
        self.assertEqual(client.get("items", bytearray(b"number")), b"7")

    def test_ranges(self) -> None:
        for number in range(5):
            self.client.put("words", f"range{number}", str(number))
        found = self.client.range("words", b"range1", b"range4")
        self.assertEqual([record.value for record in found], [b"1", b"2", b"3"])
        last = self.client.range("words", b"range", b"rangf", limit=1, backward=True)
        self.assertEqual([record.key for record in last], [b"range4"])

    def test_positions(self) -> None:
        client = self.client
        for letter in "bdfh":
            client.put("words", f"at:{letter}", "")
        first = client.rank("words", "at:")
        self.assertEqual(client.count("words", "at:", b"at;"), 4)
        self.assertEqual(client.count("words", b"at:c", "at:f"), 1)
        self.assertEqual(client.rank("words", "at:e"), first + 2)
        self.assertEqual(client.nth("words", first + 3), b"at:h")
        self.assertEqual(client.count("words"), client.rank("words", b"\xff"))
        self.assertIsNone(client.nth("words", client.count("words")))
        with self.assertRaises(ValueError):
            client.nth("words", -1)
        for refused in (lambda: client.count("items"), lambda: client.rank("items", "k"), lambda: client.nth("items", 0)):
            with self.assertRaisesRegex(sandstorm.SandstormError, "not ordered") as error:
                refused()
            self.assertEqual(error.exception.code, "malformed")

    def test_times_to_live(self) -> None:
        client = self.client
        self.assertIsNone(client.ttl("items", "lives"))
        self.assertFalse(client.touch("items", "lives", 5))
        version = client.put("items", "lives", "v", flags=7)
        self.assertEqual(client.ttl("items", "lives"), math.inf)
        self.assertTrue(client.touch("items", b"lives", 100_000.5))
        left = client.ttl("items", "lives")
        assert left is not None
        self.assertTrue(0 < left < 200_000)
        record = client.get_record("items", "lives")
        assert record is not None
        self.assertEqual((record.value, record.flags), (b"v", 7))
        self.assertGreater(record.version, version)
        for for_ever in (None, math.inf):
            client.put("items", "lives", "v", ttl=100_000)
            self.assertTrue(client.touch("items", "lives", for_ever))
            self.assertEqual(client.ttl("items", "lives"), math.inf)
        self.assertTrue(client.touch("items", "lives", 1e300))
        self.assertGreater(client.ttl("items", "lives") or 0, 1e15)
        self.assertTrue(client.touch("items", "lives", 0.0001))
        while client.get("items", "lives") is not None:
            pass
        self.assertIsNone(client.ttl("items", "lives"))

    def test_transactions(self) -> None:
        client = self.client
        with client.transaction() as transaction:
            self.assertIsNone(transaction.get("items", "stock"))
            transaction.put("items", "stock", "2", flags=5)
            transaction.put("items", "short", "", ttl=600)
            self.assertEqual(transaction.get("items", b"stock"), b"2")
            self.assertIsNone(client.get("items", "stock"), "nothing is written yet")
        record = client.get_record("items", "stock")
        assert record is not None
        self.assertEqual((record.value, record.flags), (b"2", 5))

        runs = []

        def sell(transaction: sandstorm.Transaction) -> int:
            left = int(transaction.get("items", "stock") or 0) - 1
            runs.append(left)
            if len(runs) == 1:
                client.put("items", "stock", "8")
            transaction.put("items", "stock", str(left))
            return left

        self.assertEqual((client.transact(sell), runs), (7, [1, 7]))
        with self.assertRaises(sandstorm.TransactionConflict) as conflict:
            with client.transaction() as transaction:
                transaction.get_many("items", ["stock", "unsold"])
                transaction.put("items", "lost", "")
                client.put("items", "unsold", "")
        self.assertEqual(conflict.exception.key, b"unsold")
        self.assertIsNone(client.get("items", "lost"))
        with self.assertRaises(ZeroDivisionError):
            with client.transaction() as transaction:
                transaction.delete("items", "stock")
                _ = 1 // 0
        self.assertEqual(client.get("items", "stock"), b"7", "an error gives it up")

    def test_an_exception_stands_if_what_was_read_holds(self) -> None:
        client = self.client
        client.put_many("items", {"left": "1", "right": "1"})
        runs = []

        def same(transaction: sandstorm.Transaction) -> None:
            runs.append(1)
            left = transaction.get("items", "left")
            if len(runs) == 1:
                # Others change both between its reads.
                client.put_many("items", {"left": "2", "right": "2"})
            if transaction.get("items", "right") != left:
                raise ValueError("they are never different")

        client.transact(same)
        self.assertEqual(len(runs), 2)
        with self.assertRaises(sandstorm.Conflict):
            client.transact(lambda transaction: transaction.put("items", "left", "3", if_absent=True))

    def test_transactions_count_and_check(self) -> None:
        client = self.client
        client.put("items", "counter", "40", flags=7, ttl=600)
        with client.transaction() as transaction:
            self.assertEqual(transaction.increment("items", "counter", 2), 42)
            self.assertEqual(transaction.increment("items", "counter", -1), 41)
            self.assertEqual(transaction.increment("items", "fresh"), 1)
        self.assertEqual((client.get("items", "counter"), client.get("items", "fresh")), (b"41", b"1"))
        record = client.get_record("items", "counter")
        assert record is not None
        self.assertEqual(record.flags, 7)
        for wrong in ("no number", "+1", "1_0", " 1", "9223372036854775807", "9" * 40, "9" * 5000):
            client.put("items", "wrong", wrong)
            with self.assertRaises(sandstorm.SandstormError) as refused:
                client.transaction().increment("items", "wrong")
            self.assertEqual(refused.exception.code, "not_a_number")
            self.assertIn('under the key "wrong" is not', str(refused.exception))
        conditions = [
            ({"if_absent": True}, "missing"),
            ({"if_present": True}, "counter"),
            ({"if_version": record.version}, "counter"),
            ({"if_value": "41"}, "counter"),
        ]
        for condition, key in conditions:
            other = "counter" if key == "missing" else "missing"
            transaction = client.transaction()
            with self.assertRaises(sandstorm.Conflict):
                transaction.put("items", other, "x", **condition)
            transaction.put("items", key, "41", **condition)
            # What held has to hold at the commit, too.
            client.put("items", key, "41")
            with self.assertRaises(sandstorm.TransactionConflict):
                transaction.commit()
            client.delete("items", "missing")
            record = client.get_record("items", "counter")
            assert record is not None
            conditions[2][0]["if_version"] = record.version
        client.put("items", "padded", "-" + "0" * 5000 + "41")
        self.assertEqual(client.transaction().increment("items", "padded", 2), -39)
        with self.assertRaises(sandstorm.Conflict):
            client.transaction().put("items", "counter", "x", if_value="40")
        with self.assertRaises(sandstorm.Conflict):
            client.transaction().delete("items", "counter", if_version=record.version + 1)
        with client.transaction() as transaction:
            transaction.put("items", "counter", "x", if_value=b"41")
            # Its own writes have no version.
            with self.assertRaises(sandstorm.Conflict):
                transaction.put("items", "counter", "y", if_version=0)
            transaction.delete("items", "fresh")
        self.assertEqual(client.get("items", "counter"), b"x")
        with self.assertRaises(ValueError):
            client.transaction().put("items", "k", "v", if_absent=True, if_value="v")

    def test_many_puts(self) -> None:
        client = self.client
        # More bytes than a message takes, and more records.
        for count, size in ((300, 60_000), (600, 10)):
            records = {f"many{number}": os.urandom(size) for number in range(count)}
            versions = client.put_many("large", records, flags=3)
            self.assertEqual(len(versions), count)
            found = client.get_many("large", list(records)[:100])
            self.assertEqual([record and record.value for record in found], list(records.values())[:100])
            last = client.get_record("large", f"many{count - 1}")
            self.assertEqual(last, sandstorm.Record(records[f"many{count - 1}"], versions[-1], 3))
        # In their order: the last one under a key stays.
        client.put_many("items", [("twice", "1"), ("twice", b"2")], ttl=600)
        self.assertEqual(client.get("items", "twice"), b"2")
        self.assertEqual(client.put_many("items", []), [])
        with self.assertRaises(sandstorm.SandstormError) as refused:
            client.put_many("items", {"k": bytes(9 << 20)})
        self.assertEqual(refused.exception.code, "too_large")

    def test_ranges_of_transactions(self) -> None:
        client = self.client
        for number in (1, 3, 5, 7):
            client.put("words", f"tx{number}", str(number))
        with client.transaction() as transaction:
            transaction.put("words", "tx2", "two")
            transaction.delete("words", "tx3")
            keys = [record.key for record in transaction.range("words", "tx", "ty", limit=3)]
            self.assertEqual(keys, [b"tx1", b"tx2", b"tx5"])
            keys = [record.key for record in transaction.range("words", "tx", "ty", limit=2, backward=True)]
            self.assertEqual(keys, [b"tx7", b"tx5"])
        self.assertIsNone(client.get("words", "tx3"))
        transaction = client.transaction()
        transaction.range("words", "tx", "ty", limit=2)
        client.put("words", "tx7", "behind what it has read")
        transaction.commit()
        transaction = client.transaction()
        transaction.range("words", "tx", "ty")
        client.put("words", "tx6", "came between")
        with self.assertRaises(sandstorm.TransactionConflict):
            transaction.commit()

    def test_ranges_that_transactions_delete(self) -> None:
        client = self.client
        client.put_many("words", {f"dr{number}": "" for number in (1, 3, 5, 7)})
        with client.transaction() as transaction:
            transaction.put("words", "dr2", "two")
            transaction.delete("words", "dr1")
            self.assertEqual(transaction.delete_range("words", "dr", "ds", limit=2), 2)
            self.assertEqual([record.key for record in transaction.range("words", "dr", "ds")], [b"dr5", b"dr7"])
            self.assertEqual(transaction.delete_range("words", "dr7", "ds"), 1)
            self.assertEqual(transaction.delete_range("words", "dr", "ds", limit=0), 0)
        self.assertEqual([record.key for record in client.range("words", "dr", "ds")], [b"dr5"])
        transaction = client.transaction()
        self.assertEqual(transaction.delete_range("words", "dr", "ds"), 1)
        client.put("words", "dr6", "came between")
        with self.assertRaises(sandstorm.TransactionConflict):
            transaction.commit()
        client.put_many("words", {f"dx{number}": "" for number in range(257)})
        transaction = client.transaction()
        with self.assertRaisesRegex(sandstorm.SandstormError, "smaller limit"):
            transaction.delete_range("words", "dx", "dy")
        self.assertEqual(transaction.delete_range("words", "dx", "dy", limit=256), 256)
        transaction.commit()
        self.assertEqual(client.count("words", "dx", "dy"), 1)

    def test_positions_of_transactions(self) -> None:
        client = self.client
        client.put_many("words", {"cx1": "1", "cx3": "3", "cx5": "5"})
        with client.transaction() as transaction:
            transaction.put("words", "cx2", "two")
            transaction.put("words", "cx1", "again")
            transaction.delete("words", "cx3")
            transaction.delete("words", "cx4")
            self.assertEqual([transaction.count("words", "cx", end) for end in ("cy", "cx2", "cx")], [3, 1, 0])
            first = transaction.rank("words", "cx")
            self.assertEqual(transaction.rank("words", "cx9"), first + 3)
            found = [transaction.nth("words", first + at) for at in range(3)]
            self.assertEqual(found, [b"cx1", b"cx2", b"cx5"])
            self.assertIsNone(transaction.nth("words", transaction.count("words")))
            self.assertEqual((transaction.rank("words", b""), client.count("words", "cx", "cy")), (0, 3))
            with self.assertRaises(ValueError):
                transaction.nth("words", -1)
        self.assertEqual([client.nth("words", first + 1), client.count("words", "cx", "cy")], [b"cx2", 3])
        for read in (lambda of: of.count("words", "cx", "cy"), lambda of: of.nth("words", first)):
            transaction = client.transaction()
            read(transaction)
            client.put("words", "cx0", "")
            with self.assertRaises(sandstorm.TransactionConflict):
                transaction.commit()
            client.delete("words", "cx0")
        with self.assertRaisesRegex(sandstorm.SandstormError, "256 ranges and counts"):
            transaction = client.transaction()
            [transaction.count("words", f"{number}") for number in range(257)]
        # Times to live, too.
        client.put("items", "tx-lives", "v", flags=3)
        with client.transaction() as transaction:
            self.assertEqual((transaction.ttl("items", "tx-lives"), transaction.ttl("items", "x")), (math.inf, None))
            self.assertEqual((transaction.touch("items", "tx-lives", 600), transaction.touch("items", "x", 1)), (True, False))
            self.assertEqual(transaction.ttl("items", "tx-lives"), 600)
        record = client.get_record("items", "tx-lives")
        assert record is not None
        self.assertEqual((record.value, record.flags, (client.ttl("items", "tx-lives") or 0) < 601), (b"v", 3, True))

    def test_typed_calls(self) -> None:
        client = self.client
        self.assertEqual(client.call("bank.deposit", {"name": "plain", "balance": 10}), 10)
        order = {"from": "plain", "to": "other", "amount": 3, "purpose": "Gift"}
        paid = client.call("bank.transfer", order)
        self.assertEqual(paid["from"], {"name": "plain", "balance": 7})
        self.assertEqual(client.call("bank.statement", ["plain"]), [{"name": "plain", "balance": 7}])
        schema = client.schema("bank")
        assert schema is not None
        self.assertEqual([one["name"] for one in schema["functions"]], ["transfer", "deposit", "statement", "order"])
        self.assertIsNone(client.schema("bad"))
        with self.assertRaisesRegex(sandstorm.TypesError, "args.amount: -1 is no u64"):
            client.call("bank.transfer", {**order, "amount": -1})
        # What may be nothing need not be given, and JSON has no number that is none.
        self.assertIsNone(client.call("bank.transfer", {"from": "plain", "to": "other", "amount": 1})["purpose"])
        self.assertEqual(client.call("bank.transfer", order, version=1)["purpose"], "Gift")
        for place, args in (
            ("args.amount: nan is no number", {**order, "amount": float("nan")}),
            (r"args\[1\]\.deep\[0\]: inf is no number", ["plain", {"deep": (float("inf"),)}]),
        ):
            with self.assertRaisesRegex(sandstorm.TypesError, place) as refused:
                client.call("bank.transfer", args)
            self.assertEqual(refused.exception.code, "invalid")
        circle: list[object] = [1]
        circle.append(circle)
        with self.assertRaisesRegex(ValueError, "Circular"):
            client.call("bank.transfer", circle)
        with self.assertRaisesRegex(sandstorm.UnknownFunction, "there are: transfer, deposit, statement"):
            client.call("bank.audit")
        with self.assertRaisesRegex(sandstorm.TypesError, "no typed functions"):
            client.call("bad", {})
        with self.assertRaises(sandstorm.Failed) as failed:
            client.call("bank.transfer", {**order, "amount": 1000})
        self.assertEqual((failed.exception.kind, failed.exception.code), ("other", "failed"))

    def test_what_typed_calls_cost(self) -> None:
        costs: list[sandstorm.Cost] = []
        measured = self.client.on_cost(costs.append)
        self.assertEqual(measured.call("bank.deposit", {"name": "measured", "balance": 2}), 2)
        self.assertEqual(measured.near("measured").call("bank.statement", ["measured"])[0]["balance"], 2)
        self.assertEqual([cost.reads for cost in costs], [0, 1])
        self.assertGreater(costs[0].cpu_ns, 0)
        # One that failed has a cost, one that was not sent has none.
        with self.assertRaises(sandstorm.Failed):
            measured.call("bank.transfer", {"from": "measured", "to": "other", "amount": 1000})
        with self.assertRaises(sandstorm.TypesError):
            measured.call("bank.transfer", {"from": "measured", "to": "other", "amount": -1})
        self.assertEqual(len(costs), 3)
        with self.assertRaises(sandstorm.Killed):
            measured.invoke("bad", self.client.table_id("items").to_bytes(8, "little") + b"panic")
        self.assertEqual(len(costs), 4)

    def test_errors_by_name(self) -> None:
        client = self.client
        args = client.table_id("items").to_bytes(8, "little") + b"panic"
        with self.assertRaises(sandstorm.Killed) as killed:
            client.invoke("bad", args)
        self.assertEqual(killed.exception.cause, "panic")
        measured = client.measure("bad", args)
        assert measured.cost is not None
        self.assertIsInstance(measured.error, sandstorm.Killed)
        self.assertGreater(measured.cost.cpu_ns, 0)
        with self.assertRaises(sandstorm.UnknownExtension):
            client.invoke("nothing")
        with self.assertRaisesRegex(sandstorm.UnknownTable, "it has: accounts, async, feed, items, large, memory, waits, words"):
            client.get("itmes", b"k")
        with self.assertRaisesRegex(sandstorm.Unauthenticated, "not authenticated") as wrong:
            sandstorm.Client(SERVER, TENANT, "wrong")
        self.assertEqual(wrong.exception.code, "unauthenticated")
        # As which it was known before.
        self.assertIsInstance(wrong.exception, sandstorm.ConnectionFailed)
        with self.assertRaises(sandstorm.ConnectionFailed):
            sandstorm.Client("127.0.0.1:1", TENANT, TOKEN)
        with self.assertRaises(ValueError):
            client.put("items", b"k", b"v", if_absent=True, if_present=True)

    def test_names_of_what_a_server_seldom_says(self) -> None:
        for code, kind in (
            ("overloaded", sandstorm.Busy),
            ("shutting_down", sandstorm.Busy),
            ("busy", sandstorm.Busy),
            ("over_quota", sandstorm.Busy),
            ("stale", sandstorm.Timeout),
            ("unauthenticated", sandstorm.Unauthenticated),
            ("not_durable", sandstorm.SandstormError),
        ):
            error = errors.of_answer(json.dumps({"code": code, "message": "why"}).encode())
            self.assertEqual((type(error), error.code, str(error)), (kind, code, "why"))

    def test_changes_from_a_position(self) -> None:
        client = self.client
        begin = client.end_of_changes("feed")
        version = client.put("feed", b"one", b"\xff\0", flags=3)
        client.put("feed", "short", "lived", ttl=600)
        client.delete("feed", "one")
        client.put("items", "of another table", "")
        with client.transaction() as transaction:
            transaction.put("feed", "two", "2")
            transaction.put("feed", "three", "3")
        feed = client.changes("feed", begin)
        found = list(itertools.islice(feed, 5))
        first = found[0]
        self.assertEqual((first.op, first.key, first.value), ("put", b"one", b"\xff\0"))
        self.assertEqual((first.version, first.flags, first.expires_at_ms, first.is_last), (version, 3, 0, True))
        self.assertGreater(found[1].expires_at_ms, 0)
        self.assertEqual([(change.op, change.key) for change in found[2:3]], [("delete", b"one")])
        self.assertGreater(found[2].version, version)
        # A transaction has one position, and is whole behind its last change.
        self.assertEqual(found[3].position, found[4].position)
        self.assertEqual([change.is_last for change in found], [True, True, True, False, True])
        self.assertEqual({change.key for change in found[3:]}, {b"two", b"three"})
        # The transaction may be under way.
        assert feed.position is not None
        self.assertTrue(int(found[2].position) <= int(feed.position) < int(found[3].position))
        # From each position it goes on behind that.
        for change in found:
            behind = [one for one in found if int(one.position) > int(change.position)]
            again = client.changes("feed", change.position)
            self.assertEqual(list(itertools.islice(again, len(behind))), behind)
        over = client.changes("feed", found[-1].position, wait=0)
        self.assertEqual((list(over), list(over)), ([], []), "it stays at its end")
        assert over.position is not None
        self.assertGreaterEqual(int(over.position), int(found[-1].position))
        with self.assertRaisesRegex(sandstorm.UnknownTable, "it has: "):
            next(client.changes("nothing"))
        with self.assertRaises(sandstorm.NoChangeFeed) as no_feed:
            client.end_of_changes("memory")
        self.assertEqual(no_feed.exception.code, "not_logged")
        with self.assertRaises(sandstorm.NotSent) as invalid:
            next(client.changes("feed", "99999999999999"))
        self.assertEqual(invalid.exception.code, "invalid")

    def test_a_feed_waits_for_changes_and_ends_with_its_client(self) -> None:
        client = sandstorm.Client(SERVER, TENANT, TOKEN, timeout=30)
        feed = client.changes("waits", client.end_of_changes("waits"))
        self.assertIs(iter(feed), feed)
        found: "queue.SimpleQueue[object]" = queue.SimpleQueue()

        def follow() -> None:
            try:
                for change in feed:
                    assert feed.position is not None
                    found.put((change.key, int(feed.position) < int(change.position)))
            except sandstorm.ClosedError as closed:
                found.put(closed.code)

        follower = threading.Thread(target=follow)
        follower.start()
        for key in (b"first", b"second"):
            self.client.put("waits", key, b"")
            # Only what was handled is behind its position.
            self.assertEqual(found.get(), (key, True))
        client.close()
        self.assertEqual(found.get(), "closed")
        follower.join()

    def test_a_feed_goes_on_after_an_error(self) -> None:
        client = self.client
        feed = client.changes("feed", client.end_of_changes("feed"))
        client.put("feed", "errors", "")
        errors = [sandstorm.Busy("busy", "as asked"), sandstorm.ConnectionFailed("control", "as asked")]
        ask = client._ask

        def fails(request: object, timeout: object) -> object:
            if errors:
                raise errors.pop(0)
            return ask(request, timeout)

        with mock.patch.object(client, "_ask", fails):
            with self.assertRaises(sandstorm.ConnectionFailed):
                next(feed)
            self.assertEqual((errors, next(feed).key), ([], b"errors"))
        # It asks again while there is no room for it, and not for ever.
        busy = mock.Mock(side_effect=sandstorm.Busy("busy", "as asked"))
        with mock.patch("sandstorm.change_feed.BUSY_PAUSES", (0.0, 0.0)), mock.patch.object(client, "_ask", busy):
            with self.assertRaises(sandstorm.Busy):
                next(feed)
        self.assertEqual(busy.call_count, 3)

    def test_a_position_that_the_log_has_no_more_is_refused(self) -> None:
        begin = self.client.end_of_changes("feed")
        large = os.urandom(4 << 20)
        with self.assertRaises(sandstorm.PositionTooOld) as old:
            while True:
                # The log keeps 64 MiB behind a checkpoint, which comes after 128 MiB.
                self.client.put("large", "one", large)
                next(self.client.changes("large", begin))
        self.assertEqual(old.exception.code, "too_old")

    def test_threads_share_a_client(self) -> None:
        def add() -> None:
            for _ in range(50):
                self.client.increment("items", b"threads")

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.client.get("items", b"threads"), b"400")

    def test_a_closed_client_says_so(self) -> None:
        client = sandstorm.Client(SERVER, TENANT, TOKEN)
        client.close()
        client.close()
        with self.assertRaises(sandstorm.ClosedError):
            client.ping()


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def test_many_requests_at_a_time(self) -> None:
        async with await sandstorm.AsyncClient.open(SERVER, TENANT, TOKEN, timeout=30, sealing="always") as client:
            await asyncio.gather(*(client.put("items", f"async{number}", str(number)) for number in range(200)))
            keys = [f"async{number}" for number in range(200)]
            found = await client.get_many("items", keys)
            self.assertEqual([int(record.value) for record in found if record], list(range(200)))
            self.assertEqual(await client.call("bank.deposit", {"name": "async", "balance": 1}), 1)
            with self.assertRaises(sandstorm.TypesError):
                await client.call("bank.deposit", {"name": "async"})
            self.assertEqual(await client.get("items", b"async7"), b"7")
            self.assertEqual(len(await client.put_many("async", {"many": "1", "more": "2"})), 2)
            async with client.transaction() as transaction:
                self.assertEqual(await transaction.increment("async", "many", 2), 3)
                await transaction.put("async", "more", "3", if_value="2")
                with self.assertRaises(sandstorm.Conflict):
                    await transaction.put("async", "more", "4", if_absent=True)
                with self.assertRaises(sandstorm.Conflict):
                    await transaction.delete("async", "more", if_version=7)
            self.assertEqual([await client.get("async", key) for key in ("many", "more")], [b"3", b"3"])
            self.assertEqual(await client.ttl("async", "many"), math.inf)
            self.assertEqual((await client.touch("async", "many", 600), await client.touch("async", "x", 1)), (True, False))
            left = await client.ttl("async", "many")
            assert left is not None and left != math.inf
            await client.put("words", "async", "")
            place = await client.rank("words", "async")
            self.assertEqual(await client.nth("words", place), b"async")
            self.assertEqual(await client.count("words", "async", b"async\0"), 1)
            async with client.transaction() as transaction:
                await transaction.put("words", "asynd", "")
                self.assertEqual(await transaction.count("words", "async", "asyne"), 2)
                self.assertEqual(await transaction.nth("words", await transaction.rank("words", "asynd")), b"asynd")
                self.assertIsNone(await transaction.nth("words", await transaction.count("words")))
                self.assertTrue(await transaction.touch("words", "async", 600))
                self.assertEqual(await transaction.ttl("words", "async"), 600)
            await client.ping()

    async def test_what_a_call_cost(self) -> None:
        async with await sandstorm.AsyncClient.open(SERVER, TENANT, TOKEN, timeout=30) as client:
            measured = await client.near("k").measure("bad", b"no arguments of it")
            assert measured.cost is not None
            self.assertGreater(measured.cost.cpu_ns, 0)
            self.assertLessEqual(measured.cost.cpu_ns, measured.cost.wall_ns)
            costs: list[sandstorm.Cost] = []
            measured_client = client.on_cost(costs.append)
            self.assertEqual(await measured_client.call("bank.deposit", {"name": "measured-async", "balance": 1}), 1)
            self.assertEqual(len(costs), 1)
            nothing = await client.measure("nothing")
            self.assertIsNone(nothing.cost)
            self.assertIsInstance(nothing.error, sandstorm.UnknownExtension)

    async def test_transactions(self) -> None:
        async with await sandstorm.AsyncClient.open(SERVER, TENANT, TOKEN, timeout=30) as client:
            async def count(transaction: sandstorm.AsyncTransaction) -> int:
                seen = int(await transaction.get("items", "counted") or 0) + 1
                await transaction.put("items", "counted", str(seen))
                return seen

            seen = await asyncio.gather(*(client.transact(count) for _ in range(5)))
            self.assertEqual(sorted(seen), [1, 2, 3, 4, 5])
            with self.assertRaises(sandstorm.TransactionConflict):
                async with client.transaction() as transaction:
                    await transaction.get("items", "counted")
                    await transaction.delete("items", "counted")
                    await client.put("items", "counted", "0")
            self.assertEqual(await client.get("items", "counted"), b"0")
            await client.put_many("words", {"ar1": "", "ar2": "", "ar3": ""})
            async with client.transaction() as transaction:
                self.assertEqual(await transaction.delete_range("words", "ar", "as", limit=2), 2)
            self.assertEqual([record.key for record in await client.range("words", "ar", "as")], [b"ar3"])

    async def test_changes(self) -> None:
        async with await sandstorm.AsyncClient.open(SERVER, TENANT, TOKEN, timeout=30) as client:
            begin = await client.end_of_changes("async")
            feed = client.changes("async", begin)
            await asyncio.gather(*(client.put("async", f"key{number}", str(number)) for number in range(50)))
            found = [await feed.__anext__() for _ in range(50)]
            self.assertEqual({change.key: change.value for change in found}, {b"key%d" % n: b"%d" % n for n in range(50)})
            # A step that is cancelled has taken nothing.
            waits = asyncio.ensure_future(feed.__anext__())
            await asyncio.sleep(0)
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            assert feed.position is not None
            self.assertGreaterEqual(int(feed.position), int(found[-1].position))
            await client.delete("async", "key7")
            async for change in feed:
                self.assertEqual((change.op, change.key, change.value), ("delete", b"key7", b""))
                break
            again = client.changes("async", begin)
            self.assertEqual([await again.__anext__() for _ in range(50)], found)
            ends = client.changes("async", again.position, wait=0)
            self.assertLessEqual(len([change async for change in ends]), 2)
            # Requests go on while a feed waits.
            waits = asyncio.ensure_future(client.changes("async").__anext__())
            self.assertEqual(await client.get("async", "key8"), b"8")
            waits.cancel()
            with self.assertRaises(sandstorm.NoChangeFeed):
                await client.changes("memory").__anext__()
            with self.assertRaises(sandstorm.UnknownTable):
                await client.end_of_changes("nothing")

    async def test_a_wrong_token_is_an_error_and_a_cancelled_request_is_none(self) -> None:
        with self.assertRaises(sandstorm.ConnectionFailed):
            await sandstorm.AsyncClient.open(SERVER, TENANT, "wrong")
        client = await sandstorm.AsyncClient.open(SERVER, TENANT, TOKEN)
        asked = asyncio.ensure_future(client.get("items", b"cancelled"))
        await asyncio.sleep(0)
        asked.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await asked
        await client.ping()
        await client.close()


if __name__ == "__main__":
    unittest.main()
