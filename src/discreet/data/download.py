"""Download a public file over https, completely or not at all."""

from __future__ import annotations

import http.client
import shutil
import urllib.request
from pathlib import Path

from discreet.core.check import require
from discreet.core.files import replace_file

TIMEOUT = 60.0
LARGEST = 512 * 2**20
"""A limit above the largest standard file (CIFAR-10, 162 MiB)."""


class NetworkError(Exception):
    """The file could not be fetched: no network, no such file, or a broken connection."""


def fetch(url: str, target: Path) -> Path:
    """Save `url` as `target`; a broken connection leaves no file.

    The content is not trusted: the caller checks its digest.
    """
    _demand_https(url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            _demand_https(answer.geturl())  # a redirect must not leave https
            replace_file(target, lambda out: shutil.copyfileobj(_Capped(answer), out))
    except (http.client.HTTPException, OSError) as error:  # URLError is an OSError
        raise NetworkError(f"{url}: {error}") from error
    return target


def _demand_https(url: str) -> None:
    require(url.startswith("https://"), "an https address", url, "datasets are downloaded over https only")


class _Capped:
    """A reader that limits the size of a response."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self._left = LARGEST

    def read(self, size: int = -1, /) -> bytes:
        chunk = self._answer.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise OSError(f"more than {LARGEST} bytes")
        return chunk
