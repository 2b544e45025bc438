// Rows selected by index. T: dtype of values, or, to copy rows, a type whose size divides the size of a row. A: dtype
// of sums. I: dtype of indices. A kernel sets *failure for an invalid index; `report` finds the first invalid index.

__device__ __forceinline__ bool is_row(int64 index, int64 rows) { return index >= 0 && index < rows; }

// Launched with one block. found: receives the position and the value of the first invalid index, if there is one.
extern "C" __global__ void report(const I *indices, int64 count, int64 rows, const int *failure, int64 *found) {
    __shared__ int64 firsts[256];
    if (*(const volatile int *)failure == 0) return;
    int64 first = count;
    for (int64 i = threadIdx.x; i < count; i += 256)
        if (i < first && !is_row(indices[i], rows)) first = i;
    firsts[threadIdx.x] = first;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        int64 other = threadIdx.x < half ? firsts[threadIdx.x + half] : count;
        if (threadIdx.x < half && other < firsts[threadIdx.x]) firsts[threadIdx.x] = other;
    }
    if (threadIdx.x == 0 && firsts[0] < count) {
        found[0] = firsts[0];
        found[1] = indices[firsts[0]];
    }
}

extern "C" __global__ void gather(const I *indices, const T *table, T *y, int64 count, int64 columns, int64 rows,
                                  int *failure) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        int64 place = quotient(i, columns), column = i - place * columns, index = indices[place];
        if (is_row(index, rows)) y[i] = table[index * columns + column];
        else *failure = 1;
    }
}

// Launched with one block per index. If several indices are equal, the block of the first adds all their updates, in
// order. Rows that no index selects must be set to 0 before the launch.
extern "C" __global__ void scatter_add(const I *indices, const T *updates, T *y, int64 count, int64 columns,
                                       int64 rows, int *failure) {
    __shared__ int earlier;
    int64 position = blockIdx.x, index = indices[position];
    if (!is_row(index, rows)) {
        if (threadIdx.x == 0) *failure = 1;
        return;
    }
    if (threadIdx.x == 0) earlier = 0;
    __syncthreads();
    for (int64 i = threadIdx.x; i < position; i += blockDim.x)
        if (indices[i] == index) earlier = 1;
    __syncthreads();
    if (earlier) return;
    for (int64 column = threadIdx.x; column < columns; column += blockDim.x) {
        A total = A(0);
        for (int64 i = position; i < count; ++i)
            if (indices[i] == index) total += (A)updates[i * columns + column];
        y[index * columns + column] = T(total);
    }
}

// Launched with one block per index. The block of each index adds the updates of all equal indices, in order.
extern "C" __global__ void add_equal_rows(const I *indices, const T *updates, T *sums, T *first, int64 count,
                                          int64 columns) {
    __shared__ int earlier;
    int64 position = blockIdx.x, index = indices[position];
    if (threadIdx.x == 0) earlier = 0;
    __syncthreads();
    for (int64 i = threadIdx.x; i < position; i += blockDim.x)
        if (indices[i] == index) earlier = 1;
    __syncthreads();
    if (threadIdx.x == 0) first[position] = T(A(!earlier));
    for (int64 column = threadIdx.x; column < columns; column += blockDim.x) {
        A total = A(0);
        for (int64 i = 0; i < count; ++i)
            if (indices[i] == index) total += (A)updates[i * columns + column];
        sums[position * columns + column] = T(total);
    }
}

// Equal indices have equal rows, so the order of the writes does not matter.
extern "C" __global__ void put_rows(const I *indices, const T *values, T *table, int64 count, int64 columns,
                                    int64 rows, int *failure) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        int64 place = quotient(i, columns), column = i - place * columns, index = indices[place];
        if (is_row(index, rows)) table[index * columns + column] = values[i];
        else *failure = 1;
    }
}

extern "C" __global__ void one_hot(const I *indices, T *y, int64 count, int64 depth, int *failure) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        int64 place = quotient(i, depth), column = i - place * depth, index = indices[place];
        y[i] = T(A(column == index));
        if (column == 0 && !is_row(index, depth)) *failure = 1;
    }
}
