"""Kernels: machine code for what torch does in many passes over memory; numba need not be there.

Each function below gives the kernel for what it is asked, or None where there is none: without numba, on
another processor, for another type or layout. The caller then computes with torch, to the same bits unless
it says otherwise. What each gains stands in docs/measurements/kernels.md.

Behind the door, ``convolution/`` holds what computes convolutions: ``on_vectors`` arranges tensors, and has
the loops forward; those backward are in ``sparse``. They consist of the instructions in the other files.
"""

from fedpart.kernels.compiling import keep_freed_memory as keep_freed_memory
from fedpart.kernels.door import look_up_kernel as look_up_kernel
from fedpart.kernels.door import pooled_convolution_kernel as pooled_convolution_kernel
from fedpart.kernels.door import pooling_kernel as pooling_kernel
from fedpart.kernels.door import random_bits_kernel as random_bits_kernel
from fedpart.kernels.door import rows_kernel as rows_kernel
