"""Download a public file over https, completely or not at all."""

from __future__ import annotations

import http.client
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
            content = answer.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise OSError(f"more than {LARGEST} bytes")
        replace_file(target, lambda out: out.write(content))
    except (http.client.HTTPException, OSError) as error:  # URLError is an OSError
        raise NetworkError(f"{url}: {error}") from error
    return target


def _demand_https(url: str) -> None:
    require(url.startswith("https://"), "an https address", url, "datasets are downloaded over https only")
