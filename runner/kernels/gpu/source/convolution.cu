// fmad
// Convolution and its two gradients, each as one product of matrices (M, K) and (K, N) per group. The matrices are
// never stored: a block gathers tiles of TILE x DEPTH and DEPTH x TILE from images and filters.
// x: (examples, channels, height, width); filters: (outputs, channels / groups, window_rows, window_columns); y:
// (examples, outputs, rows, columns). Either all three have channels last, or all three are in C order.
// T: dtype of images and filters. C: dtype of computations. R: dtype of filter gradients.

#define TILE 64
#define DEPTH 16
#define THREADS 256
#define EACH 4

// dilation: distance between adjacent pixels of a window. last: whether channels are innermost.
#define GEOMETRY                                                                                              \
    int64 examples, int channels, int height, int width, int outputs, int rows, int columns, int window_rows, \
        int window_columns, int stride_rows, int stride_columns, int dilation_rows, int dilation_columns,     \
        int top, int left, int groups, int last
#define GIVEN                                                                                               \
    examples, channels, height, width, outputs, rows, columns, window_rows, window_columns, stride_rows,    \
        stride_columns, dilation_rows, dilation_columns, top, left, groups, last

// Strides in memory, in elements.
struct Strides {
    int64 example, channel, row, column;

    __device__ Strides(int channels, int rows, int columns, int last) {
        int64 pixels = (int64)rows * columns;
        example = pixels * channels;
        channel = last ? 1 : pixels;
        row = last ? (int64)columns * channels : columns;
        column = last ? channels : 1;
    }
};

struct Pixel {
    int64 example;
    int row, column;
};
__device__ __forceinline__ Pixel pixel_of(int64 index, int rows, int columns) {
    int64 line = index / columns;
    return {line / rows, (int)(line % rows), (int)(index % columns)};
}

// One position in a window, and one channel. Taps are numbered in the order in which a filter is stored.
struct Tap {
    int channel, row, column;
};
__device__ __forceinline__ Tap tap_of(int64 index, int channels, int window_rows, int window_columns, int last) {
    int64 place = last ? index / channels : index;
    int64 line = place / window_columns;
    return {(int)(last ? index % channels : line / window_rows), (int)(line % window_rows),
            (int)(place % window_columns)};
}

// One group of a convolution.
struct Group {
    int64 examples;
    int height, width, rows, columns, window_rows, window_columns, stride_rows, stride_columns;
    int dilation_rows, dilation_columns, top, left, last;
    int channels, outputs, first_channel, first_output;
    Strides x, filters, y;

    __device__ Group(GEOMETRY, int group)
        : examples(examples), height(height), width(width), rows(rows), columns(columns), window_rows(window_rows),
          window_columns(window_columns), stride_rows(stride_rows), stride_columns(stride_columns),
          dilation_rows(dilation_rows), dilation_columns(dilation_columns), top(top), left(left), last(last),
          channels(channels / groups), outputs(outputs / groups), first_channel(group * (channels / groups)),
          first_output(group * (outputs / groups)), x(channels, height, width, last),
          filters(channels / groups, window_rows, window_columns, last), y(outputs, rows, columns, last) {}

    __device__ int64 taps(int channels) const { return (int64)channels * window_rows * window_columns; }
    __device__ Pixel of_x(int64 index) const { return pixel_of(index, height, width); }
    __device__ Pixel of_y(int64 index) const { return pixel_of(index, rows, columns); }
    __device__ Tap tap(int64 index, int channels) const {
        return tap_of(index, channels, window_rows, window_columns, last);
    }
};

// The contribution of one matrix index to the position of a value in a tensor: an offset, and a row and a column of a
// grid in which adjacent values are View::step_rows and View::step_columns apart. View::at adds two spots.
struct alignas(16) Spot {
    int64 offset;
    int row, column;
};
__device__ __forceinline__ Spot nowhere() { return {0, -(1 << 29), 0}; }

struct View {  // Reads 0 outside the tensor and at grid positions between its elements.
    const T *data;
    int rows, columns, step_rows, step_columns;
    int64 row_distance, column_distance;

    __device__ __forceinline__ C at(const Spot &a, const Spot &b) const {
        int row = a.row + b.row, column = a.column + b.column;
        if (row < 0 || column < 0) return 0;
        if (step_rows > 1 || step_columns > 1) {
            if (row % step_rows != 0 || column % step_columns != 0) return 0;
            row /= step_rows;
            column /= step_columns;
        }
        if (row >= rows || column >= columns) return 0;
        return (C)data[a.offset + b.offset + row * row_distance + column * column_distance];
    }
};
// Return a view of a tensor whose elements are found by offsets alone.
__device__ __forceinline__ View flat(const T *data) { return {data, 1, 1, 1, 1, 0, 0}; }

