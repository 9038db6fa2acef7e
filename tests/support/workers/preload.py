"""What the tests' child processes import before they are forked: a real process then costs milliseconds, not seconds."""

import voxgraft.cli.app  # noqa: F401
