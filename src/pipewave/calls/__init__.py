"""Calls and their fields: what may be asked of a kernel, as frozen values of the public contract."""
