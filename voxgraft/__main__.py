"""`python -m voxgraft` is `voxgraft`."""

import sys

from voxgraft.cli.app import main

sys.exit(main())
