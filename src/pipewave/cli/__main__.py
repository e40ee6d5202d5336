"""`python -m pipewave.cli`."""

from pipewave.cli import main

main()
