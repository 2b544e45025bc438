// Sums, means, maxima and positions of maxima. T: stored dtype. A: dtype of computations. R: dtype of the result.
//
// A block computes `across` outputs with 256 / across threads each. The threads of an output stride through a slice of
// the reduced elements; then their results are combined in pairs, in an order that depends only on the arguments.

struct Sum {
    static __device__ __forceinline__ A start() { return A(0); }
    static __device__ __forceinline__ A term(A x) { return x; }
    static __device__ __forceinline__ A combined(A a, A b) { return a + b; }
};

struct Squares : Sum {
    static __device__ __forceinline__ A term(A x) { return x * x; }
};

__device__ __forceinline__ float lowest(float) { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ double lowest(double) { return (double)__uint_as_float(0xff800000u); }
__device__ __forceinline__ int lowest(int) { return (int)0x80000000u; }
__device__ __forceinline__ int64 lowest(int64) { return (int64)0x8000000000000000ull; }

// As in NumPy, the maximum of values with NaN is NaN.
struct Largest {
    static __device__ __forceinline__ A start() { return lowest(A()); }
    static __device__ __forceinline__ A term(A x) { return x; }
    static __device__ __forceinline__ A combined(A a, A b) { return a > b || a != a ? a : b; }
};

// Return the offset of element i of a block of up to four axes. eN: extents. sN: strides. Axes of extent 1 are skipped.
__device__ __forceinline__ int64 offset(int64 i, int64 e1, int64 e2, int64 e3, int64 s0, int64 s1, int64 s2, int64 s3) {
    const int64 extents[4] = {0, e1, e2, e3};
    const int64 distances[4] = {s0, s1, s2, s3};
    int64 found = 0;
#pragma unroll
    for (int axis = 3; axis > 0; --axis) {
        if (extents[axis] == 1) continue;
        int64 outer = quotient(i, extents[axis]);
        found += (i - outer * extents[axis]) * distances[axis];
        i = outer;
    }
    return found + i * s0;
}

// kN: extents of the kept axes, with strides yN in y and xN in x. rN: extents of the reduced axes, with strides zN in
// x. A slice has `length` elements, and its outputs begin `apart` elements after those of the previous slice.
#define ARGUMENTS                                                                                                    \
    const T *x, R *y, int64 outputs, int64 count, int64 length, int64 apart, int across, int64 k1, int64 k2,         \
        int64 k3, int64 y0, int64 y1, int64 y2, int64 y3, int64 x0, int64 x1, int64 x2, int64 x3, int64 r1,          \
        int64 r2, int64 r3, int64 z0, int64 z1, int64 z2, int64 z3
#define PASSED                                                                                                       \
    x, y, outputs, count, length, apart, across, k1, k2, k3, y0, y1, y2, y3, x0, x1, x2, x3, r1, r2, r3, z0, z1, z2, z3

template <typename Way>
__device__ __forceinline__ void reduce(ARGUMENTS, A divisor) {
    __shared__ A held[256];
    int thread = threadIdx.x, row = thread / across, depth = 256 / across;
    int64 output = (int64)blockIdx.x * across + thread % across;
    A total = Way::start();
    if (output < outputs) {
        const T *from = x + offset(output, k1, k2, k3, x0, x1, x2, x3);
        int64 first = blockIdx.y * length, last = first + length < count ? first + length : count;
        for (int64 i = first + row; i < last; i += depth)
            total = Way::combined(total, Way::term((A)from[offset(i, r1, r2, r3, z0, z1, z2, z3)]));
    }
    held[thread] = total;
    for (int half = depth / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row < half) held[thread] = Way::combined(held[thread], held[thread + half * across]);
    }
    if (row == 0 && output < outputs)
        y[blockIdx.y * apart + offset(output, k1, k2, k3, y0, y1, y2, y3)] = R(held[thread] / divisor);
}

extern "C" __global__ void reduce_sum(ARGUMENTS) { reduce<Sum>(PASSED, A(1)); }

extern "C" __global__ void sum_of_squares(ARGUMENTS) { reduce<Squares>(PASSED, A(1)); }

extern "C" __global__ void reduce_mean(ARGUMENTS, int64 of) { reduce<Sum>(PASSED, A(of)); }

extern "C" __global__ void reduce_max(ARGUMENTS) { reduce<Largest>(PASSED, A(1)); }

// Return whether (b, place) precedes (a, best): whether b is larger, or equal and earlier. NaN counts as largest.
__device__ __forceinline__ bool before(A a, int64 best, A b, int64 place) {
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan || b_nan) return b_nan && (!a_nan || place < best);
    return b > a || (b == a && place < best);
}

// Find the first maximum along one axis of extent `count` and stride `z`. For the other arguments, see ARGUMENTS.
extern "C" __global__ void argmax(const T *x, int64 *y, int64 outputs, int64 count, int64 z, int across, int64 k1,
                                  int64 k2, int64 k3, int64 y0, int64 y1, int64 y2, int64 y3, int64 x0, int64 x1,
                                  int64 x2, int64 x3) {
    __shared__ A held[256];
    __shared__ int64 places[256];
    int thread = threadIdx.x, row = thread / across, depth = 256 / across;
    int64 output = (int64)blockIdx.x * across + thread % across;
    // Every element precedes this initial pair, which a thread without elements keeps.
    A largest = lowest(A());
    int64 best = count;
    if (output < outputs) {
        const T *from = x + offset(output, k1, k2, k3, x0, x1, x2, x3);
        for (int64 i = row; i < count; i += depth) {
            A value = (A)from[i * z];
            if (before(largest, best, value, i)) {
                largest = value;
                best = i;
            }
        }
    }
    held[thread] = largest;
    places[thread] = best;
    for (int half = depth / 2; half > 0; half /= 2) {
        __syncthreads();
        int other = thread + half * across;
        if (row < half && before(held[thread], places[thread], held[other], places[other])) {
            held[thread] = held[other];
            places[thread] = places[other];
        }
    }
    if (row == 0 && output < outputs) y[offset(output, k1, k2, k3, y0, y1, y2, y3)] = places[thread];
}
