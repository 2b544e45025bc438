// Softmax and its cross-entropy over rows of a matrix. T: stored dtype. A: dtype of computations. I: dtype of labels.
//
// A block processes 256 / depth rows with `depth` (a power of two) threads each; all threads reach each __syncthreads.

struct Place {
    int thread, depth, column;
    int64 row;
    bool inside;
};

__device__ __forceinline__ Place place_of(int64 rows, int depth) {
    int thread = threadIdx.x;
    int64 row = (int64)blockIdx.x * (256 / depth) + thread / depth;
    return {thread, depth, thread % depth, row, row < rows};
}

// Return the row's largest value in all of the row's threads. NaN is skipped here and makes the sum of powers NaN.
__device__ __forceinline__ A largest_of(const T *x, int64 columns, Place at, A *held) {
    A largest = A(__uint_as_float(0xff800000u));
    if (at.inside)
        for (int64 i = at.column; i < columns; i += at.depth) {
            A value = (A)x[at.row * columns + i];
            if (value > largest) largest = value;
        }
    held[at.thread] = largest;
    for (int half = at.depth / 2; half > 0; half /= 2) {
        __syncthreads();
        if (at.column < half) {
            A other = held[at.thread + half];
            if (other > largest) largest = other;
            held[at.thread] = largest;
        }
    }
    __syncthreads();
    return held[at.thread - at.column];
}

// Return the sum of exp(x - largest) over the row in all of the row's threads. The sum is in float64, so that the loss
// of a label with a probability near 1 is small but not 0.
__device__ __forceinline__ double sum_of_powers(const T *x, int64 columns, Place at, A largest, double *held) {
    double total = 0;
    if (at.inside)
        for (int64 i = at.column; i < columns; i += at.depth) total += exp((A)x[at.row * columns + i] - largest);
    held[at.thread] = total;
    for (int half = at.depth / 2; half > 0; half /= 2) {
        __syncthreads();
        if (at.column < half) held[at.thread] += held[at.thread + half];
    }
    __syncthreads();
    return held[at.thread - at.column];
}

// Write e^(x - largest) / sum or, with `is_log`, its logarithm.
__device__ __forceinline__ void write_softmax(const T *x, T *y, int64 rows, int64 columns, int depth, bool is_log) {
    __shared__ A maxima[256];
    __shared__ double sums[256];
    Place at = place_of(rows, depth);
    A largest = largest_of(x, columns, at, maxima);
    double sum = sum_of_powers(x, columns, at, largest, sums);
    A total = (A)sum, logarithm = (A)log(sum);
    if (!at.inside) return;
    for (int64 i = at.column; i < columns; i += depth) {
        int64 element = at.row * columns + i;
        A shifted = (A)x[element] - largest;
        y[element] = T(is_log ? shifted - logarithm : exp(shifted) / total);
    }
}

extern "C" __global__ void softmax(const T *x, T *y, int64 rows, int64 columns, int depth) {
    write_softmax(x, y, rows, columns, depth, false);
}

extern "C" __global__ void log_softmax(const T *x, T *y, int64 rows, int64 columns, int depth) {
    write_softmax(x, y, rows, columns, depth, true);
}

extern "C" __global__ void cross_entropy(const T *x, const I *labels, T *losses, T *probabilities, int64 rows,
                                         int64 columns, int depth, int *failure) {
    __shared__ A maxima[256];
    __shared__ double sums[256];
    Place at = place_of(rows, depth);
    A largest = largest_of(x, columns, at, maxima);
    double total = sum_of_powers(x, columns, at, largest, sums);
    if (!at.inside) return;
    int64 label = labels[at.row];
    bool is_class = label >= 0 && label < columns;
    if (at.column == 0) {
        if (is_class) losses[at.row] = T(A(log(total) - ((double)(A)x[at.row * columns + label] - (double)largest)));
        else *failure = 1;
    }
    for (int64 i = at.column; i < columns; i += depth) {
        int64 element = at.row * columns + i;
        probabilities[element] = T(exp((A)x[element] - largest) / (A)total);
    }
}

// dlogits may share memory with probabilities.
extern "C" __global__ void cross_entropy_gradient(const T *probabilities, const I *labels, const T *dlosses,
                                                  T *dlogits, int64 count, int64 columns, int *failure) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        int64 row = quotient(i, columns), column = i - row * columns, label = labels[row];
        if (column == 0 && (label < 0 || label >= columns)) *failure = 1;
        A truth = A(column == label);
        dlogits[i] = T(((A)probabilities[i] - truth) * (A)dlosses[row]);
    }
}

extern "C" __global__ void sigmoid_cross_entropy(const T *x, const T *targets, T *losses, int64 count) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        A value = (A)x[i], positive = value < A(0) ? A(0) : value, size = value < A(0) ? -value : value;
        losses[i] = T(positive - value * (A)targets[i] + log1p(exp(-size)));
    }
}
