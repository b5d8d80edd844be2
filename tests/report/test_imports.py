"""What importing the report costs."""

from __future__ import annotations

import subprocess
import sys


def test_the_report_is_imported_without_torch_and_without_drawing_libraries() -> None:
    script = (
        "import sys, discreet.report;"
        "print([name for name in ('torch', 'matplotlib', 'jinja2', 'sklearn') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
