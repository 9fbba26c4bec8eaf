"""Makes a wheel of the Python client, with the library in it. It needs cargo, and nothing of Python's beside Python.

    python3 clients/python/build_wheel.py [--out FOLDER] [--library FILE]

--out      where the wheel goes (target/wheels)
--library  libsandstorm_c.so, instead of one that is built here for release; SANDSTORM_CLIENT_LIBRARY does the same

It is also the build backend that pip asks (PEP 517), so `pip install clients/python` works. What is made is the same at
each run of the same library: times are fixed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
NAME, VERSION = "sandstorm_client", "0.1.0"
LIBRARY = "libsandstorm_c.so"


def library() -> Path:
    """The library, built if none is named."""
    given = os.environ.get("SANDSTORM_CLIENT_LIBRARY")
    if given:
        return Path(given)
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "sandstorm-c"], cwd=REPOSITORY, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release" / LIBRARY


def tag() -> str:
    return f"py3-none-linux_{platform.machine()}"


def metadata() -> str:
    readme = (HERE / "README.md").read_text()
    lines = [
        "Metadata-Version: 2.1",
        "Name: sandstorm-client",
        f"Version: {VERSION}",
        "Summary: Client of the Sandstorm storage server: records, extensions, typed calls; plain and asyncio",
        "License: Apache-2.0",
        "Requires-Python: >=3.9",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + readme


def files(library_file: Path) -> List[Tuple[str, bytes]]:
    """What is in the wheel but for its list."""
    package = HERE / "src" / "sandstorm"
    found = [(f"sandstorm/{path.name}", path.read_bytes()) for path in sorted(package.iterdir()) if path.is_file()]
    found = [(name, text) for name, text in found if not name.endswith(".so")]
    found.append((f"sandstorm/{LIBRARY}", library_file.read_bytes()))
    about = f"{NAME}-{VERSION}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: sandstorm build_wheel.py\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    found.append((f"{about}/METADATA", metadata().encode()))
    found.append((f"{about}/WHEEL", wheel.encode()))
    return found


def write(folder: Path) -> Path:
    """Writes the wheel into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}-{VERSION}-{tag()}.whl"
    record = f"{NAME}-{VERSION}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(library()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
            add(archive, name, content)
        add(archive, record, ("".join(lines) + f"{record},,\n").encode())
    return path


def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


# What pip asks of a build backend.


def get_requires_for_build_wheel(config_settings: Any = None) -> List[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    return write(Path(wheel_directory)).name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    raise RuntimeError("the client is built in a copy of the repository: make a wheel there")


def main() -> None:
    arguments = argparse.ArgumentParser(description="Makes a wheel of the Python client.")
    arguments.add_argument("--out", type=Path, default=REPOSITORY / "target" / "wheels")
    arguments.add_argument("--library", type=Path)
    given = arguments.parse_args()
    if given.library is not None:
        os.environ["SANDSTORM_CLIENT_LIBRARY"] = str(given.library)
    sys.stdout.write(f"{write(given.out)}\n")


if __name__ == "__main__":
    main()
