"""A folder of talks for tests."""

from voxgraft.demo.talks import spoken, write_talks

__all__ = ["spoken", "write_talks"]
