"""Facts of serving engines, read from their released source by a program: `python -m facts --help`."""
