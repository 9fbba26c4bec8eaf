"""Client of the Sandstorm storage server.

    import sandstorm

    with sandstorm.Client("127.0.0.1:7399", "shop", token) as client:
        client.put("items", b"apple", b"3")
        print(client.get("items", b"apple"))
        print(client.call("bank.transfer", {"from": "ann", "to": "bob", "amount": 4}))

`AsyncClient` is the same for asyncio. docs/python.md is the guide.
"""

from .aio import AsyncChangeFeed, AsyncClient, AsyncTransaction
from .client import ChangeFeed, Client, Transaction
from .errors import (
    Busy,
    ClosedError,
    Conflict,
    ConnectionFailed,
    Failed,
    Killed,
    NoChangeFeed,
    NotSent,
    PositionTooOld,
    ReplyError,
    SandstormError,
    Timeout,
    TransactionConflict,
    TypesError,
    Unauthenticated,
    UnknownExtension,
    UnknownFunction,
    UnknownTable,
)
from .operations import Change, Cost, KeyedRecord, Measured, Record

__all__ = [
    "AsyncChangeFeed",
    "AsyncClient",
    "AsyncTransaction",
    "Busy",
    "Change",
    "ChangeFeed",
    "Client",
    "ClosedError",
    "Conflict",
    "ConnectionFailed",
    "Cost",
    "Failed",
    "KeyedRecord",
    "Killed",
    "Measured",
    "NoChangeFeed",
    "NotSent",
    "PositionTooOld",
    "Record",
    "ReplyError",
    "SandstormError",
    "Timeout",
    "Transaction",
    "TransactionConflict",
    "TypesError",
    "Unauthenticated",
    "UnknownExtension",
    "UnknownFunction",
    "UnknownTable",
]
__version__ = "0.1.0"
