"""Kernels that LLVM compiles at run time. Without llvmlite only ``loading`` can be imported."""
