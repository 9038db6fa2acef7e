"""From texts to speech: what is spoken, in which pieces, by which system and voice, and into which files."""
