// Kernels that move and set elements. T: an unsigned integer of the size of the dtype.

// Set every element to the lowest bits of `bits`.
extern "C" __global__ void fill(T *y, int64 count, uint64 bits) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = (T)bits;
}

// Transpose x (count, rows, columns) to y (count, columns, rows) in squares, which are read and written row by row. A
// block has 32 * 8 threads. The 33rd column of a square avoids bank conflicts within a warp.
extern "C" __global__ void turn(const T *x, T *y, int64 count, int64 rows, int64 columns) {
    __shared__ T square[32][33];
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const int64 down = (rows + 31) / 32, across = (columns + 31) / 32;
    for (int64 k = blockIdx.x; k < count * down * across; k += gridDim.x) {
        const int64 matrix = k / (down * across), place = k % (down * across);
        const int64 top = place / across * 32, left = place % across * 32;
        const T *from = x + matrix * rows * columns;
        T *to = y + matrix * rows * columns;
        for (int r = line; r < 32; r += 8)
            if (top + r < rows && left + lane < columns) square[r][lane] = from[(top + r) * columns + left + lane];
        __syncthreads();
        for (int c = line; c < 32; c += 8)
            if (left + c < columns && top + lane < rows) to[(left + c) * rows + top + lane] = square[lane][c];
        __syncthreads();
    }
}
