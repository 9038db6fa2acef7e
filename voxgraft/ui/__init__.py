"""The web interface: the same commands in a browser. It has no logic and no state of its own; jobs are processes."""
