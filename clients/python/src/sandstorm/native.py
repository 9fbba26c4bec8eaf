"""The library: the Rust client behind its C interface (clients/c)."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Optional

INTERFACE = 1
_DONE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)

Waiter = Callable[[bytes], None]


def _find() -> Path:
    given = os.environ.get("SANDSTORM_CLIENT_LIBRARY")
    return Path(given) if given else Path(__file__).with_name("libsandstorm_c.so")


def _load() -> ctypes.CDLL:
    path = _find()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"cannot load {path}: {error}; install a wheel that build_wheel.py made, or name the library in "
            "SANDSTORM_CLIENT_LIBRARY"
        ) from error
    library.sandstorm_interface.restype = ctypes.c_uint32
    library.sandstorm_open.restype = ctypes.c_void_p
    library.sandstorm_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t, _DONE, ctypes.c_uint64]
    library.sandstorm_submit.restype = None
    library.sandstorm_submit.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    library.sandstorm_close.restype = None
    library.sandstorm_close.argtypes = [ctypes.c_void_p]
    found = library.sandstorm_interface()
    if found != INTERFACE:
        raise ImportError(f"{path} has version {found} of the interface, this client {INTERFACE}")
    return library


_library: Optional[ctypes.CDLL] = None
_waiters: Dict[int, Waiter] = {}
_tokens = itertools.count(1)
_open: "weakref.WeakSet[NativeClient]" = weakref.WeakSet()


def _take(token: int, answer: Any, length: int) -> None:
    waiter = _waiters.pop(token, None)
    if waiter is not None:
        waiter(ctypes.string_at(answer, length))


# It lives as long as the module: the library keeps its address.
_take_callback = _DONE(_take)


class NativeClient:
    """A client of the library. `submit` may be called from any thread."""

    def __init__(self, options: Dict[str, Any], opened: Waiter) -> None:
        global _library
        if _library is None:
            _library = _load()
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False
        self._idle = threading.Condition(self._lock)
        text = json.dumps(options).encode()
        token = next(_tokens)
        _waiters[token] = opened
        self._handle: Optional[int] = _library.sandstorm_open(text, len(text), _take_callback, token)
        if not self._handle:
            _waiters.pop(token, None)
            raise OSError("no thread can be started for the client")
        _open.add(self)

    def submit(self, request: bytes, waiter: Waiter) -> None:
        """Begins a request; `waiter` is called once, from the library's thread, with the answer."""
        with self._lock:
            if self._closing or self._handle is None or _library is None:
                closed = b'\x01{"code": "closed", "message": "the client is closed"}'
            else:
                closed = b""
                self._users += 1
        if closed:
            waiter(closed)
            return
        assert _library is not None
        token = next(_tokens)
        _waiters[token] = waiter
        try:
            _library.sandstorm_submit(self._handle, request, len(request), token)
        finally:
            with self._lock:
                self._users -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Answers what is under way as closed, and frees the client. Not from within a waiter."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            while self._users:
                self._idle.wait()
            handle, self._handle = self._handle, None
        if handle is not None and _library is not None:
            _library.sandstorm_close(handle)


def _close_all() -> None:
    for client in list(_open):
        client.close()


# A thread of the library that answers while the interpreter ends would crash it.
atexit.register(_close_all)
