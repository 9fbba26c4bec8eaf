"""The plain client."""

from __future__ import annotations

import copy
import json
import queue
import random
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import operations
from .change_feed import FeedState
from .errors import Busy, SandstormError, TransactionConflict
from .native import NativeClient
from .operations import Bytes, Change, Cost, KeyedRecord, Measured, Record, Request
from .transaction_state import MAX_WRITES, PAUSES, ExpectedRecord, Span, TransactionState, added

T = TypeVar("T")
R = TypeVar("R")


class Client:
    """A tenant's connection. Threads may share it, with any number of requests at a time.

    `server` is the control port, `timeout` the seconds that a request takes at most. `fingerprint` or `ca` says which
    certificate of the control port is believed. A request runs at most once, however often its packets are lost.
    """

    def __init__(
        self,
        server: str,
        tenant: str,
        token: str,
        *,
        timeout: float = 2.0,
        fingerprint: Optional[str] = None,
        ca: Optional[str] = None,
        sealing: str = "auto",
    ) -> None:
        self._tables: Dict[str, int] = {}
        self._near: Optional[bytes] = None
        self._on_cost: Optional[Callable[[Cost], None]] = None
        opened: "queue.SimpleQueue[bytes]" = queue.SimpleQueue()
        given = operations.options(server, tenant, token, timeout, fingerprint, ca, sealing)
        self._native = NativeClient(given, opened.put)
        try:
            operations.ping().decode(opened.get())
        except BaseException:
            self._native.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; what is under way gets ClosedError."""
        self._native.close()

    def _ask(self, request: Request[T], timeout: Optional[float]) -> T:
        answered: "queue.SimpleQueue[bytes]" = queue.SimpleQueue()
        self._native.submit(request.encode(timeout), answered.put)
        return request.decode(answered.get())

    def ping(self, *, timeout: Optional[float] = None) -> None:
        """Asks for a sign of life."""
        self._ask(operations.ping(), timeout)

    def table_id(self, name: str) -> int:
        """The id of a table, or of one that another tenant granted (`owner/table`). It is asked for once."""
        known = self._tables.get(name)
        if known is None:
            known = self._ask(operations.table(name), None)
            self._tables[name] = known
        return known

    def get(self, table: str, key: Bytes, *, timeout: Optional[float] = None) -> Optional[bytes]:
        """The value under a key; None: there is none."""
        record = self.get_record(table, key, timeout=timeout)
        return None if record is None else record.value

    def get_record(self, table: str, key: Bytes, *, timeout: Optional[float] = None) -> Optional[Record]:
        """The record under a key, with its version and flags."""
        return self._ask(operations.get(self.table_id(table), key), timeout)

    def get_many(
        self, table: str, keys: Sequence[Bytes], *, timeout: Optional[float] = None
    ) -> List[Optional[Record]]:
        """The records under many keys, in their order."""
        return self._ask(operations.get_many(self.table_id(table), keys), timeout)

    def range(
        self,
        table: str,
        start: Bytes = b"",
        end: Bytes = b"",
        *,
        limit: int = 100,
        backward: bool = False,
        timeout: Optional[float] = None,
    ) -> List[KeyedRecord]:
        """Records of an ordered table with start <= key < end (an empty end: to the end), in order."""
        request = operations.range_of(self.table_id(table), start, end, limit, backward)
        return self._ask(request, timeout)

    def put(
        self,
        table: str,
        key: Bytes,
        value: Bytes,
        *,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: Optional[int] = None,
        ttl: Optional[float] = None,
        flags: int = 0,
        timeout: Optional[float] = None,
    ) -> int:
        """Writes a record; its new version. Conflict: the condition does not hold. `ttl` is in seconds."""
        request = operations.put(
            self.table_id(table), key, value, if_absent, if_present, if_version, ttl, flags
        )
        return self._ask(request, timeout)

    def put_many(
        self,
        table: str,
        records: Union[Mapping[Bytes, Bytes], Iterable[Tuple[Bytes, Bytes]]],
        *,
        ttl: Optional[float] = None,
        flags: int = 0,
        timeout: Optional[float] = None,
    ) -> List[int]:
        """Writes many records in their order, as many in a message as fit; their versions. It is no transaction: after
        an error some of them are written. `ttl` is in seconds, `timeout` of each message."""
        pairs = records.items() if isinstance(records, Mapping) else records
        return self._ask(operations.put_many(self.table_id(table), pairs, ttl, flags), timeout)

    def delete(
        self, table: str, key: Bytes, *, if_version: Optional[int] = None, timeout: Optional[float] = None
    ) -> bool:
        """Deletes a record; whether there was one."""
        return self._ask(operations.delete(self.table_id(table), key, if_version), timeout)

    def increment(self, table: str, key: Bytes, delta: int = 1, *, timeout: Optional[float] = None) -> int:
        """Adds to the decimal number under a key, 0 when absent; the sum."""
        return self._ask(operations.increment(self.table_id(table), key, delta), timeout)

    def count(
        self, table: str, start: Bytes = b"", end: Bytes = b"", *, timeout: Optional[float] = None
    ) -> int:
        """How many keys an ordered table has with start <= key < end (an empty end: to the end). No record is looked
        for: an expired one counts until it is removed, which takes some seconds."""
        return self._ask(operations.count(self.table_id(table), start, end), timeout)

    def rank(self, table: str, key: Bytes, *, timeout: Optional[float] = None) -> int:
        """How many keys an ordered table has before this one, whether or not it is there: its position, from 0."""
        return self._ask(operations.rank(self.table_id(table), key), timeout)

    def nth(self, table: str, position: int, *, timeout: Optional[float] = None) -> Optional[bytes]:
        """The key at a position of an ordered table, from 0; None: it has not so many."""
        return self._ask(operations.nth(self.table_id(table), position), timeout)

    def ttl(self, table: str, key: Bytes, *, timeout: Optional[float] = None) -> Optional[float]:
        """How many seconds a record has left; math.inf: for ever. None: there is none."""
        return self._ask(operations.ttl(self.table_id(table), key), timeout)

    def touch(
        self, table: str, key: Bytes, ttl: Optional[float], *, timeout: Optional[float] = None
    ) -> bool:
        """Lets a record expire after so many seconds (None: never); whether there is one. Its value and flags stay."""
        return self._ask(operations.touch(self.table_id(table), key, ttl), timeout)

    def invoke(
        self,
        extension: str,
        args: Bytes = b"",
        *,
        version: int = 0,
        may_repeat: bool = False,
        timeout: Optional[float] = None,
    ) -> bytes:
        """Calls an extension with bytes; its reply. It runs at most once, unless it may repeat, as one that only reads."""
        if self._on_cost is not None and not may_repeat:
            asked = operations.near(self._near, operations.measure(extension, args, version))
            return operations.told_reply(self._ask(asked, timeout), self._on_cost)
        request = operations.invoke(extension, args, version, may_repeat)
        return self._ask(operations.near(self._near, request), timeout)

    def measure(
        self, extension: str, args: Bytes = b"", *, version: int = 0, timeout: Optional[float] = None
    ) -> Measured:
        """As invoke, with what the call cost, also if it failed or was killed."""
        return self._ask(operations.near(self._near, operations.measure(extension, args, version)), timeout)

    def call(
        self, name: str, args: Any = None, *, version: int = 0, timeout: Optional[float] = None
    ) -> Any:
        """Calls a typed function, `extension` or `extension.function`: arguments and reply are as their JSON. With a
        version it is that one, which is kept, by its types."""
        if self._on_cost is not None:
            asked = operations.near(self._near, operations.measured_call(name, args, version))
            return json.loads(operations.told_reply(self._ask(asked, timeout), self._on_cost))
        return self._ask(operations.near(self._near, operations.call(name, args, version)), timeout)

    def on_cost(self, observe: Callable[[Cost], None]) -> "Client":
        """The same connection for calls whose cost is told to `observe` before they return or raise, those of
        generated clients too: `BankClient(client.on_cost(costs.append))`. A call that did not run
        has none, nor has one that may repeat."""
        told = copy.copy(self)
        told._on_cost = observe
        return told

    def near(self, key: Bytes) -> "Client":
        """The same connection for calls, which run at the server of a cluster that has this key, wherever it moves:
        `BankClient(client.near("ann"))`, `client.near("ann").call(...)`. Nothing is sent for it."""
        near = copy.copy(self)
        near._near = operations.as_bytes(key)
        return near

    def schema(self, extension: str) -> Optional[Dict[str, Any]]:
        """The types of an extension's functions; None: it takes and gives bytes."""
        return self._ask(operations.schema(extension), None)

    def end_of_changes(self, table: str) -> str:
        """Where the log of a table's changes ends now: what is read of the table from now on has all before."""
        return self._ask(operations.changes(table, None, 0), None).next

    def changes(self, table: str, from_position: Optional[str] = None, *, wait: Optional[float] = None) -> "ChangeFeed":
        """The changes of a table behind a position, in their order: `for change in client.changes("items", position)`.

        Without a position: those from the first step on. It waits for more for ever, or ends after `wait` seconds
        without one; 0: at the log's end. The table needs durability.
        """
        return ChangeFeed(self, table, from_position, wait)

    def transaction(self, *, timeout: Optional[float] = None) -> "Transaction":
        """Begins a transaction: `with client.transaction() as transaction:` commits it at the block's end."""
        return Transaction(self, timeout)

    def transact(self, body: Callable[["Transaction"], R], *, timeout: Optional[float] = None) -> R:
        """Runs `body` in a transaction and commits that; again, after growing pauses, while others change what it
        reads, up to 16 times in all. `body` does nothing else that counts. If it raises, one message asks whether what
        it has read held at one moment, and if not, it runs again: its exception may come of that."""
        for pause in [*PAUSES, None]:
            transaction = self.transaction(timeout=timeout)
            try:
                result = body(transaction)
            except Exception as error:
                conflict = transaction._conflict_behind(error)
                if conflict is None:
                    raise
                if pause is None:
                    raise conflict from error
            else:
                try:
                    transaction.commit()
                    return result
                except TransactionConflict:
                    if pause is None:
                        raise
            if pause is not None:
                time.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")


