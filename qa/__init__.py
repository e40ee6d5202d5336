"""Quality checks of this repository: sizes, snapshots of answers, hostile inputs, mutants, sweeps."""
