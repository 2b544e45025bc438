// Common declarations of all sources. The sources include no headers: NVRTC has only the built-in functions of CUDA.

typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef long long int64;

// A storage type; arithmetic is in float. Conversion from float rounds to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
    unsigned short bits;

    bfloat16() = default;

    __device__ __forceinline__ explicit bfloat16(float value) {
        uint32 word = __float_as_uint(value);
        uint32 rounded = word + 0x7fffu + ((word >> 16) & 1u);
        bits = (unsigned short)(((word & 0x7fffffffu) > 0x7f800000u ? word | 0x400000u : rounded) >> 16);
    }

    __device__ __forceinline__ operator float() const { return __uint_as_float((uint32)bits << 16); }
};

// The first element of this thread, and the distance to its next element, in a grid-stride loop.
__device__ __forceinline__ int64 first_element() { return (int64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64 stride_of_grid() { return (int64)gridDim.x * blockDim.x; }

// Return a / b for numbers that are not negative. GPUs divide 32-bit numbers much faster than 64-bit numbers.
__device__ __forceinline__ int64 quotient(int64 a, int64 b) {
    return (uint64)(a | b) >> 32 ? a / b : (int64)((uint32)a / (uint32)b);
}
