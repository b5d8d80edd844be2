"""A run of the whole suite fails if too few tests really ran: skipped and deselected ones do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

ACCEPTED_MARKS = ("", "not slow")  # what `make test-all` and `make test` ask for


class Floor:
    """Counts tests that passed or failed, over all xdist workers, in the process that the user started."""

    def __init__(self, config: pytest.Config, least: int) -> None:
        self._config, self._least, self._ran = config, least, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.outcome in ("passed", "failed"):
            self._ran += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0 and self._whole_suite() and self._ran < self._least:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._whole_suite() and self._ran < self._least:
            terminalreporter.write_line(
                f"FAILED: {self._ran} tests ran, expected at least {self._least}. Find out why tests are skipped or no "
                "longer collected; lower the number in tests/conftest.py only if tests were removed on purpose.",
                red=True,
            )

    def _whole_suite(self) -> bool:
        option = self._config.option
        part = option.keyword or option.collectonly or getattr(option, "lf", False) or option.maxfail
        if part or option.markexpr not in ACCEPTED_MARKS:
            return False
        asked = {Path(self._config.invocation_params.dir, argument).resolve() for argument in self._config.args}
        return asked == {Path(self._config.rootpath, path).resolve() for path in self._config.getini("testpaths")}


def watch(config: pytest.Config, least: int) -> None:
    """Register the count, once: workers report to the process that started them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Floor(config, least), "floor")
