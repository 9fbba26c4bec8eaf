"""What both clients can do: the bytes of requests, and what is made of answers."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

from .errors import SandstormError, TypesError, of_answer

T = TypeVar("T")
Bytes = Union[bytes, bytearray, memoryview, str]
"""Keys, values and arguments: bytes, or a text, which is sent as UTF-8."""


@dataclass(frozen=True)
class Record:
    """A record as it was read."""

    value: bytes
    version: int
    flags: int


@dataclass(frozen=True)
class KeyedRecord:
    """A record of a range."""

    key: bytes
    value: bytes
    version: int
    flags: int


@dataclass(frozen=True)
class Change:
    """A change of a table. `op` is `put`, `delete`, `expire`, or `clear` of all records up to `version`."""

    position: str
    """The position behind it; the changes of one transaction have the same."""
    op: str
    key: bytes
    value: bytes
    """Of a put; else empty."""
    version: int
    flags: int
    expires_at_ms: int
    """Milliseconds since the Unix epoch from which on the record counts as absent, or did; 0: never."""
    is_last: bool
    """Whether no other change of the same position follows: now `position` may be remembered."""


@dataclass(frozen=True)
class ChangePage:
    """Changes of a table, the position behind them, and whether the log ended there."""

    changes: List[Change]
    next: str
    at_end: bool


@dataclass(frozen=True)
class Cost:
    """What one call cost: docs/wire.md, "What a call cost"."""

    cpu_ns: int
    wall_ns: int
    first_turn_ns: int
    turns: int
    switches: int
    reads: int
    read_bytes: int
    commit_tries: int


@dataclass(frozen=True)
class Measured:
    """A call's reply or error, and its cost, if it ran."""

    reply: Optional[bytes]
    error: Optional[SandstormError]
    cost: Optional[Cost]


def as_bytes(given: Bytes) -> bytes:
    """The bytes of a key, a value or an argument. `bytes(7)` would be seven zero bytes, so a number is refused."""
    if isinstance(given, str):
        return given.encode()
    try:
        return bytes(memoryview(given))
    except TypeError:
        hint = ": a number is written as str(number)" if isinstance(given, (int, float)) else ""
        raise TypeError(f"keys, values and arguments are bytes or a text, not {type(given).__name__}{hint}") from None


def _counted(given: Bytes) -> bytes:
    raw = as_bytes(given)
    return struct.pack("<I", len(raw)) + raw


@dataclass(frozen=True)
class Request(Generic[T]):
    """An operation without its deadline, its fields, and what reads its result."""

    operation: int
    fields: bytes
    read: Callable[[bytes], T]

    def encode(self, timeout: Optional[float]) -> bytes:
        ms = 0 if timeout is None else min(max(1, round(timeout * 1000)), 0xFFFFFFFF)
        return struct.pack("<BI", self.operation, ms) + self.fields

    def decode(self, answer: bytes) -> T:
        if not answer:
            raise SandstormError("protocol", "the library's answer is empty")
        if answer[0] != 0:
            raise of_answer(answer[1:])
        return self.read(answer[1:])


_HEAD = struct.Struct("<BQI")


def _life_ms(ttl: Optional[float]) -> int:
    """A time to live in seconds as the library takes it; None, or infinity: for ever."""
    return 0 if ttl is None or ttl == math.inf else min(max(1, round(ttl * 1000)), 0xFFFFFFFFFFFFFFFF)


def _nothing(_: bytes) -> None:
    return None


def _u64(result: bytes) -> int:
    return int(struct.unpack("<Q", result)[0])


def _flag(result: bytes) -> bool:
    return result != b"\0"


def _record(result: bytes) -> Optional[Record]:
    found, version, flags = _HEAD.unpack_from(result)
    return Record(result[_HEAD.size :], version, flags) if found else None


def _take(result: bytes, at: int) -> Tuple[bytes, int]:
    (length,) = struct.unpack_from("<I", result, at)
    end = at + 4 + length
    return result[at + 4 : end], end


def _records(result: bytes) -> List[Optional[Record]]:
    records: List[Optional[Record]] = []
    at = 0
    while at < len(result):
        found, version, flags = _HEAD.unpack_from(result, at)
        value, at = _take(result, at + _HEAD.size)
        records.append(Record(value, version, flags) if found else None)
    return records


def _range(result: bytes) -> List[KeyedRecord]:
    records: List[KeyedRecord] = []
    at = 0
    while at < len(result):
        key, at = _take(result, at)
        value, at = _take(result, at)
        version, flags = struct.unpack_from("<QI", result, at)
        at += 12
        records.append(KeyedRecord(key, value, version, flags))
    return records


