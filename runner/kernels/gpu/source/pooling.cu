// Pooling of images (images, height, width, channels) with channels innermost; in C order, every channel counts as an
// image of one channel. A pack of PACK adjacent channels, which is one channel or 16 bytes of channels, is read and
// written at once; `channels` is a number of packs.
// T: dtype of images. C: dtype of computations.

struct alignas(PACK * sizeof(T)) Values {
    T of[PACK];
};
struct alignas(PACK < 4 ? 4 * PACK : 16) Positions {
    int of[PACK];
};

#define GEOMETRY                                                                                                     \
    int height, int width, int rows, int columns, int channels, int window_rows, int window_columns, int stride_rows, \
        int stride_columns, int top, int left

struct Place {
    int64 image;
    int row, column, channel;
};

__device__ __forceinline__ Place place_of(int64 element, int height, int width, int channels) {
    int64 pixel = element / channels, line = pixel / width;
    return {line / height, (int)(line % height), (int)(pixel % width), (int)(element % channels)};
}

__device__ __forceinline__ int64 element_of(Place at, int row, int column, int height, int width, int channels) {
    return ((at.image * height + row) * width + column) * channels + at.channel;
}

// Return the first or the last of the windows that contain a row, or a column, of the padded image.
__device__ __forceinline__ int first_window(int place, int window, int stride) {
    return place < window ? 0 : (place - window) / stride + 1;
}
__device__ __forceinline__ int last_window(int place, int stride, int windows) {
    return min(place / stride, windows - 1);
}

// Return how many rows, or columns, of a window are inside the image. start: the first row or column of the window.
__device__ __forceinline__ int inside(int start, int window, int extent) {
    return min(start + window, extent) - max(start, 0);
}

extern "C" __global__ void max_pool(const Values *x, Values *y, Positions *argmax, int64 count, GEOMETRY) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Place at = place_of(i, rows, columns, channels);
        int row = at.row * stride_rows - top, column = at.column * stride_columns - left;
        C best[PACK];
        Positions found;
        for (int k = 0; k < PACK; ++k) {
            best[k] = -__uint_as_float(0x7f800000u);
            found.of[k] = 0;
        }
        for (int u = max(0, -row); u < min(window_rows, height - row); ++u)
            for (int v = max(0, -column); v < min(window_columns, width - column); ++v) {
                Values values = x[element_of(at, row + u, column + v, height, width, channels)];
#pragma unroll
                for (int k = 0; k < PACK; ++k) {
                    C value = (C)values.of[k];
                    // Comparisons with NaN are false: NaN becomes `best` and stays, but its position is not recorded.
                    if (value > best[k]) found.of[k] = u * window_columns + v;
                    if (value > best[k] || value != value) best[k] = value;
                }
            }
        Values largest;
        for (int k = 0; k < PACK; ++k) largest.of[k] = (T)best[k];
        y[i] = largest;
        argmax[i] = found;
    }
}

// Gradients are added in the order of the reference kernel: in ascending order of the pixel's position in the window.
extern "C" __global__ void max_pool_gradient(const Values *dy, const Positions *argmax, Values *dx, int64 count,
                                             GEOMETRY) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Place at = place_of(i, height, width, channels);
        int row = at.row + top, column = at.column + left;
        C total[PACK];
        for (int k = 0; k < PACK; ++k) total[k] = 0;
        for (int r = last_window(row, stride_rows, rows); r >= first_window(row, window_rows, stride_rows); --r)
            for (int q = last_window(column, stride_columns, columns);
                 q >= first_window(column, window_columns, stride_columns); --q) {
                int64 window = element_of(at, r, q, rows, columns, channels);
                int position = (row - r * stride_rows) * window_columns + column - q * stride_columns;
                Values values = dy[window];
                Positions found = argmax[window];
#pragma unroll
                for (int k = 0; k < PACK; ++k)
                    if (found.of[k] == position) total[k] += (C)values.of[k];
            }
        Values gradient;
        for (int k = 0; k < PACK; ++k) gradient.of[k] = (T)total[k];
        dx[i] = gradient;
    }
}

extern "C" __global__ void max_pool_gather(const Values *x, const Positions *argmax, Values *y, int64 count,
                                           GEOMETRY) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Place at = place_of(i, rows, columns, channels);
        Positions wanted = argmax[i];
        Values gathered;
        for (int k = 0; k < PACK; ++k) {
            int position = wanted.of[k];
            int row = at.row * stride_rows - top + position / window_columns;
            int column = at.column * stride_columns - left + position % window_columns;
            bool is_there = position >= 0 && position < window_rows * window_columns && row >= 0 && row < height &&
                            column >= 0 && column < width;
            gathered.of[k] = is_there ? x[element_of(at, row, column, height, width, channels)].of[k] : (T)(C)0;
        }
        y[i] = gathered;
    }
}

extern "C" __global__ void avg_pool(const Values *x, Values *y, int64 count, GEOMETRY, int count_padding) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Place at = place_of(i, rows, columns, channels);
        int row = at.row * stride_rows - top, column = at.column * stride_columns - left;
        C total[PACK];
        for (int k = 0; k < PACK; ++k) total[k] = 0;
        for (int u = max(0, -row); u < min(window_rows, height - row); ++u)
            for (int v = max(0, -column); v < min(window_columns, width - column); ++v) {
                Values values = x[element_of(at, row + u, column + v, height, width, channels)];
#pragma unroll
                for (int k = 0; k < PACK; ++k) total[k] += (C)values.of[k];
            }
        C divisor = count_padding ? window_rows * window_columns
                                  : inside(row, window_rows, height) * inside(column, window_columns, width);
        Values mean;
        for (int k = 0; k < PACK; ++k) mean.of[k] = (T)(total[k] / divisor);
        y[i] = mean;
    }
}

extern "C" __global__ void avg_pool_gradient(const Values *dy, Values *dx, int64 count, GEOMETRY, int count_padding) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Place at = place_of(i, height, width, channels);
        int row = at.row + top, column = at.column + left;
        C total[PACK];
        for (int k = 0; k < PACK; ++k) total[k] = 0;
        for (int r = last_window(row, stride_rows, rows); r >= first_window(row, window_rows, stride_rows); --r)
            for (int q = last_window(column, stride_columns, columns);
                 q >= first_window(column, window_columns, stride_columns); --q) {
                C divisor = count_padding ? window_rows * window_columns
                                          : inside(r * stride_rows - top, window_rows, height) *
                                                inside(q * stride_columns - left, window_columns, width);
                Values values = dy[element_of(at, r, q, rows, columns, channels)];
#pragma unroll
                for (int k = 0; k < PACK; ++k) total[k] += (C)values.of[k] / divisor;
            }
        Values gradient;
        for (int k = 0; k < PACK; ++k) gradient.of[k] = (T)total[k];
        dx[i] = gradient;
    }
}
