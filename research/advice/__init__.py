"""The measurements behind `discreet advise`: advised settings and their neighbours, on public data."""
