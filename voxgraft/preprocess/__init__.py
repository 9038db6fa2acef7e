"""From a manifest to the sets that training reads: sound to codes and voices, text to ids."""
