"""How calls end, by name, of both clients."""

import asyncio
import json
import os
from typing import List, Tuple

import sandstorm
from shapes import AsyncShapesClient, ShapesClient

SERVER, TOKEN = os.environ["CONTROL"], os.environ["TOKEN"]
ENDS: List[Tuple[str, str, str, str]] = [tuple(end) for end in json.loads(os.environ["ENDS"])]


CLASSES = {
    "conflict": sandstorm.Conflict,
    "failed": sandstorm.Failed,
    "invalid": sandstorm.TypesError,
    "killed": sandstorm.Killed,
    "not_durable": sandstorm.SandstormError,
    "over_quota": sandstorm.Busy,
    "suspended": sandstorm.SandstormError,
    "too_large": sandstorm.SandstormError,
    "unknown_extension": sandstorm.UnknownExtension,
    "unknown_function": sandstorm.UnknownFunction,
}


def check(error: sandstorm.SandstormError, word: str, code: str, name: str) -> None:
    found = getattr(error, "kind", getattr(error, "cause", ""))
    assert (error.code, found) == (code, name), f"{word}: {error.code} {found}: {error}"
    assert type(error) is CLASSES[code], type(error)


async def by_asyncio() -> None:
    async with await sandstorm.AsyncClient.open(SERVER, "shop", TOKEN, timeout=60) as client:
        for function, word, code, name in ENDS:
            try:
                if function == "shapes.end":
                    await AsyncShapesClient(client).end(word)
                else:
                    await client.call(function, word)
            except sandstorm.SandstormError as error:
                check(error, f"{function} {word[:20]}", code, name)
            else:
                raise AssertionError(f"{function} {word[:20]}")


with sandstorm.Client(SERVER, "shop", TOKEN, timeout=60) as client:
    for function, word, code, name in ENDS:
        try:
            if function == "shapes.end":
                ShapesClient(client).end(word)
            else:
                client.call(function, word)
        except sandstorm.SandstormError as error:
            check(error, f"{function} {word[:20]}", code, name)
        else:
            raise AssertionError(f"{function} {word[:20]}")
asyncio.run(by_asyncio())
