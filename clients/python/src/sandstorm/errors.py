"""Errors by name. Each has `code`, the server's or the client's word for it."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Type


class SandstormError(Exception):
    """A request has no result; the text says why and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotSent(SandstormError):
    """Nothing has run: the request was refused."""


class Conflict(SandstormError):
    """A write's condition did not hold, or a call's transaction met the writes of others each time."""


class TransactionConflict(Conflict):
    """Others have changed what a transaction had read, such as `key`; it has written nothing. Run it again."""

    def __init__(self, code: str, message: str, key: bytes) -> None:
        super().__init__(code, message)
        self.key = key


class Timeout(SandstormError):
    """No answer came in time: it may have run or not. Read before you write again."""


class ClosedError(SandstormError):
    """The client was closed before the answer came: it may have run or not."""


class ConnectionFailed(SandstormError):
    """The control port or the data port cannot be reached."""


class Unauthenticated(NotSent, ConnectionFailed):
    """The token is missing or wrong. Until the next release it is a ConnectionFailed as well, which it was at opening."""


class UnknownTable(NotSent):
    """The tenant has no such table; the text names those that there are."""


class UnknownExtension(NotSent):
    """The tenant has no such extension, or not that version; the text names those that there are."""


class Busy(NotSent):
    """The server or the client has no room for it now, or a quota refuses it: try again later."""


class TypesError(NotSent):
    """What was given is not as it should be, such as arguments of other types than the function's; the text says where."""


class UnknownFunction(TypesError):
    """The extension has no such typed function; the text names those that there are."""


class ReplyError(SandstormError):
    """The call has run, and its reply is not of the types that the client knows: perhaps another version was pushed."""


class NoChangeFeed(NotSent):
    """The table has durability `none`: its changes are in no log."""


class PositionTooOld(NotSent):
    """The log does not go back to that position: read the table anew, and follow it from the log's end."""


class Killed(SandstormError):
    """The server ended the call, for `cause`. What it wrote outside of a transaction stays."""

    def __init__(self, code: str, message: str, cause: str) -> None:
        super().__init__(code, message)
        self.cause = cause


class Failed(SandstormError):
    """The extension returned an error, of some `kind`, such as `not_found`; `other` is its own."""

    def __init__(self, code: str, message: str, kind: str) -> None:
        super().__init__(code, message)
        self.kind = kind


_BY_CODE: Dict[str, Type[SandstormError]] = {
    "busy": Busy,
    "closed": ClosedError,
    "conflict": Conflict,
    "control": ConnectionFailed,
    "data_address": ConnectionFailed,
    "io": ConnectionFailed,
    "invalid": TypesError,
    "not_backed": Busy,
    "not_logged": NoChangeFeed,
    "options": NotSent,
    "over_quota": Busy,
    "overloaded": Busy,
    "reply": ReplyError,
    "shutting_down": Busy,
    "timeout": Timeout,
    "stale": Timeout,
    "too_old": PositionTooOld,
    "unauthenticated": Unauthenticated,
    "unknown_extension": UnknownExtension,
    "unknown_function": UnknownFunction,
    "unknown_table": UnknownTable,
    "untyped": TypesError,
    "wrong_server": NotSent,
}


def of_answer(body: bytes) -> SandstormError:
    """The error of an answer's JSON."""
    said: Dict[str, Any] = json.loads(body)
    code, message = str(said["code"]), str(said["message"])
    cause: Optional[str] = said.get("cause")
    kind: Optional[str] = said.get("kind")
    if said.get("key") is not None:
        return TransactionConflict(code, message, bytes.fromhex(str(said["key"])))
    if code == "killed":
        return Killed(code, message, cause or "unknown")
    if code == "failed":
        return Failed(code, message, kind or "other")
    return _BY_CODE.get(code, SandstormError)(code, message)
