"""`python -m discreet`, also under torchrun: the command line."""

import os
import sys

from discreet.cli import main
from discreet.core.launch import processes

if __name__ == "__main__":
    code = main()
    if processes() > 1:  # at once: the connections of torch.distributed now and then abort a process that ends slowly
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
