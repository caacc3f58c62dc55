"""GPU kernels, and the compiler that writes them from a user's loss.

The exact chain (`chain`, with `chain_kernel`, `chain_step` and `draws`) and gradients over fixed
data sets (`data_gradients`) run as single kernels on NVIDIA GPUs. The loss and the update are
arbitrary JAX functions. They are traced (`program`) and rewritten as straight-line code on single
values (`unroll`, `array_rules`, `scalars`), with constants folded (`constant_folding`) and with
functions that Triton lacks (`special`). `pallas` is the only module that imports JAX's experimental
API.
"""
