"""The nouns that everything shares. Nothing here imports anything else of guestmark."""
