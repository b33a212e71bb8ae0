"""`python -m guestmark`: the same as the `guestmark` command."""

import sys

from guestmark.cli import main

sys.exit(main())
