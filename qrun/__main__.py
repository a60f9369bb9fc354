"""``python -m qrun``."""

import sys

from qrun.cli import main

sys.exit(main())
