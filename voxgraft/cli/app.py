"""From argv to an exit code: parse the line, resolve the settings, run the command, print its result."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

from voxgraft import __version__
from voxgraft.cli.commands import COMMANDS, CliCommand
from voxgraft.cli.console import (
    SHOW_AFTER_SECONDS,
    BarDisplay,
    LineDisplay,
    ProgressReporter,
    ResultPrinter,
    enable_terminal_prompts,
)
from voxgraft.cli.flags import CommandLine, parse_command_line, resolve_settings
from voxgraft.core import progress
from voxgraft.core.errors import Finding, VoxgraftError, finding, load_catalogue
from voxgraft.core.files import convert_system_error
from voxgraft.core.results import EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK

DUMB_TERMINALS = ("dumb", "unknown")


def main() -> int:
    """Run the program `voxgraft`; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal's encoding lacks are printed escaped instead of raising an error.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    return run_cli(sys.argv[1:])


def run_cli(words: Sequence[str], verbs: Sequence[CliCommand] = COMMANDS) -> int:
    """Run one command line; every outcome is an exit code."""
    # Read before the line is parsed: errors of the parser are printed as these options say.
    options = words[: words.index("--")] if "--" in words else words
    console = ResultPrinter(json="--json" in options, quiet="--quiet" in options)
    try:
        line = parse_command_line(words, verbs)
        if isinstance(line, CommandLine):
            return _run_command(line, console)
        line()  # prints the help or the version
        return EXIT_OK
    except VoxgraftError as error:
        _show_error(console, error.finding)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        _show_error(console, finding("interrupted", "stopped by the keyboard"))
        return EXIT_INTERRUPTED
    except Exception as error:  # the one place where everything is caught
        if (refused := convert_system_error(error)) is not None:
            _show_error(console, refused.finding)
            return EXIT_BAD_INPUT
        # What arrives here is our bug.
        traceback.print_exc(file=sys.stderr)
        version = f"voxgraft {__version__}, Python {platform.python_version()}, {platform.platform()}"
        _show_error(console, finding("bug", f"{type(error).__name__}: {error}", where=version))
        return EXIT_BUG


def _show_error(console: ResultPrinter, item: Finding) -> None:
    """Print an error if possible: the exit code must be right even where nothing can be printed."""
    try:
        console.show_error(item)
    except OSError:  # standard output is a file on a full disk, for example
        with contextlib.suppress(OSError):
            ResultPrinter().show_error(item)


def _run_command(line: CommandLine, console: ResultPrinter) -> int:
    settings = resolve_settings(line)
    if line.dry_run:
        console.show_settings(settings.model_dump())
        return EXIT_OK
    # Read the catalogue now: an error that reports "too many open files" could not open it later.
    load_catalogue()
    verb = line.verb.load()
    # Of the processes that `torchrun` has started only the first prints: all do the same.
    follower = "LOCAL_RANK" in os.environ and os.environ.get("RANK", "0") != "0"
    silent = line.quiet or line.json or follower
    with _show_progress(silent=silent) as settle, enable_terminal_prompts(settle, silent=silent):
        result = verb(settings)
    if not follower:
        console.show(result)
    return result.exit_code


@contextlib.contextmanager
def _show_progress(*, silent: bool) -> Iterator[Callable[[], None]]:
    """Draw progress; yields a function that removes what is drawn of finished tasks."""
    if silent:
        yield lambda: None
        return
    can_redraw = sys.stderr.isatty() and os.environ.get("TERM") not in DUMB_TERMINALS
    display = BarDisplay(sys.stderr) if can_redraw else LineDisplay(sys.stderr)
    with ProgressReporter(display, SHOW_AFTER_SECONDS) as board, progress.use_progress_listener(board):
        yield board.look
