"""Upstream programs in virtual environments of their own, created by one command, which answer over a pipe."""
