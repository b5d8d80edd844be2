"""`discreet audit`: attack methods, and print certified, claimed and audited side by side."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.flags import JsonFlag, flag
from discreet.cli.output import FAILED, INTERRUPTED, emit
from discreet.core import check
from discreet.core.plain import plain

if TYPE_CHECKING:
    from discreet.auditing.truth import Row, Scope


def audit(
    method: Annotated[str | None, flag("A method that `discreet methods` lists, or a paper's.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every method, and every claim that is known to be false.")
    ] = False,
    quick: Annotated[bool, flag("Fewer trials: minutes, and bounds further from the truth.")] = False,
    out: Annotated[Path | None, flag("Also write the table to this JSON file.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Attack a method: the epsilon that is exceeded at 99.9 % confidence, beside the certificate and the claim."""
    if method is None and not everything:
        check.refuse("--method or --all", "neither", "name a method, e.g. --method dp-sgd, or audit --all")
    check.require(method is None or not everything, "--method or --all", "both", "drop one of them")

    from discreet.auditing import truth
    from discreet.report import terminal

    scope = truth.Scope.everything() if method is None else truth.Scope.of(method)
    try:
        rows = _watched(scope, quick, as_json)
    except KeyboardInterrupt:
        print("Stopped. An audit leaves nothing behind: run the command again.", file=sys.stderr)
        return INTERRUPTED
    answer = truth.document(rows, command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(plain(answer), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        emit(answer)
    else:
        terminal.show(terminal.truth_table(rows))
    broken = any(row.verdict is truth.Verdict.CERTIFICATE_BROKEN for row in rows)
    return FAILED if broken else 0


def _watched(scope: Scope, quick: bool, as_json: bool) -> list[Row]:
    from discreet.auditing import truth
    from discreet.report import terminal

    effort = truth.QUICK if quick else truth.FULL
    with terminal.audit_bar(scope.rows, visible=not as_json and terminal.is_live()) as listener:
        return list(truth.truth_table(scope, effort=effort, listener=listener))
