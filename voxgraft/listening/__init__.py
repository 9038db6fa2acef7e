"""Listening: speech to what a recogniser heard, whichever recogniser it is. Scores nothing."""

from voxgraft.listening.interface import Recognizer, Transcript
from voxgraft.listening.opening import open_recognizer

__all__ = ["Recognizer", "Transcript", "open_recognizer"]
