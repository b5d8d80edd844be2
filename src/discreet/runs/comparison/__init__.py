"""Comparing methods at one certified budget: what is trained, and the values that a page is rendered from.

    from discreet.runs.comparison.compare import CompareSettings, compare

    settings = CompareSettings(data="digits", epsilon=3.0, delta=1e-5, out=Path("runs/compare"))
    written = page.write(compare(settings), settings.out)      # report.html, report.json, figures

Nothing here imports torch before a run starts.
"""
