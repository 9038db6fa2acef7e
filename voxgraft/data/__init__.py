"""From recordings with texts to one manifest: find sources, read, cut, judge and split. Knows only limits of models."""
