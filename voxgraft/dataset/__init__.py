"""The clips that are learnt from: sets of them on disk, and the order in which training meets them. No torch here."""
