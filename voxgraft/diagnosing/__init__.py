"""What happened to a checkpoint: rows, layers, a verdict, a picture, a page. The faults themselves are `findings`'."""