def _changes(result: bytes) -> ChangePage:
    following, at = _take(result, 0)
    at_end, at = result[at] != 0, at + 1
    found: List[Tuple[str, str, bytes, bytes, int, int, int]] = []
    while at < len(result):
        position, at = _take(result, at)
        op, at = _take(result, at)
        key, at = _take(result, at)
        value, at = _take(result, at)
        version, flags, expires_at_ms = struct.unpack_from("<QIQ", result, at)
        at += 20
        found.append((position.decode(), op.decode(), key, value, version, flags, expires_at_ms))
    # A page ends where a unit of the log does.
    behind = [one[0] for one in found[1:]] + [""]
    changes = [Change(*one, is_last=one[0] != after) for one, after in zip(found, behind)]
    return ChangePage(changes, following.decode(), at_end)


def _measured(result: bytes) -> Measured:
    has_cost, rest = result[0] != 0, result[1:]
    cost = Cost(*struct.unpack("<QQQIIQQQ", rest[:56])) if has_cost else None
    answer = rest[56:]
    if answer[0] == 0:
        return Measured(answer[1:], None, cost)
    return Measured(None, of_answer(answer[1:]), cost)


def ping() -> Request[None]:
    return Request(0, b"", _nothing)


def table(name: str) -> Request[int]:
    return Request(1, _counted(name), _u64)


def get(table: int, key: Bytes) -> Request[Optional[Record]]:
    return Request(2, struct.pack("<Q", table) + _counted(key), _record)


def put(
    table: int,
    key: Bytes,
    value: Bytes,
    if_absent: bool,
    if_present: bool,
    if_version: Optional[int],
    ttl: Optional[float],
    flags: int,
) -> Request[int]:
    if if_absent + if_present + (if_version is not None) > 1:
        raise ValueError("if_absent, if_present and if_version exclude each other")
    condition = 1 if if_absent else 2 if if_present else 3 if if_version is not None else 0
    life_ms = _life_ms(ttl)
    how = struct.pack("<BQQI", condition, if_version or 0, life_ms, flags)
    return Request(3, struct.pack("<Q", table) + _counted(key) + _counted(value) + how, _u64)


def delete(table: int, key: Bytes, if_version: Optional[int]) -> Request[bool]:
    how = struct.pack("<BQ", if_version is not None, if_version or 0)
    return Request(4, struct.pack("<Q", table) + _counted(key) + how, _flag)


def increment(table: int, key: Bytes, delta: int) -> Request[int]:
    fields = struct.pack("<Q", table) + _counted(key) + struct.pack("<q", delta)
    return Request(5, fields, lambda result: int(struct.unpack("<q", result)[0]))


def get_many(table: int, keys: Sequence[Bytes]) -> Request[List[Optional[Record]]]:
    fields = struct.pack("<QI", table, len(keys)) + b"".join(_counted(key) for key in keys)
    return Request(6, fields, _records)


def range_of(table: int, start: Bytes, end: Bytes, limit: int, backward: bool) -> Request[List[KeyedRecord]]:
    fields = struct.pack("<Q", table) + _counted(start) + _counted(end) + struct.pack("<IB", limit, backward)
    return Request(7, fields, _range)


def invoke(extension: str, args: Bytes, version: int, may_repeat: bool) -> Request[bytes]:
    fields = _counted(extension) + struct.pack("<Q", version) + _counted(args) + bytes([may_repeat])
    return Request(8, fields, bytes)


def call(name: str, args: Any, version: int) -> Request[Any]:
    called = f"{name}@{version}" if version else name
    return Request(9, _counted(called) + _counted(_json(args)), json.loads)


def _json(args: Any) -> str:
    """Arguments as JSON, which has no number that is none."""
    try:
        return json.dumps(args, allow_nan=False)
    except ValueError as error:
        # Something that has itself as a part has no end to look for.
        found = None if "Circular" in str(error) else _path_of_no_number(args)
        if found is None:
            raise
        raise TypesError("invalid", f"{found[0]}: {found[1]} is no number in JSON") from None


