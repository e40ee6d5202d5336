"""Studies whose figures the documentation quotes: one short file each, run as `python -m studies.NAME`."""
