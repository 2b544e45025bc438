"""oneDNN through its C interface (ABI of version 3), loaded without a compiler.

The library is the file named by the environment variable ``RUNNER_LIBDNNL``, else the file in the package
onednn-cpu-gomp, else the system's ``libdnnl.so.3``. The variable is a setting of the machine, not of a run.
"""

import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import cffi

from runner.kernels.cpu.onednn.constants import TYPES

SETTING = "RUNNER_LIBDNNL"
PACKAGE = "onednn-cpu-gomp"
SYSTEM_LIBRARY = "libdnnl.so.3"

_DECLARATIONS = """
typedef void *object;
typedef struct { int arg; object memory; } dnnl_exec_arg_t;
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } dnnl_version_t;

const dnnl_version_t *dnnl_version(void);
const char *dnnl_status2str(int);
const char *dnnl_fmt_tag2str(int);
int dnnl_get_effective_cpu_isa(void);

int omp_get_max_threads(void);

int dnnl_engine_create(object *, int kind, size_t index);
int dnnl_stream_create(object *, object engine, unsigned flags);

int dnnl_memory_desc_create_with_tag(object *, int ndims, const int64_t *dims, int type, int tag);
int dnnl_memory_desc_create_with_strides(object *, int ndims, const int64_t *dims, int type, const int64_t *strides);
int dnnl_memory_desc_create_submemory(object *, object parent, const int64_t *dims, const int64_t *offsets);
int dnnl_memory_desc_destroy(object);
int dnnl_memory_desc_query(object, int what, void *result);
size_t dnnl_memory_desc_get_size(object);
int dnnl_memory_create(object *, object descriptor, object engine, void *data);
int dnnl_memory_destroy(object);

int dnnl_primitive_attr_create(object *);
int dnnl_primitive_attr_destroy(object);
int dnnl_primitive_attr_set_scratchpad_mode(object, int mode);
int dnnl_primitive_attr_set_post_ops(object, object post_ops);
int dnnl_post_ops_create(object *);
int dnnl_post_ops_destroy(object);
int dnnl_post_ops_append_eltwise(object, int algorithm, float alpha, float beta);
int dnnl_post_ops_append_binary(object, int algorithm, object descriptor);

int dnnl_primitive_desc_destroy(object);
int dnnl_primitive_desc_query(object, int what, int index, void *result);
object dnnl_primitive_desc_query_md(object, int what, int index);
int dnnl_primitive_create(object *, object description);
int dnnl_primitive_destroy(object);
int dnnl_primitive_execute(object primitive, object stream, int count, const dnnl_exec_arg_t *arguments);

int dnnl_reorder_primitive_desc_create(object *, object src, object src_engine, object dst, object dst_engine,
    object attr);
int dnnl_concat_primitive_desc_create(object *, object engine, object dst, int n, int axis, const object *srcs,
    object attr);
int dnnl_eltwise_forward_primitive_desc_create(object *, object engine, int prop, int algorithm, object src,
    object dst, float alpha, float beta, object attr);
int dnnl_softmax_forward_primitive_desc_create(object *, object engine, int prop, int algorithm, object src,
    object dst, int axis, object attr);
int dnnl_convolution_forward_primitive_desc_create(object *, object engine, int prop, int algorithm, object src,
    object weights, object bias, object dst, const int64_t *strides, const int64_t *dilates,
    const int64_t *padding_low, const int64_t *padding_high, object attr);
int dnnl_convolution_backward_data_primitive_desc_create(object *, object engine, int algorithm, object diff_src,
    object weights, object diff_dst, const int64_t *strides, const int64_t *dilates, const int64_t *padding_low,
    const int64_t *padding_high, object hint, object attr);
int dnnl_convolution_backward_weights_primitive_desc_create(object *, object engine, int algorithm, object src,
    object diff_weights, object diff_bias, object diff_dst, const int64_t *strides, const int64_t *dilates,
    const int64_t *padding_low, const int64_t *padding_high, object hint, object attr);
int dnnl_inner_product_forward_primitive_desc_create(object *, object engine, int prop, object src, object weights,
    object bias, object dst, object attr);
int dnnl_inner_product_backward_data_primitive_desc_create(object *, object engine, object diff_src, object weights,
    object diff_dst, object hint, object attr);
int dnnl_inner_product_backward_weights_primitive_desc_create(object *, object engine, object src,
    object diff_weights, object diff_bias, object diff_dst, object hint, object attr);
int dnnl_matmul_primitive_desc_create(object *, object engine, object src, object weights, object bias, object dst,
    object attr);
int dnnl_pooling_forward_primitive_desc_create(object *, object engine, int prop, int algorithm, object src,
    object dst, const int64_t *strides, const int64_t *kernel, const int64_t *dilation, const int64_t *padding_low,
    const int64_t *padding_high, object attr);
int dnnl_pooling_backward_primitive_desc_create(object *, object engine, int algorithm, object diff_src,
    object diff_dst, const int64_t *strides, const int64_t *kernel, const int64_t *dilation,
    const int64_t *padding_low, const int64_t *padding_high, object hint, object attr);
int dnnl_batch_normalization_forward_primitive_desc_create(object *, object engine, int prop, object src, object dst,
    float epsilon, unsigned flags, object attr);
int dnnl_batch_normalization_backward_primitive_desc_create(object *, object engine, int prop, object diff_src,
    object diff_dst, object src, float epsilon, unsigned flags, object hint, object attr);
int dnnl_lrn_forward_primitive_desc_create(object *, object engine, int prop, int algorithm, object src, object dst,
    int64_t size, float alpha, float beta, float k, object attr);
int dnnl_lrn_backward_primitive_desc_create(object *, object engine, int algorithm, object diff_src, object diff_dst,
    object src, int64_t size, float alpha, float beta, float k, object hint, object attr);
"""

