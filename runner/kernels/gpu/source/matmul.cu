// fmad
// Products of matrices with any strides. T: dtype of the factors. A: dtype of the sums. R: dtype of the result.
//
// A block of 256 threads computes a tile of 64 x 64 elements, 4 x 4 per thread, and reads 16 terms of each sum at a
// time. The terms of every sum are added from the first to the last.

#define TILE 64
#define SLICE 16
#define OWN 4

__device__ __forceinline__ R finished(A sum, const T *bias, int64 column, int has_bias, int relu) {
    if (has_bias) sum = sum + (A)bias[column];
    return R(relu && sum < A(0) ? A(0) : sum);
}

// Copy TILE lines (rows of a or columns of b) of SLICE terms, with 0 outside the factor. Adjacent threads read adjacent
// terms if the terms of a line are contiguous, else adjacent lines.
__device__ __forceinline__ void fetch(const T *x, int64 lines, int64 terms, int64 line, int64 term, int64 line_stride,
                                      int64 term_stride, A (*held)[TILE + 1]) {
    for (int i = threadIdx.x; i < TILE * SLICE; i += 256) {
        int l = term_stride == 1 ? i / SLICE : i % TILE, t = term_stride == 1 ? i % SLICE : i / TILE;
        bool inside = line + l < lines && term + t < terms;
        held[t][l] = inside ? (A)x[(line + l) * line_stride + (term + t) * term_stride] : A(0);
    }
}

extern "C" __global__ void product(const T *a, const T *b, const T *bias, R *y, int64 rows, int64 columns, int64 terms,
                                   int64 a_row, int64 a_term, int64 b_term, int64 b_column, int has_bias, int relu) {
    __shared__ A left[SLICE][TILE + 1];
    __shared__ A right[SLICE][TILE + 1];
    int64 across = (columns + TILE - 1) / TILE;
    if (across == 0) return;
    int64 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    int down = threadIdx.x / 16, along = threadIdx.x % 16;
    A sums[OWN][OWN] = {};
    for (int64 term = 0; term < terms; term += SLICE) {
        fetch(a, rows, terms, row, term, a_row, a_term, left);
        fetch(b, columns, terms, column, term, b_column, b_term, right);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < SLICE; ++t)
#pragma unroll
            for (int i = 0; i < OWN; ++i)
#pragma unroll
                for (int j = 0; j < OWN; ++j) sums[i][j] += left[t][down + 16 * i] * right[t][along + 16 * j];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i)
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
            int64 r = row + down + 16 * i, c = column + along + 16 * j;
            if (r < rows && c < columns) y[r * columns + c] = finished(sums[i][j], bias, c, has_bias, relu);
        }
}

// Apply bias and ReLU to a product that a library has computed. y may share memory with sums.
extern "C" __global__ void finish(const A *sums, const T *bias, R *y, int64 count, int64 columns, int has_bias,
                                  int relu) {
    for (int64 i = first_element(); i < count; i += stride_of_grid())
        y[i] = finished(sums[i], bias, i - quotient(i, columns) * columns, has_bias, relu);
}
