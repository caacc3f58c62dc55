"""The exact chain and full-batch gradients as GPU kernels, and the compiler that writes them."""