_CPU_ENGINE = 1
_IN_ORDER = 1
_UNKNOWN_TAG = "unknown fmt_tag"
_FIRST_TAG = 2  # 0 is undefined, 1 is "any"
_AVX512 = 0x20  # in a dnnl_cpu_isa_t


class OneDnnUnavailable(OSError):
    """oneDNN cannot be used on this machine; the message gives the reason."""


class OneDnnError(RuntimeError):
    """A call into oneDNN failed."""


class Unimplemented(OneDnnError):
    """oneDNN does not implement the requested primitive."""


_OUT_OF_MEMORY = 1
_UNIMPLEMENTED = 3


@dataclass(frozen=True)
class Library:
    """The loaded library with its one CPU engine and stream.

    c, openmp: the C functions of oneDNN and OpenMP. path: file of oneDNN. version: such as "3.2.0". tags: name of a
    memory format -> dnnl_format_tag_t. dtypes: the dtypes that oneDNN computes correctly on this CPU.
    """

    ffi: Any
    c: Any
    openmp: Any
    path: str
    version: str
    engine: Any
    stream: Any
    tags: dict[str, int]
    dtypes: frozenset[str]

    def create(self, function: str, *arguments: Any) -> Any:
        """Call ``dnnl_<function>(&result, ...)`` and return the result; raises the errors of ``check``."""
        result = self.ffi.new("object *")
        self.check(function, getattr(self.c, f"dnnl_{function}")(result, *arguments))
        return result[0]

    def check(self, function: str, status: int) -> None:
        """Raise MemoryError, Unimplemented or OneDnnError unless the status is success."""
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"dnnl_{function} could not allocate memory")
        if status != 0:
            text = self.ffi.string(self.c.dnnl_status2str(status)).decode()
            raise (Unimplemented if status == _UNIMPLEMENTED else OneDnnError)(f"dnnl_{function}: {text}")

    def owned(self, handle: Any, destroy: str) -> Any:
        """Return a handle whose object oneDNN destroys when the last reference to the handle is gone."""
        return self.ffi.gc(handle, getattr(self.c, f"dnnl_{destroy}_destroy"))

    def ints(self, values: Any) -> Any:
        """Return a C array of int64."""
        return self.ffi.new("int64_t[]", list(values))

    def address(self, pointer: Any) -> int:
        """Return a pointer as an integer."""
        return int(self.ffi.cast("intptr_t", pointer))

    def threads(self) -> int:
        """Return the number of threads that a primitive uses if this Python thread creates the primitive."""
        return int(self.openmp.omp_get_max_threads())


@cache
def load() -> Library:
    """Load oneDNN once per process. Raises OneDnnUnavailable with the files that were tried and a remedy."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    openmp = _load_openmp(ffi)
    path, c = _open(ffi)
    found = c.dnnl_version()
    version = f"{found.major}.{found.minor}.{found.patch}"
    if found.major != 3:
        raise OneDnnUnavailable(f"{path} is oneDNN {version}; expected version 3")
    bare = Library(ffi, c, openmp, path, version, None, None, {}, frozenset())
    engine = bare.create("engine_create", _CPU_ENGINE, 0)
    stream = bare.create("stream_create", engine, _IN_ORDER)
    return Library(ffi, c, openmp, path, version, engine, stream, _tags(ffi, c), supported_dtypes(c))


def _load_openmp(ffi: Any) -> Any:
    try:
        # libdnnl and our machine code use the symbols of this library, so both share one pool of threads.
        return ffi.dlopen("libgomp.so.1", ffi.RTLD_GLOBAL | ffi.RTLD_NOW)
    except OSError as error:
        raise OneDnnUnavailable(
            f"the OpenMP library libgomp.so.1 could not be loaded ({error}); on Debian: apt install libgomp1"
        ) from None


def _open(ffi: Any) -> tuple[str, Any]:
    # If RUNNER_LIBDNNL names a library that cannot be loaded, no other library is tried.
    named = os.environ.get(SETTING)
    tried = []
    for path in [named] if named else [*_packaged(), SYSTEM_LIBRARY]:
        try:
            return path, ffi.dlopen(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    advice = f"set {SETTING} to another file, or unset it" if named else f"pip install {PACKAGE}"
    raise OneDnnUnavailable(f"libdnnl.so.3 could not be loaded; tried {'; '.join(tried)}; {advice}")


def _packaged() -> list[str]:
    try:
        installed = files(PACKAGE) or []
    except PackageNotFoundError:
        return []
    return [str(Path(each.locate()).resolve()) for each in installed if each.name == SYSTEM_LIBRARY]


def _tags(ffi: Any, c: Any) -> dict[str, int]:
    tags: dict[str, int] = {}
    number = _FIRST_TAG
    while (name := ffi.string(c.dnnl_fmt_tag2str(number)).decode()) != _UNKNOWN_TAG:
        # Names such as "nchw" are aliases of names such as "abcd" and have the same numbers.
        tags.setdefault(name, number)
        number += 1
    return tags


def supported_dtypes(c: Any) -> frozenset[str]:
    """Return the dtypes that oneDNN, loaded as ``c``, computes correctly with the available instructions."""
    # Without AVX-512, casts from and to bfloat16 lose the sign of -0, and copies flush subnormal numbers to 0.
    return frozenset(TYPES) - (frozenset() if c.dnnl_get_effective_cpu_isa() & _AVX512 else {"bfloat16"})
