"""Bringing a checkpoint back: what each tensor of the new file is made of, writing it, choosing a point by ear."""
