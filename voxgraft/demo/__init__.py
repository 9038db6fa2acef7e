"""The demonstration: Amharic grafted onto the built-in base, with the commands that everybody uses."""

from voxgraft.demo.command import DemoResult, demo

__all__ = ["DemoResult", "demo"]
