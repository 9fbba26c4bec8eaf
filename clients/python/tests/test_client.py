"""Promise: the Python client does what docs/python.md says, plain and with asyncio. The suite runs it
(tests/command_line/python.rs) against a server with ext/bank and ext/bad: SANDSTORM_TEST has its address and token."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import unittest

import sandstorm

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

    def test_ranges(self) -> None:
        for number in range(5):
            self.client.put("words", f"range{number}", str(number))
        found = self.client.range("words", b"range1", b"range4")
        self.assertEqual([record.value for record in found], [b"1", b"2", b"3"])
        last = self.client.range("words", b"range", b"rangf", limit=1, backward=True)
        self.assertEqual([record.key for record in last], [b"range4"])

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
        with self.assertRaisesRegex(sandstorm.TypesError, "there are: transfer, deposit, statement"):
            client.call("bank.audit")
        with self.assertRaisesRegex(sandstorm.TypesError, "no typed functions"):
            client.call("bad", {})
        with self.assertRaises(sandstorm.Failed) as failed:
            client.call("bank.transfer", {**order, "amount": 1000})
        self.assertEqual((failed.exception.kind, failed.exception.code), (100, "failed"))

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
        with self.assertRaisesRegex(sandstorm.UnknownTable, "it has: accounts, items, words"):
            client.get("itmes", b"k")
        with self.assertRaisesRegex(sandstorm.ConnectionFailed, "not authorised"):
            sandstorm.Client(SERVER, TENANT, "wrong")
        with self.assertRaises(sandstorm.ConnectionFailed):
            sandstorm.Client("127.0.0.1:1", TENANT, TOKEN)
        with self.assertRaises(ValueError):
            client.put("items", b"k", b"v", if_absent=True, if_present=True)

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
            await client.ping()

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