// HELD: number of tile values that each thread gathers. across_of, depth_of: the place of such a value in the tile.
// by_depth: whether adjacent threads gather values that are adjacent along K; if not, along the other axis.
#define HELD (TILE * DEPTH / THREADS)

__device__ __forceinline__ int across_of(int value, bool by_depth) {
    int index = threadIdx.x + value * THREADS;
    return by_depth ? index / DEPTH : index % TILE;
}
__device__ __forceinline__ int depth_of(int value, bool by_depth) {
    int index = threadIdx.x + value * THREADS;
    return by_depth ? index % DEPTH : index / TILE;
}

__device__ __forceinline__ void gather(C *values, const View &view, const Spot *across, const Spot *depth,
                                       bool by_depth) {
#pragma unroll
    for (int v = 0; v < HELD; ++v) values[v] = view.at(across[across_of(v, by_depth)], depth[depth_of(v, by_depth)]);
}

// Four elements of padding avoid bank conflicts and still let a thread read four adjacent elements at once.
#define PITCH (TILE + 4)

__device__ __forceinline__ void keep(C (*tile)[PITCH], const C *values, bool by_depth) {
#pragma unroll
    for (int v = 0; v < HELD; ++v) tile[depth_of(v, by_depth)][across_of(v, by_depth)] = values[v];
}

// Compute one tile of a product. The problem defines the tensors a and b, the spots of the indices m, k and n in them,
// and how to store a result. across: adjacent threads compute results that are adjacent along N; if not, along M.
template <typename Problem>
__device__ void multiply(const Problem &problem, int64 k_begin, int64 k_end, bool a_by_depth, bool b_by_depth,
                         bool across) {
    __shared__ C a_tile[DEPTH][PITCH], b_tile[DEPTH][PITCH];
    __shared__ Spot a_m[TILE], a_k[DEPTH], b_k[DEPTH], b_n[TILE];
    int thread = threadIdx.x;
    int64 m_first = (int64)blockIdx.x * TILE, n_first = (int64)blockIdx.y * TILE;
    if (thread < TILE) {
        a_m[thread] = m_first + thread < problem.m_count ? problem.a_m(m_first + thread) : nowhere();
        b_n[thread] = n_first + thread < problem.n_count ? problem.b_n(n_first + thread) : nowhere();
    }
    int fast = EACH * (thread % (TILE / EACH)), slow = EACH * (thread / (TILE / EACH));
    int m_thread = across ? slow : fast, n_thread = across ? fast : slow;
    C sums[EACH][EACH] = {};
    for (int64 k_first = k_begin; k_first < k_end; k_first += DEPTH) {
        if (thread < DEPTH) {
            bool is_there = k_first + thread < k_end;
            a_k[thread] = is_there ? problem.a_k(k_first + thread) : nowhere();
            b_k[thread] = is_there ? problem.b_k(k_first + thread) : nowhere();
        }
        __syncthreads();
        C a_values[HELD], b_values[HELD];
        gather(a_values, problem.a, a_m, a_k, a_by_depth);
        gather(b_values, problem.b, b_n, b_k, b_by_depth);
        keep(a_tile, a_values, a_by_depth);
        keep(b_tile, b_values, b_by_depth);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k)
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) sums[i][j] += a_tile[k][m_thread + i] * b_tile[k][n_thread + j];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            int64 m = m_first + m_thread + i, n = n_first + n_thread + j;
            if (m < problem.m_count && n < problem.n_count) problem.store(m, n, sums[i][j]);
        }
}

// M: pixels of y. N: outputs. K: taps of a filter.
struct Forward {
    Group of;
    View a, b;
    int64 m_count, n_count;
    const T *bias, *residual;
    T *result;
    int relu;

    __device__ Spot a_m(int64 m) const {
        Pixel pixel = of.of_y(m);
        return {pixel.example * of.x.example + of.first_channel * of.x.channel,
                pixel.row * of.stride_rows - of.top, pixel.column * of.stride_columns - of.left};
    }
    __device__ Spot a_k(int64 k) const {
        Tap tap = of.tap(k, of.channels);
        return {tap.channel * of.x.channel, tap.row * of.dilation_rows, tap.column * of.dilation_columns};
    }
    __device__ Spot b_k(int64 k) const { return {k, 0, 0}; }
    __device__ Spot b_n(int64 n) const { return {(of.first_output + n) * of.filters.example, 0, 0}; }
    __device__ void store(int64 m, int64 n, C value) const {
        Pixel pixel = of.of_y(m);
        int64 output = of.first_output + n;
        int64 place = pixel.example * of.y.example + output * of.y.channel + pixel.row * of.y.row +
                      pixel.column * of.y.column;
        if (bias) value += (C)bias[output];
        if (residual) value += (C)residual[place];
        // A comparison with NaN is false, so NaN stays NaN.
        if (relu && value <= 0) value = 0;
        result[place] = (T)value;
    }
};

