"""Helpers of the tests: shared fixtures, small bases and runs, golden files, cases, worker processes, campaigns."""
