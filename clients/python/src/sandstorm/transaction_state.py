"""What a transaction has read and will write, of both clients."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple, Union

from . import operations
from .errors import Conflict, SandstormError
from .operations import Bytes, KeyedRecord, Record, as_bytes

PAUSES = [min(0.0005 * 2**tries, 0.064) for tries in range(15)]
"""Seconds between the tries of a transaction: one less than there are tries."""

MAX_KEY_BYTES = 64 << 10
MAX_RANGES = 256
"""Ranges and counts of one commit."""
MAX_WRITES = 256
"""Records that one commit writes and deletes."""

Place = Tuple[int, bytes]
Span = Tuple[bytes, bytes]
"""The smallest key of a part of a table, and the key before which it ends (empty: the table's end)."""
_Put = Tuple[bytes, Optional[float], int]


def _successor(key: bytes) -> Optional[bytes]:
    """The smallest key that can come after a key; None: none can."""
    if len(key) < MAX_KEY_BYTES:
        return key + b"\0"
    cut = key.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


@dataclass(frozen=True)
class ExpectedRecord:
    """What has to be so of a record that a transaction goes on from."""

    absent: bool = False
    version: Optional[int] = None
    value: Optional[bytes] = None

    @staticmethod
    def of(
        absent: bool, present: bool, version: Optional[int], value: Optional[Bytes]
    ) -> Optional["ExpectedRecord"]:
        """A condition of those that may be given; None: there is none."""
        given = absent + present + (version is not None) + (value is not None)
        if given > 1:
            raise ValueError("one condition at a time: if_absent, if_present, if_version or if_value")
        return ExpectedRecord(absent, version, None if value is None else as_bytes(value)) if given else None

    def check(self, found: Optional[Record]) -> None:
        if self.absent:
            holds = found is None
        elif found is None:
            holds = False
        elif self.version is not None:
            # What the transaction writes itself has none yet, which is shown as 0.
            holds = found.version == self.version != 0
        else:
            holds = self.value is None or found.value == self.value
        if not holds:
            raise Conflict("conflict", "the record is not as the write's condition asks")


def added(key: Bytes, text: bytes, delta: int) -> int:
    """The sum of a decimal number, as the server's increment reads it, and another."""
    # Python reads no numbers of thousands of digits; 64 bits have 19, behind any zeros.
    digits = text.lstrip(b"-").lstrip(b"0")
    if re.fullmatch(rb"-?[0-9]+", text) and len(digits) <= 19:
        number = int(digits or b"0") * (-1 if text.startswith(b"-") else 1)
        sum_ = number + delta
        if -(1 << 63) <= number < 1 << 63 and -(1 << 63) <= sum_ < 1 << 63:
            return sum_
    shown = repr(as_bytes(key)[:64])[2:-1]
    why = f'the value under the key "{shown}" is not a decimal number, or the sum does not fit in 64 bits'
    raise SandstormError("not_a_number", why)


class TransactionState:
    """Reads, ranges, and writes that wait."""

    def __init__(self) -> None:
        self._reads: Dict[Place, Optional[Record]] = {}
        self._ranges: List[bytes] = []
        self._counts: Dict[Tuple[int, Span], int] = {}
        # What was found twice, and differs, stands here twice: the server refuses one of them.
        self._count_steps: Dict[bytes, None] = {}
        self._writes: Dict[Place, Optional[_Put]] = {}

    def _known(self, place: Place) -> Union[Record, None, bool]:
        """The record, None if there is none; False: it was neither read nor written."""
        if place in self._writes:
            put = self._writes[place]
            return None if put is None else Record(put[0], 0, put[2])
        return self._reads.get(place, False)

    def unknown(self, table: int, keys: Sequence[Bytes]) -> List[bytes]:
        """The keys that have to be asked for, each once."""
        raw = dict.fromkeys(as_bytes(key) for key in keys)
        return [key for key in raw if self._known((table, key)) is False]

    def note_reads(self, table: int, keys: Sequence[bytes], found: Sequence[Optional[Record]]) -> None:
        for key, record in zip(keys, found):
            self._reads[(table, key)] = record

    def records(self, table: int, keys: Sequence[Bytes]) -> List[Optional[Record]]:
        known = (self._known((table, as_bytes(key))) for key in keys)
        return [record if isinstance(record, Record) else None for record in known]

    def _written_within(self, table: int, start: bytes, end: bytes) -> List[Tuple[bytes, Optional[_Put]]]:
        return [
            (key, put)
            for (of, key), put in self._writes.items()
            if of == table and key >= start and (not end or key < end)
        ]

    def deletes_within(self, table: int, start: bytes, end: bytes) -> int:
        """Records that it deletes itself: each may hide one of those that are found."""
        return sum(put is None for _, put in self._written_within(table, start, end))

    def note_range(
        self,
        table: int,
        start: bytes,
        end: bytes,
        asked_limit: Tuple[int, int],
        backward: bool,
        found: Sequence[KeyedRecord],
    ) -> List[KeyedRecord]:
        """Notes what a range has met, and shows it with what the transaction writes there."""
        asked, limit = asked_limit
        if len(found) >= asked:
            # Only so far is known what there is.
            last = found[-1].key
            if backward:
                start = last
            else:
                after = _successor(last)
                end = end if after is None else after
        rows = [(record.key, record.version) for record in found]
        self._ranges.append(operations.range_step(table, start, end, backward, rows))
        shown = {record.key: record for record in found}
        for key, put in self._written_within(table, start, end):
            if put is None:
                shown.pop(key, None)
            else:
                shown[key] = KeyedRecord(key, put[0], 0, put[2])
        return [shown[key] for key in sorted(shown, reverse=backward)][:limit]

    def spans_to_count(self, table: int, start: bytes, end: bytes) -> List[Span]:
        """The parts of a table whose keys make a count: the whole, then each key that it writes itself."""
        return [(start, end), *((key, key + b"\0") for key, _ in self._written_within(table, start, end))]

    def spans_before_own(self, table: int) -> List[Tuple[bytes, bool, Span, Span]]:
        """The keys that it writes, in order: whether each stays, what is before it, and itself."""
        own = sorted(self._written_within(table, b"", b""), key=lambda written: written[0])
        return [(key, put is not None, (b"", key), (key, key + b"\0")) for key, put in own]

    def unknown_spans(self, table: int, spans: Sequence[Span]) -> List[Span]:
        """Those whose keys it has not counted yet, each once."""
        unknown = [span for span in dict.fromkeys(spans) if (table, span) not in self._counts]
        if len(self._ranges) + len(self._count_steps) + len(unknown) > MAX_RANGES:
            raise SandstormError("too_large", "a transaction has read over 256 ranges and counts")
        return unknown

    def known_counts(self, table: int, spans: Sequence[Span], asked: Dict[Span, int]) -> List[int]:
        return [asked[span] if span in asked else self._counts[(table, span)] for span in spans]

    def note_count(self, table: int, span: Span, keys: int) -> None:
        self._counts.setdefault((table, span), keys)
        self._count_steps[operations.count_step(table, span[0], span[1], keys)] = None

    def note_counts(self, table: int, spans: Sequence[Span], found: Sequence[int]) -> int:
        """Notes a count and those of the keys that it writes itself; the sum of both."""
        for span, keys in zip(spans, found):
            self.note_count(table, span, keys)
        count = found[0]
        for (key, _), keys in zip(spans[1:], found[1:]):
            stays = self._writes[(table, key)] is not None
            count += int(stays and not keys) - int(not stays and keys > 0)
        # Each is of its own moment: at the commit they are of one, or it does not hold.
        return max(count, 0)

    def among_own(
        self, table: int, position: int, own: Sequence[Tuple[bytes, bool, Span, Span]], found: Sequence[int]
    ) -> Union[bytes, int]:
        """A key of its own at a position, or the position of the wanted key among those of the table."""
        moved = 0
        for at, (key, stays, before, itself) in enumerate(own):
            keys_before, keys_itself = (found[2 * at] if key else 0), found[2 * at + 1]
            if key:
                self.note_count(table, before, keys_before)
            own_position = max(keys_before + moved, 0)
            if position < own_position:
                break
            self.note_count(table, itself, keys_itself)
            if position == own_position and stays:
                return key
            moved += int(stays and not keys_itself) - int(not stays and keys_itself > 0)
        return position - moved

    def note_nth(self, table: int, position: int, key: bytes) -> None:
        """Notes that a key was found at a position of the table."""
        if key:
            self.note_count(table, (b"", key), position)
        self.note_count(table, (key, key + b"\0"), 1)

    def own_ttl(self, table: int, key: Bytes) -> Union[float, None, bool]:
        """How long what it writes there is to live; None: it deletes it; False: it does not write there."""
        place = (table, as_bytes(key))
        if place not in self._writes:
            return False
        put = self._writes[place]
        return None if put is None else math.inf if put[1] is None else put[1]

    def touch(self, table: int, key: Bytes, ttl: Optional[float], found: Optional[Record]) -> bool:
        """Notes that a record expires so long after the commit; whether there is one. `found` is what is there."""
        if found is None:
            return False
        self._writes[(table, as_bytes(key))] = (found.value, ttl, found.flags)
        return True

    def put(self, table: int, key: Bytes, value: Bytes, ttl: Optional[float], flags: int) -> None:
        self._writes[(table, as_bytes(key))] = (as_bytes(value), ttl, flags)

    def delete(self, table: int, key: Bytes) -> None:
        self._writes[(table, as_bytes(key))] = None

    def delete_range(self, table: int, found: Sequence[KeyedRecord]) -> int:
        """Notes that all of these are deleted; how many."""
        places = [(table, record.key) for record in found]
        new = sum(place not in self._writes for place in places)
        if len(self._writes) + new > MAX_WRITES:
            text = "a transaction writes over 256 keys: delete the range by a smaller limit, in several transactions"
            raise SandstormError("too_large", text)
        self._writes.update(dict.fromkeys(places))
        return len(places)

    def steps_of_reads(self, error: Exception) -> List[bytes]:
        """The steps that ask whether what it has read held at one moment; none where an error cannot come of that."""
        may_be = not isinstance(error, SandstormError) or isinstance(error, Conflict) or error.code == "not_a_number"
        return self._read_steps() if may_be else []

    def _read_steps(self) -> List[bytes]:
        steps = [
            operations.read_step(table, key, 0 if record is None else record.version)
            for (table, key), record in self._reads.items()
        ]
        return steps + self._ranges + list(self._count_steps)

    def steps(self) -> List[bytes]:
        """The steps of its commit; none if it has neither read nor written anything."""
        steps = self._read_steps()
        for (table, key), put in self._writes.items():
            if put is None:
                steps.append(operations.delete_step(table, key))
            else:
                steps.append(operations.put_step(table, key, put[0], put[1], put[2]))
        return steps
