"""`python -m pipewave`."""

from pipewave.cli import main

main()
