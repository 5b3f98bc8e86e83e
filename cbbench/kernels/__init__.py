"""Our own kernels in float32 on a CPU, compiled by numba where they are first called and kept.

`compiling.py` is how, `vectors.py` the instructions that numba has no words for. On top: `products.py` (linear layers and gated
units), `norms.py`, `layer.py` (a decoder layer before and after its attention); attention itself is
`attention/_varlen_cpu.py`. What a row gets depends on nothing beside it in the batch, bit by bit.
"""
