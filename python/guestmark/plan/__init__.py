"""Plans: what is measured where, and how often. Pure data; nothing here starts a machine."""
