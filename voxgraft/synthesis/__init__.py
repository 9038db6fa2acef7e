"""From texts to speech: what is said, in which pieces, by which system and voice, and into which files."""
