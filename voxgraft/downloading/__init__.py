"""Published bases: which files each has, from where, and how they come into one folder."""
