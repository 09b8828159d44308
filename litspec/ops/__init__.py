"""Pure tensor functions: the vectorised heart, and the plain definitions that fused kernels are held against."""

from litspec.ops.index2d import index_copy_2d, index_copy_2d_, index_select_2d

__all__ = ["index_copy_2d", "index_copy_2d_", "index_select_2d"]
