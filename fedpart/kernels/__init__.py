"""Kernels: machine code for what torch does in many passes over memory; numba need not be there.

Each function below gives the kernel for what it is asked, or None where there is none: without numba, on
another processor, for another type or layout. The caller then computes with torch, to the same bits unless
it says otherwise. numba is imported when the first kernel is asked for.

=================================== ===================================================================
:func:`.random_bits_kernel`         Noise: 0.5 ns for 16 bits, numpy's generator 0.9; to the bit.
:func:`.look_up_kernel`             Dropout's mask: one of 65,536 values, each computed once a round.
                                    A step of 500 MNIST images took 75 ms, 13.5 of them for masks.
:func:`.pooling_kernel`             Max-pooling and ReLU, for any convolution: 22 ms of such a step's
                                    113; to the bit.
:func:`.pooled_convolution_kernel`  Convolution, pooling and ReLU in one pass: 1.4 to 3.5 times as fast
                                    as two steps on AVX-512. Sums are of another order than torch's,
                                    and rounded once.
:func:`.keep_freed_memory`          No kernel: freed memory stays with the process, a twentieth of a
                                    round of the MNIST CNN.
=================================== ===================================================================

Commits, machines and tables stand in docs/measurements/kernels.md.

Behind the door, ``convolution/`` holds what computes convolutions: ``on_vectors`` arranges tensors, and has
the loops forward; those backward are in ``sparse``. They consist of the instructions in the other files.
"""

from fedpart.kernels.door import look_up_kernel as look_up_kernel
from fedpart.kernels.door import pooled_convolution_kernel as pooled_convolution_kernel
from fedpart.kernels.door import pooling_kernel as pooling_kernel
from fedpart.kernels.door import random_bits_kernel as random_bits_kernel
from fedpart.kernels.memory import keep_freed_memory as keep_freed_memory
