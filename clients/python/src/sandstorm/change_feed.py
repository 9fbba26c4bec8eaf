"""Following the changes of a table, from a position on: what both clients do between two pages."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Deque, Optional

from . import operations
from .errors import Busy
from .operations import Change, ChangePage, Request

WAIT_S = 5
"""Seconds for which a page waits for a change. One that was given up keeps its place, of a tenant's four, so long."""

BUSY_PAUSES = tuple(0.1 * 2**number for number in range(8))
"""Seconds between tries while as many pages are made for the tenant as there may be: half a minute together."""


class FeedState:
    """What a feed has of its table, and from where it goes on."""

    def __init__(self, table: str, from_position: Optional[str], wait: Optional[float]) -> None:
        self.position = from_position
        self._table = table
        self._wait = wait
        self._waiting: Deque[Change] = deque()
        self._taken: Optional[Change] = None
        self._next = from_position
        self._quiet_since: Optional[float] = None
        self._busy = 0
        self._ended = False

    def take(self) -> Optional[Change]:
        """The next change that is there already. The one before it has been handled."""
        if self._taken is not None and self._taken.is_last:
            self.position = self._taken.position
        self._taken = self._waiting.popleft() if self._waiting else None
        if self._taken is None:
            self.position = self._next
        return self._taken

    def request(self) -> Optional[Request[ChangePage]]:
        """What to ask for the next page; None: the feed has ended."""
        if self._ended:
            return None
        if self._quiet_since is None:
            self._quiet_since = time.monotonic()
        if self._next is None:
            return operations.changes(self._table, None, 0)
        wait_s = WAIT_S
        if self._wait is not None:
            left = self._quiet_since + self._wait - time.monotonic()
            wait_s = min(WAIT_S, max(0, math.ceil(left)))
        return operations.changes(self._table, self._next, wait_s)

    def note(self, page: ChangePage) -> None:
        """Notes a page that has come."""
        self._busy = 0
        self._waiting.extend(page.changes)
        self._next = page.next
        if page.changes:
            self._quiet_since = None
        elif self._wait is not None and self._quiet_since is not None and page.at_end:
            self._ended = time.monotonic() - self._quiet_since >= self._wait
            if self._ended:
                self.position = page.next

    def pause(self, busy: Busy) -> float:
        """Seconds until the next try, or the error."""
        if self._busy >= len(BUSY_PAUSES):
            self._busy = 0
            raise busy
        self._busy += 1
        return BUSY_PAUSES[self._busy - 1]
