"""Our own Triton kernels on a GPU: compiled, checked, timed at drawn shapes, made into the tables that ship.

`fused_layer` is a whole MoE layer of ours, which no engine runs.
"""