class Transaction:
    """A transaction: reads go to the server one by one; writes wait for the commit, and its own reads show them.

    `commit` makes all writes at one moment at which all that was read still holds, or raises TransactionConflict. One that
    is dropped has changed nothing.
    """

    def __init__(self, client: "Client", timeout: Optional[float]) -> None:
        self._client = client
        self._timeout = timeout
        self._state = TransactionState()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.commit()

    def get(self, table: str, key: Bytes) -> Optional[bytes]:
        """The value under a key; None: there is none."""
        record = self.get_record(table, key)
        return None if record is None else record.value

    def get_record(self, table: str, key: Bytes) -> Optional[Record]:
        """The record under a key; version 0 is what the transaction writes itself."""
        return (self.get_many(table, [key]))[0]

    def get_many(self, table: str, keys: Sequence[Bytes]) -> List[Optional[Record]]:
        """The records under many keys, in their order; those that it does not know yet in one round trip."""
        number = self._client.table_id(table)
        unknown = self._state.unknown(number, keys)
        if unknown:
            found = self._client.get_many(table, unknown, timeout=self._timeout)
            self._state.note_reads(number, unknown, found)
        return self._state.records(number, keys)

    def range(
        self, table: str, start: Bytes = b"", end: Bytes = b"", *, limit: int = 100, backward: bool = False
    ) -> List[KeyedRecord]:
        """Records of an ordered table with start <= key < end, with what the transaction itself writes there. The commit
        holds only if no other record has come meanwhile."""
        number = self._client.table_id(table)
        first, behind = operations.as_bytes(start), operations.as_bytes(end)
        if limit < 1 or (behind and behind <= first):
            return []
        asked = limit + self._state.deletes_within(number, first, behind)
        found = self._client.range(
            table, first, behind, limit=asked, backward=backward, timeout=self._timeout
        )
        return self._state.note_range(number, first, behind, (asked, limit), backward, found)

    def count(self, table: str, start: Bytes = b"", end: Bytes = b"") -> int:
        """How many keys an ordered table has with start <= key < end, with what the transaction itself writes there. At
        the commit it must have as many, whichever they are."""
        first, behind = operations.as_bytes(start), operations.as_bytes(end)
        if behind and behind <= first:
            return 0
        number = self._client.table_id(table)
        spans = self._state.spans_to_count(number, first, behind)
        return self._state.note_counts(number, spans, self._count_spans(number, spans))

    def rank(self, table: str, key: Bytes) -> int:
        """How many keys an ordered table has before this one, whether or not it is there: its position, from 0. The rest
        is as for count."""
        raw = operations.as_bytes(key)
        return self.count(table, b"", raw) if raw else self._client.rank(table, raw, timeout=self._timeout)

    def nth(self, table: str, position: int) -> Optional[bytes]:
        """The key at a position of an ordered table, from 0, with what the transaction itself writes there; None: it has
        not so many. At the commit it must be there."""
        if position < 0:
            raise ValueError("positions begin at 0")
        number = self._client.table_id(table)
        own = self._state.spans_before_own(number)
        found = self._count_spans(number, [span for _, _, before, itself in own for span in (before, itself)])
        place = self._state.among_own(number, position, own, found)
        if isinstance(place, bytes):
            return place
        if place < 0:
            # What was counted is of different moments: the commit finds that.
            return None
        for _ in range(len(PAUSES) + 1):
            key = self._client.nth(table, place, timeout=self._timeout)
            if key is not None:
                self._state.note_nth(number, place, key)
                return key
            keys = self._client.count(table, timeout=self._timeout)
            if keys <= place:
                self._state.note_count(number, (b"", b""), keys)
                return None
            # Another has come between the two questions.
        # Both answers are noted. They cannot hold at one moment, so the transaction begins anew.
        self._state.note_count(number, (b"", b""), place)
        self._state.note_count(number, (b"", b""), keys)
        raise TransactionConflict("conflict", "others write to the table all the time; run it again", b"")

    def ttl(self, table: str, key: Bytes) -> Optional[float]:
        """How many seconds a record has left; math.inf: for ever. None: there is none. It is a read of the record."""
        own = self._state.own_ttl(self._client.table_id(table), key)
        if not isinstance(own, bool):
            return own
        # First its version: who changes when it expires gives it another, and the commit meets that.
        if self.get_record(table, key) is None:
            return None
        return self._client.ttl(table, key, timeout=self._timeout)

    def touch(self, table: str, key: Bytes, ttl: Optional[float]) -> bool:
        """Lets a record expire so many seconds after the commit (None: never); whether there is one. It is a read and a
        write of the whole record, whose value and flags stay."""
        found = self.get_record(table, key)
        return self._state.touch(self._client.table_id(table), key, ttl, found)

    def _count_spans(self, table: int, spans: Sequence[Span]) -> List[int]:
        """How many keys there are in each part, those that were not counted before asked for in one round trip."""
        unknown = self._state.unknown_spans(table, spans)
        found = self._client._ask(operations.count_many(table, unknown), self._timeout) if unknown else []
        return self._state.known_counts(table, spans, dict(zip(unknown, found)))

    def put(
        self,
        table: str,
        key: Bytes,
        value: Bytes,
        *,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: Optional[int] = None,
        if_value: Optional[Bytes] = None,
        ttl: Optional[float] = None,
        flags: int = 0,
    ) -> None:
        """Writes a record when it is committed. `ttl` is in seconds from then on. Conflict: the condition does not hold
        now; one that holds is part of what the transaction has read, so it still holds at the commit."""
        expected = ExpectedRecord.of(if_absent, if_present, if_version, if_value)
        if expected is not None:
            expected.check(self.get_record(table, key))
        self._state.put(self._client.table_id(table), key, value, ttl, flags)

    def increment(self, table: str, key: Bytes, delta: int = 1) -> int:
        """Adds to the decimal number under a key, 0 when absent, when it is committed; the sum. Flags stay, a time to
        live ends."""
        record = self.get_record(table, key)
        value = added(key, b"0" if record is None else record.value, delta)
        self._state.put(self._client.table_id(table), key, str(value), None, record.flags if record else 0)
        return value

    def delete(self, table: str, key: Bytes, *, if_version: Optional[int] = None) -> None:
        """Deletes a record when it is committed, if there is one then. Conflict: it has not that version now."""
        if if_version is not None:
            ExpectedRecord(version=if_version).check(self.get_record(table, key))
        self._state.delete(self._client.table_id(table), key)

    def delete_range(self, table: str, start: Bytes, end: Bytes, *, limit: Optional[int] = None) -> int:
        """Deletes records of an ordered table with start <= key < end (empty `end`: to its end), the smallest keys first
        and at most `limit`, when the transaction is committed; how many. Fewer than `limit`: nothing is left at the
        commit. More than the 256 records that a transaction may write are refused, and none of them is deleted."""
        # One more than may be written: that there are so many is all that has to be known.
        most = MAX_WRITES + 1 if limit is None else min(limit, MAX_WRITES + 1)
        found = self.range(table, start, end, limit=most)
        return self._state.delete_range(self._client.table_id(table), found)

    def commit(self) -> None:
        """Makes all writes, or raises TransactionConflict, whose `key` others have changed."""
        steps = self._state.steps()
        if steps:
            self._client._ask(operations.commit(steps), self._timeout)

    def _conflict_behind(self, error: Exception) -> Optional[TransactionConflict]:
        """What others have changed of what it has read, where an error may come of that. It writes nothing."""
        steps = self._state.steps_of_reads(error)
        try:
            if steps:
                self._client._ask(operations.commit(steps), self._timeout)
        except TransactionConflict as conflict:
            return conflict
        except SandstormError:
            pass
        return None


class ChangeFeed:
    """The changes of a table. One that has raised an error, such as ConnectionFailed, may be asked again: it goes on
    from where it was. Closing the client ends the wait with ClosedError."""

    def __init__(self, client: "Client", table: str, from_position: Optional[str], wait: Optional[float]) -> None:
        self._client = client
        self._state = FeedState(table, from_position, wait)

    @property
    def position(self) -> Optional[str]:
        """Where to go on another time: behind what was handled before the last step. It moves on while other tables
        change, too. None: before the first step."""
        return self._state.position

    def __iter__(self) -> "ChangeFeed":
        return self

    def __next__(self) -> Change:
        while True:
            change = self._state.take()
            if change is not None:
                return change
            request = self._state.request()
            if request is None:
                raise StopIteration
            try:
                self._state.note(self._client._ask(request, None))
            except Busy as busy:
                time.sleep(self._state.pause(busy))
