"""Training: steps, the loop around them, and what makes a run impossible to lose. Nothing here prints."""
