"""Find a dataset's standard files or download them, and verify their content.

Whatever the file format (plain, gzip, tar, PNG, npz, parquet), a reader restores the same canonical bytes, which are
compared with the published digests: one checksum for each dataset, not for each format.
"""

import hashlib
import http.client
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from discreet.core.check import Refused, refuse, require
from discreet.core.files import replace_file

Parts = dict[str, bytes]
Reader = Callable[[Path], Parts | None]
"""Canonical bytes of every part, or None if the folder does not contain this format."""

TIMEOUT = 60.0
LARGEST = 512 * 2**20  # a limit above the largest standard file (CIFAR-10, 162 MiB)
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, tarfile.TarError)


class MissingDataset(Refused):
    """The dataset was not found; the message lists every way to get it."""


class NetworkError(Exception):
    """The file could not be fetched: no network, no such file, or a broken connection."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a dataset is searched: folders below a root, readers, published digests, ways to get it."""

    name: str
    sha256: Mapping[str, str]
    readers: tuple[Reader, ...]
    folders: tuple[str, ...]
    system: tuple[Path, ...] = ()
    urls: Mapping[str, str]
    files: str
    ways: tuple[str, ...]


def roots(data_dir: str | Path | None) -> tuple[Path, ...]:
    """The searched places, in order: the argument, `DISCREET_DATA`, the download cache."""
    named = (data_dir, os.environ.get("DISCREET_DATA"))
    return (*(Path(root).expanduser() for root in named if root), cache())


def cache() -> Path:
    """Where downloads are kept unless the user names a folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "discreet"


def obtain(source: Source, *, data_dir: str | Path | None, download: bool) -> Parts:
    """The verified canonical bytes of a dataset, found on disk or, if allowed, downloaded.

    Guarantee: every returned part has the published sha256, whatever file it came from.
    """
    *given, kept = roots(data_dir)
    folders = [root / below for root in given for below in source.folders]
    folders += [*source.system, *(kept / below for below in source.folders)]
    for folder in folders:
        parts = _read(source, folder)
        if parts is not None:
            return verified(source.sha256, parts, f"{source.name} in {folder}")
    if not source.urls:
        raise MissingDataset(_missing(source, folders, "nothing there"))
    if not download:
        raise MissingDataset(_missing(source, folders, "nothing there, and download was not asked for"))
    return _downloaded(source, (given[0] if given else kept) / source.name, folders)


def verified(sha256: Mapping[str, str], parts: Parts, what: str) -> Parts:
    """Refuse parts whose digests are not the published ones."""
    for part, digest in sha256.items():
        got = hashlib.sha256(parts[part]).hexdigest()
        if got != digest:
            remedy = "damaged, or another dataset: download it again, and keep each dataset in a folder of its name"
            refuse(f"{what} to have the published content ({part} with sha256 {digest})", f"sha256 {got}", remedy)
    return parts


def checksum(sha256: Mapping[str, str]) -> str:
    """The sha256 of the digests of all parts, in order."""
    return hashlib.sha256("".join(sha256.values()).encode()).hexdigest()


def _read(source: Source, folder: Path) -> Parts | None:
    for reader in source.readers:
        try:
            parts = reader(folder)
        except Refused:
            raise
        except _UNREADABLE as error:
            remedy = "the files are damaged: remove them and get the dataset again"
            refuse(f"readable files of {source.name} in {folder}", f"{type(error).__name__} ({error})", remedy)
        if parts is not None:
            return parts
    return None


def _downloaded(source: Source, folder: Path, searched: list[Path]) -> Parts:
    written: list[Path] = []
    try:
        for name, url in source.urls.items():
            if not (folder / name).exists():  # never overwrite or remove a user's file
                written.append(fetch(url, folder / name))
        parts = _read(source, folder)
        if parts is None:
            refuse(f"the downloads to complete {source.name}", f"an incomplete {folder}", "download again")
        return verified(source.sha256, parts, f"{source.name} in {folder}")
    except (NetworkError, Refused) as error:
        for file in written:  # an unverified download must not be used next time
            file.unlink(missing_ok=True)
        if isinstance(error, NetworkError):
            raise MissingDataset(_missing(source, searched, f"the download failed ({error})")) from error
        raise


def _missing(source: Source, searched: list[Path], why: str) -> str:
    own = (
        f"put the standard files ({source.files}) into a folder {source.name!r} below --data-dir (data_dir=) "
        "or below the folder that the environment variable DISCREET_DATA names"
    )
    hosts = " ".join(dict.fromkeys(url.rpartition("/")[0] for url in source.urls.values()))
    fetched = [f"with a network, --download (download=True), from {hosts}"] if source.urls else []
    ways = "; ".join(f"({i}) {way}" for i, way in enumerate((*source.ways, own, *fetched), 1))
    places = ", ".join(map(str, dict.fromkeys(searched)))
    return (
        f"Expected the dataset {source.name!r} in one of: {places}; got {why}. "
        f"Remedy: any one of {ways}. See docs/datasets.md."
    )


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
