"""`python -m pipewave`."""

from pipewave.cli import main

if __name__ == "__main__":  # processes of the page read this file, too
    main()
