"""Kernels that LLVM compiles in the process, for exactly the program at hand.

Without llvmlite only ``loading`` can be imported.
"""
