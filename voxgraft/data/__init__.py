"""From recordings with texts to one manifest: reading, cutting, judging and splitting. Knows nothing of models."""
