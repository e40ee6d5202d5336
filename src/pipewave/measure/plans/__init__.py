"""Built-in measurement plans, one family a file."""
