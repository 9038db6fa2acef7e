"""A folder of talks for tests."""

from voxgraft.demo.data import render_talk, write_talks

__all__ = ["render_talk", "write_talks"]
