"""Runs the program in this process, as the installed script does."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any, Protocol

from discreet.cli import main

GOLDEN = ("--method", "dp-sgd", "--noise", "1.1", "--rate", "0.017", "--steps", "2344", "--delta", "1e-5")


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object of a command that succeeded."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


class Program(Protocol):
    def __call__(self, args: list[str]) -> int: ...


def run(*words: object, program: Program = main) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program([str(word) for word in words])
    return Result(code=code, out=out.getvalue(), err=err.getvalue())


def replaced(words: tuple[str, ...], **changes: str | None) -> list[str]:
    """`words` with the values of some flags changed; None drops the flag."""
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    for name, value in changes.items():
        flag = "--" + name.replace("_", "-")
        pairs.pop(flag, None)
        if value is not None:
            pairs[flag] = value
    return [word for pair in pairs.items() for word in pair]


def refused(result: Result, *parts: str) -> None:
    """Exit code 2 and exactly one line that says expected, got and remedy."""
    assert result.code == 2, (result.code, result.out, result.err)
    assert result.out == ""
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1, result.err
    for part in ("Expected ", " got", "Remedy: ", *parts):
        assert part in result.err, (part, result.err)
