"""From a call to its answer, over floats or arrays: physics, residual, interval, floor and ceiling."""
