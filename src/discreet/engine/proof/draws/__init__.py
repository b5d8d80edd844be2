"""Random numbers: which ones a draw takes, and how a program reads them."""
