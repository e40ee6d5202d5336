"""Our own Triton kernels on a GPU: compiled, checked, timed at drawn shapes, and made into the tables that ship."""
