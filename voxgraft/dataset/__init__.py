"""The clips that are trained on: sets of them on disk, and the order in which training meets them. No torch here."""
