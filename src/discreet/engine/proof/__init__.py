"""Why one record cannot move another. Start with `engine/record_watch.py`, which watches one step; then read here:

lineage.py, lineage_table.py   whether a tensor is public, per record along one axis, or mixed
call_proof.py, verdicts.py     one call by itself, on values of its own (generic_values.py, small_sizes.py)
public_rows.py                 public tensors with a row for each record
program.py                     every batch makes its losses by the same calls with the same numbers
blame.py                       the user's line, and what to write instead
probe.py, axes.py              the second line: the whole model on random inputs
"""
