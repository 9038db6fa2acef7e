"""The demonstration: Amharic grafted onto the built-in base, with the commands that everybody uses.

Imports nothing, since `python -m voxgraft.demo.data` would otherwise load its module twice and warn.
"""
