"""What a watched call made (judgement.py), and calls that come again (known_calls.py)."""
