"""Our kernels of grouped experts and of decode, which the shipped tables of these names were recorded with."""
