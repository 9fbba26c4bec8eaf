"""How calls end, by name, of both clients."""

import asyncio
import json
import os
from typing import List, Tuple

import sandstorm
from shapes import AsyncShapesClient, ShapesClient

SERVER, TOKEN = os.environ["CONTROL"], os.environ["TOKEN"]
ENDS: List[Tuple[str, str, str]] = [tuple(end) for end in json.loads(os.environ["ENDS"])]


def check(error: sandstorm.SandstormError, word: str, code: str, name: str) -> None:
    found = getattr(error, "kind", getattr(error, "cause", ""))
    assert (error.code, found) == (code, name), f"{word}: {error.code} {found}: {error}"
    classes = {"failed": sandstorm.Failed, "killed": sandstorm.Killed}
    assert isinstance(error, classes[code]), type(error)


async def by_asyncio() -> None:
    async with await sandstorm.AsyncClient.open(SERVER, "shop", TOKEN, timeout=60) as client:
        for word, code, name in ENDS:
            try:
                await AsyncShapesClient(client).end(word)
            except sandstorm.SandstormError as error:
                check(error, word, code, name)
            else:
                raise AssertionError(word)


with sandstorm.Client(SERVER, "shop", TOKEN, timeout=60) as client:
    for word, code, name in ENDS:
        try:
            ShapesClient(client).end(word)
        except sandstorm.SandstormError as error:
            check(error, word, code, name)
        else:
            raise AssertionError(word)
asyncio.run(by_asyncio())
