"""The kernels themselves: what there is, what compiles for which GPU, and whether they are right and fast on the GPU at hand."""
