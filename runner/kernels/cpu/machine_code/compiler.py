"""Compile LLVM's intermediate language for this CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import llvmlite
from llvmlite import binding

_LEVEL = 2  # The input is vectorized already; level 3 takes longer and gives the same instructions.

_VECTOR_BYTES = {"avx512f": 64, "avx": 32}
_BASELINE_VECTOR_BYTES = 16
# LLVM prefers half registers on some CPUs; these kernels are bound by memory and gain from whole registers.
_WHOLE_REGISTERS = ",-prefer-256-bit"


class CompilerUnavailable(OSError):
    """Machine code cannot be compiled on this machine; the text says why."""


@dataclass(frozen=True)
class Host:
    """The target CPU. vector_bytes: size of its widest registers. multiplies_and_adds: whether it has a fused
    multiply-add instruction."""

    cpu_model: str
    features: str
    vector_bytes: int
    multiplies_and_adds: bool

    def __str__(self) -> str:
        llvm = ".".join(map(str, binding.llvm_version_info))
        return f"{llvm} (llvmlite {llvmlite.__version__}, {self.cpu_model}, vectors of {self.vector_bytes} bytes)"


@cache
def host() -> Host:
    """Prepare LLVM for this CPU, once per process; raises CompilerUnavailable."""
    try:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.check_jit_execution()
        found = binding.get_host_cpu_features()
    except (RuntimeError, OSError) as error:
        raise CompilerUnavailable(f"LLVM cannot make code for this machine: {error}") from None
    width = next((size for name, size in _VECTOR_BYTES.items() if found.get(name)), _BASELINE_VECTOR_BYTES)
    features = found.flatten() + (_WHOLE_REGISTERS if found.get("avx512f") else "")
    return Host(binding.get_host_cpu_name(), features, width, bool(found.get("fma") or found.get("neon")))


class MachineCode:
    """The compiled functions of one module. They are valid as long as this object exists, so callers must keep it."""

    def __init__(self, text: str, externals: Mapping[str, int] | None = None) -> None:
        """Compile a module in LLVM's language. externals: addresses of the functions it declares."""
        for_host = host()
        module = binding.parse_assembly(text)
        module.verify()
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(for_host.cpu_model, for_host.features, _LEVEL)
        self._engine = binding.create_mcjit_compiler(module, machine)
        for name, address in (externals or {}).items():
            self._engine.add_global_mapping(module.get_function(name), address)
        self._engine.finalize_object()
        self._names = frozenset(function.name for function in module.functions if not function.is_declaration)

    def address(self, name: str) -> int:
        """Return the address of a function; raises KeyError if the module has none of this name."""
        if name not in self._names:
            raise KeyError(f"no function {name!r} in the module; it has {sorted(self._names)}")
        return int(self._engine.get_function_address(name))