// M: pixels of x. N: channels. K: pairs of an output and a position in the window.
struct InputGradient {
    Group of;
    View a, b;
    int64 m_count, n_count;
    T *result;

    __device__ Spot a_m(int64 m) const {
        Pixel pixel = of.of_x(m);
        return {pixel.example * of.y.example + of.first_output * of.y.channel, pixel.row + of.top,
                pixel.column + of.left};
    }
    __device__ Spot a_k(int64 k) const {
        Tap tap = of.tap(k, of.outputs);
        return {tap.channel * of.y.channel, -tap.row * of.dilation_rows, -tap.column * of.dilation_columns};
    }
    __device__ Spot b_k(int64 k) const {
        Tap tap = of.tap(k, of.outputs);
        return {(of.first_output + tap.channel) * of.filters.example + tap.row * of.filters.row +
                    tap.column * of.filters.column,
                0, 0};
    }
    __device__ Spot b_n(int64 n) const { return {n * of.filters.channel, 0, 0}; }
    __device__ void store(int64 m, int64 n, C value) const {
        Pixel pixel = of.of_x(m);
        result[pixel.example * of.x.example + (of.first_channel + n) * of.x.channel + pixel.row * of.x.row +
               pixel.column * of.x.column] = (T)value;
    }
};

// M: outputs. N: taps of a filter. K: pixels of y.
struct FilterGradient {
    Group of;
    View a, b;
    int64 m_count, n_count;
    C *result;

    __device__ Spot a_m(int64 m) const { return {(of.first_output + m) * of.y.channel, 0, 0}; }
    __device__ Spot a_k(int64 k) const {
        Pixel pixel = of.of_y(k);
        return {pixel.example * of.y.example + pixel.row * of.y.row + pixel.column * of.y.column, 0, 0};
    }
    __device__ Spot b_k(int64 k) const {
        Pixel pixel = of.of_y(k);
        return {pixel.example * of.x.example, pixel.row * of.stride_rows - of.top,
                pixel.column * of.stride_columns - of.left};
    }
    __device__ Spot b_n(int64 n) const {
        Tap tap = of.tap(n, of.channels);
        return {(of.first_channel + tap.channel) * of.x.channel, tap.row * of.dilation_rows,
                tap.column * of.dilation_columns};
    }
    __device__ void store(int64 m, int64 n, C value) const { result[(of.first_output + m) * n_count + n] = value; }
};

// bias and residual may be null. y may share memory with the residual.
extern "C" __global__ void __launch_bounds__(THREADS) conv2d(const T *x, const T *filters, const T *bias,
                                                             const T *residual, T *y, int relu, GEOMETRY) {
    Group of(GIVEN, blockIdx.z);
    View images = {x, height, width, 1, 1, of.x.row, of.x.column};
    Forward problem = {of,   images,   flat(filters), examples * rows * columns, of.outputs,
                       bias, residual, y,             relu};
    multiply(problem, 0, of.taps(of.channels), last, true, last);
}

extern "C" __global__ void __launch_bounds__(THREADS) conv2d_input_gradient(const T *dy, const T *filters, T *dx,
                                                                            GEOMETRY) {
    Group of(GIVEN, blockIdx.z);
    View gradients = {dy, rows, columns, stride_rows, stride_columns, of.y.row, of.y.column};
    InputGradient problem = {of, gradients, flat(filters), examples * height * width, of.channels, dx};
    multiply(problem, 0, of.taps(of.outputs), last, !last, last);
}

// Compute the weight gradient of each split, which is a run of `depth` pixels of y. partials: (splits, *filters).
extern "C" __global__ void __launch_bounds__(THREADS) conv2d_weight_gradient(const T *dy, const T *x, C *partials,
                                                                             int64 depth, GEOMETRY) {
    int64 split = blockIdx.z / groups, pixels = examples * rows * columns;
    Group of(GIVEN, blockIdx.z % groups);
    View images = {x, height, width, 1, 1, of.x.row, of.x.column};
    int64 taps = of.taps(of.channels);
    FilterGradient problem = {of, flat(dy), images, of.outputs, taps, partials + split * outputs * taps};
    multiply(problem, split * depth, min((split + 1) * depth, pixels), !last, !last, true);
}

extern "C" __global__ void sum_of_splits(const C *partials, R *sums, int64 count, int splits) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        C total = 0;
        for (int split = 0; split < splits; ++split) total += partials[split * count + i];
        sums[i] = (R)total;
    }
}
