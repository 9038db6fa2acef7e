"""`python -m voxgraft` is `voxgraft`."""

import sys

from voxgraft.cli import main

sys.exit(main())
