"""The loop on the fused MoE layer: predict, flag what lies above its ceiling, tune, change the kernel, measure again.

`report` joins the measured times with the predicted ceilings.
"""
