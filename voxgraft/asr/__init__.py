"""Listening: speech to what a recogniser heard, whichever recogniser it is. Scores nothing."""

from voxgraft.asr.recognizers import Recognizer, Transcript, open_recognizer

__all__ = ["Recognizer", "Transcript", "open_recognizer"]
