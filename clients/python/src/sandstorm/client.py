"""The plain client."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Type, TypeVar

from . import operations
from .native import NativeClient
from .operations import Bytes, KeyedRecord, Measured, Record, Request

T = TypeVar("T")


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

    def delete(
        self, table: str, key: Bytes, *, if_version: Optional[int] = None, timeout: Optional[float] = None
    ) -> bool:
        """Deletes a record; whether there was one."""
        return self._ask(operations.delete(self.table_id(table), key, if_version), timeout)

    def increment(self, table: str, key: Bytes, delta: int = 1, *, timeout: Optional[float] = None) -> int:
        """Adds to the decimal number under a key, 0 when absent; the sum."""
        return self._ask(operations.increment(self.table_id(table), key, delta), timeout)

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
        return self._ask(operations.invoke(extension, args, version, may_repeat), timeout)

    def measure(
        self, extension: str, args: Bytes = b"", *, version: int = 0, timeout: Optional[float] = None
    ) -> Measured:
        """As invoke, with what the call cost, also if it failed or was killed."""
        return self._ask(operations.measure(extension, args, version), timeout)

    def call(self, name: str, args: Any = None, *, timeout: Optional[float] = None) -> Any:
        """Calls a typed function, `extension` or `extension.function`: arguments and reply are as their JSON."""
        return self._ask(operations.call(name, args), timeout)

    def schema(self, extension: str) -> Optional[Dict[str, Any]]:
        """The types of an extension's functions; None: it takes and gives bytes."""
        return self._ask(operations.schema(extension), None)