def _path_of_no_number(value: Any, path: str = "args") -> Optional[Tuple[str, str]]:
    """Where the first number is that JSON does not have, and which one it is."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, repr(value))
    parts: Iterable[Tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"{path}.{name}", part) for name, part in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{at}]", part) for at, part in enumerate(value))
    found = (_path_of_no_number(part, place) for place, part in parts)
    return next((place for place in found if place is not None), None)


def schema(extension: str) -> Request[Optional[Dict[str, Any]]]:
    return Request(10, _counted(extension), json.loads)


def measure(extension: str, args: Bytes, version: int) -> Request[Measured]:
    return Request(11, _counted(extension) + struct.pack("<Q", version) + _counted(args), _measured)


def commit(steps: Sequence[bytes]) -> Request[None]:
    return Request(12, struct.pack("<I", len(steps)) + b"".join(steps), _nothing)


def put_many(
    table: int, records: Iterable[Tuple[Bytes, Bytes]], ttl: Optional[float], flags: int
) -> Request[List[int]]:
    life_ms = _life_ms(ttl)
    pairs = [_counted(key) + _counted(value) for key, value in records]
    head = struct.pack("<QQII", table, life_ms, flags, len(pairs))
    return Request(15, head + b"".join(pairs), lambda result: [version for (version,) in struct.iter_unpack("<Q", result)])


def count(table: int, start: Bytes, end: Bytes) -> Request[int]:
    return Request(16, struct.pack("<Q", table) + _counted(start) + _counted(end), _u64)


def count_many(table: int, spans: Sequence[Tuple[bytes, bytes]]) -> Request[List[int]]:
    fields = struct.pack("<QI", table, len(spans)) + b"".join(_counted(start) + _counted(end) for start, end in spans)
    return Request(21, fields, lambda result: [keys for (keys,) in struct.iter_unpack("<Q", result)])


def rank(table: int, key: Bytes) -> Request[int]:
    return Request(17, struct.pack("<Q", table) + _counted(key), _u64)


def nth(table: int, position: int) -> Request[Optional[bytes]]:
    if position < 0:
        raise ValueError("positions begin at 0")
    return Request(18, struct.pack("<QQ", table, position), lambda result: result[1:] if result[0] else None)


def _left(result: bytes) -> Optional[float]:
    found, left_ms = struct.unpack("<BQ", result)
    return (left_ms / 1000 if left_ms else math.inf) if found else None


def ttl(table: int, key: Bytes) -> Request[Optional[float]]:
    return Request(19, struct.pack("<Q", table) + _counted(key), _left)


def touch(table: int, key: Bytes, ttl: Optional[float]) -> Request[bool]:
    return Request(20, struct.pack("<Q", table) + _counted(key) + struct.pack("<Q", _life_ms(ttl)), _flag)


def measured_call(name: str, args: Any, version: int) -> Request[Measured]:
    called = f"{name}@{version}" if version else name
    return Request(22, _counted(called) + _counted(_json(args)), _measured)


def told_reply(measured: Measured, observe: Callable[[Cost], None]) -> bytes:
    """The reply of a call whose cost is told; its error is raised afterwards."""
    if measured.cost is not None:
        observe(measured.cost)
    if measured.error is not None:
        raise measured.error
    return measured.reply or b""


def near(key: Optional[bytes], request: Request[T]) -> Request[T]:
    """A call that runs at the server which has a key; without one as it is."""
    if key is None:
        return request
    return Request(14, _counted(key) + bytes([request.operation]) + request.fields, request.read)


def changes(table: str, after: Optional[str], wait_s: int) -> Request[ChangePage]:
    """A page of changes; without `after` none, and the log's end."""
    position = struct.pack("<B", after is not None) + _counted(after or "")
    return Request(13, _counted(table) + position + struct.pack("<I", wait_s), _changes)


def _step(kind: int, table: int, key: bytes) -> bytes:
    return struct.pack("<BQ", kind, table) + _counted(key)


def read_step(table: int, key: bytes, version: int) -> bytes:
    return _step(0, table, key) + struct.pack("<Q", version)


def range_step(table: int, start: bytes, end: bytes, backward: bool, rows: Sequence[Tuple[bytes, int]]) -> bytes:
    met = b"".join(_counted(key) + struct.pack("<Q", version) for key, version in rows)
    return _step(1, table, start) + _counted(end) + struct.pack("<BI", backward, len(rows)) + met


def put_step(table: int, key: bytes, value: bytes, ttl: Optional[float], flags: int) -> bytes:
    life_ms = _life_ms(ttl)
    return _step(2, table, key) + _counted(value) + struct.pack("<QI", life_ms, flags)


def delete_step(table: int, key: bytes) -> bytes:
    return _step(3, table, key)


def count_step(table: int, start: bytes, end: bytes, keys: int) -> bytes:
    return _step(4, table, start) + _counted(end) + struct.pack("<Q", keys)


def options(
    server: str,
    tenant: str,
    token: str,
    timeout: float,
    fingerprint: Optional[str],
    ca: Optional[str],
    sealing: str,
) -> Dict[str, Any]:
    given: Dict[str, Any] = {"server": server, "tenant": tenant, "token": token, "sealing": sealing}
    given["timeout_ms"] = max(1, round(timeout * 1000))
    if fingerprint is not None:
        given["fingerprint"] = fingerprint
    if ca is not None:
        given["ca"] = ca
    return given
