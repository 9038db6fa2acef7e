"""What `export` is made of: what is exported, its weights, its folder, and the terms under which it may be shared."""
