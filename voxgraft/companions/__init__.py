"""Stock programs in environments of their own, made by one command, which answer over a pipe."""
