"""Calls near keys at a cluster whose slots move, by both clients: each runs once, where its key is."""

import asyncio
import os
from pathlib import Path
from typing import Dict, Optional

import sandstorm

SERVER, TOKEN = os.environ["CONTROL"], os.environ["TOKEN"]
PATIENCE = 120.0
sums: Dict[str, int] = {}


def note(name: str, found: int) -> None:
    expected = sums.get(name, 0) + 1
    assert found == expected, f"{name}: {found} instead of {expected}"
    sums[name] = found


def is_away(error: sandstorm.Failed) -> bool:
    """Its slot was given away while it ran: its transaction has written nothing."""
    return error.kind == "wrong_server"


def deposit(client: sandstorm.Client, name: str) -> None:
    while True:
        try:
            return note(name, client.near(name).call("bank.deposit", {"name": name, "balance": 1}))
        except sandstorm.Failed as failed:
            if not is_away(failed):
                raise


async def deposit_by_asyncio(client: sandstorm.AsyncClient, name: str) -> None:
    while True:
        try:
            return note(name, await client.near(name).call("bank.deposit", {"name": name, "balance": 1}))
        except sandstorm.Failed as failed:
            if not is_away(failed):
                raise


async def main() -> None:
    plain = sandstorm.Client(SERVER, "dev", TOKEN, timeout=PATIENCE / 2)
    by_asyncio = await sandstorm.AsyncClient.open(SERVER, "dev", TOKEN, timeout=PATIENCE / 2)
    while True:
        for number in range(24):
            deposit(plain, f"python:{number}")
        await asyncio.gather(*(deposit_by_asyncio(by_asyncio, f"asyncio:{number}") for number in range(24)))
        # Of the same key in other ways: bytes that are no argument of it are refused by the extension.
        error: Optional[sandstorm.SandstormError] = plain.near("python:0").measure("bank", b"").error
        assert isinstance(error, sandstorm.Failed) and error.kind == "invalid", error
        Path(os.environ["READY"]).touch()
        if Path(os.environ["STOP"]).exists():
            break
    plain.close()
    await by_asyncio.close()


asyncio.run(main())
