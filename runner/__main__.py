"""``python -m runner``: the command ``runner``."""

import sys

from runner.cli import main

sys.exit(main())
