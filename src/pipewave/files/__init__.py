"""Files that survive a kill: append-only records."""
