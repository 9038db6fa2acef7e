"""Listening: speech to what a recogniser heard, whichever recogniser it is. Scores nothing."""

from voxgraft.listening.interface import Heard, Listener
from voxgraft.listening.opening import open_listener

__all__ = ["Heard", "Listener", "open_listener"]
