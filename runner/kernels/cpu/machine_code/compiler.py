"""Compile LLVM assembly for this CPU, including the loop over the calls of a step."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import cffi
import llvmlite
from llvmlite import binding

from runner.kernels.contract import NativeCall
from runner.system.code_cache import CodeCache, code_name
from runner.system.files import user_cache_folder

_FORMAT = "1"
"""Version of cached code. It must change if :class:`MachineCode` compiles the same text in another way."""

_LEVEL = 2  # The input is vectorized already; level 3 takes longer and gives the same instructions.

_VECTOR_BYTES = {"avx512f": 64, "avx": 32}
_BASELINE_VECTOR_BYTES = 16
# On some CPUs LLVM uses only half of each register. These kernels are memory-bound, so whole registers are faster.
_WHOLE_REGISTERS = ",-prefer-256-bit"


class CompilerUnavailable(OSError):
    """Machine code cannot be compiled on this machine; the message gives the reason."""


@dataclass(frozen=True)
class Host:
    """The target CPU. vector_bytes: size of the widest registers. multiplies_and_adds: whether there is a fused
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
    """Initialize LLVM once per process and return the target CPU; raises CompilerUnavailable."""
    try:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.check_jit_execution()
        found = binding.get_host_cpu_features()
    except (RuntimeError, OSError) as error:
        raise CompilerUnavailable(f"LLVM cannot generate code for this machine: {error}") from None
    width = next((size for name, size in _VECTOR_BYTES.items() if found.get(name)), _BASELINE_VECTOR_BYTES)
    features = found.flatten() + (_WHOLE_REGISTERS if found.get("avx512f") else "")
    return Host(binding.get_host_cpu_name(), features, width, bool(found.get("fma") or found.get("neon")))


@cache
def code_cache() -> CodeCache | None:
    """Return the cache of machine code that earlier processes of this user compiled; None if the user has no home."""
    try:
        return CodeCache(user_cache_folder() / "machine_code")
    except RuntimeError:
        return None


def _name(text: str, triple: str) -> str:
    """Return the name of cached code, which depends on everything that determines the code."""
    target = (triple, host().cpu_model, host().features)
    return code_name(text, *target, str(_LEVEL), str(binding.llvm_version_info), llvmlite.__version__, _FORMAT)


class MachineCode:
    """The compiled functions of one module. Callers must keep this object while they use its functions."""

    def __init__(self, text: str, externals: Mapping[str, int] | None = None) -> None:
        """Compile a module of LLVM assembly, or load its code from the cache.

        externals: addresses of the functions that the module declares.
        """
        for_host = host()
        module = binding.parse_assembly(text)
        module.verify()
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(for_host.cpu_model, for_host.features, _LEVEL)
        self._engine = binding.create_mcjit_compiler(module, machine)
        for name, address in (externals or {}).items():
            self._engine.add_global_mapping(module.get_function(name), address)
        self._compile(_name(text, target.triple))
        self._names = frozenset(function.name for function in module.functions if not function.is_declaration)

    def _compile(self, name: str) -> None:
        """Load the code of this name from the cache, or compile the module and store its code."""
        files, compiled = code_cache(), list[bytes]()
        stored = files.read(name) if files else None
        # LLVM calls these functions, and their exceptions are lost. Therefore they read and write no files.
        self._engine.set_object_cache(lambda module, code: compiled.append(code), lambda module: stored)
        self._engine.finalize_object()
        if files and compiled:
            files.write(name, compiled[0])

    def address(self, name: str) -> int:
        """Return the address of a function; raises KeyError if the module has no function of this name."""
        if name not in self._names:
            raise KeyError(f"no function {name!r} in the module; it has {sorted(self._names)}")
        return int(self._engine.get_function_address(name))


def function_addresses(library: ctypes.CDLL, *names: str) -> dict[str, int]:
    """Return name -> address of some functions of a loaded C library."""
    return {name: int(ctypes.cast(library[name], ctypes.c_void_p).value or 0) for name in names}


def join(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """Return a function that runs calls in order until one fails, and releases the GIL once for all calls.

    The function returns 0, or (1 + index of the failed call) << 16 | the lower 16 bits of its status. It keeps the
    objects of the calls alive.
    """
    ffi, run, code = _loop()
    table = ffi.new("intptr_t[]", [word for call in calls for word in (call.function, *call.arguments)])
    joined = _Joined(run, table, len(calls))
    joined.keep = (code, [call.keep for call in calls])
    return joined


class _Joined(partial[int]):
    """A call of the compiled loop. It is a ``partial`` because calling a ``partial`` has the least overhead."""

    keep: object


@cache
def _loop() -> tuple[Any, Any, MachineCode]:
    """Return the cffi interface, the compiled loop, and the machine code that contains the loop."""
    ffi, code = cffi.FFI(), MachineCode(_TEXT)
    return ffi, ffi.cast("int64_t (*)(intptr_t *, int64_t)", code.address("run")), code


_TEXT = """
%call = type {ptr, i64, i64, i64, i64}

define i64 @run(ptr %calls, i64 %count) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %finished, label %next

next:
  %position = phi i64 [0, %entry], [%following, %succeeded]
  %function.at = getelementptr %call, ptr %calls, i64 %position, i32 0
  %a.at = getelementptr %call, ptr %calls, i64 %position, i32 1
  %b.at = getelementptr %call, ptr %calls, i64 %position, i32 2
  %c.at = getelementptr %call, ptr %calls, i64 %position, i32 3
  %d.at = getelementptr %call, ptr %calls, i64 %position, i32 4
  %function = load ptr, ptr %function.at
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %c = load i64, ptr %c.at
  %d = load i64, ptr %d.at
  %status = call i32 %function(i64 %a, i64 %b, i64 %c, i64 %d)
  %following = add i64 %position, 1
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %failure, label %succeeded

succeeded:
  %more = icmp slt i64 %following, %count
  br i1 %more, label %next, label %finished

finished:
  ret i64 0

failure:
  %upper = shl i64 %following, 16
  %lower.int = and i32 %status, 65535
  %lower = zext i32 %lower.int to i64
  %failure.code = or i64 %upper, %lower
  ret i64 %failure.code
}
"""
