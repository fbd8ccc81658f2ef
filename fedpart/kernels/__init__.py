"""Kernels: machine code for what torch does in many passes over memory; numba need not be there."""
