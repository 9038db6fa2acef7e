"""What the tests' child processes import before they are forked: a real process then costs milliseconds, not seconds."""

import tests.ending_worker
import tests.kill_worker
import tests.whole_runs  # noqa: F401
import voxgraft.cli.app  # noqa: F401
