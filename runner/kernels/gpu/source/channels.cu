// Sums over each channel, and batch normalization. A tensor in C order has shape (rows, channels, pixels), where each
// row is an example; a tensor with channels last counts as a single row of shape (pixels, channels).
// T: dtype of tensors. C: dtype of computations and of values per channel. R: dtype of the sums in channel_totals.
//
// A block processes one split, which is `run` rows in C order or `run` pixels with channels last, for one or more
// channels. In C order, its threads form lines of `lanes` pixels, each line in a different row; with channels last,
// they form lines of `lanes` channels, each line at a different pixel. A sum over a channel takes two launches: the
// first computes a partial sum per split; in the second, every block adds the partial sums of its channels.

#define THREADS 1024
#define SHAPE int64 rows, int64 pixels, int channels, int lanes, int last, int64 run, int splits
#define GIVEN rows, pixels, channels, lanes, last, run

// Iterates over a thread's elements, `AHEAD` at a time, so that all loads are issued before the first value is needed.
template <int AHEAD>
struct Walk {
    int channel, step, rows_apart;
    int64 row, last_row, pixel, first_pixel, last_pixel, pixel_distance, row_distance, start, apart;

    __device__ __forceinline__ Walk(int64 rows, int64 pixels, int channels, int lanes, int last, int64 run) {
        int lane = threadIdx.x % lanes, line = threadIdx.x / lanes, lines = THREADS / lanes;
        int64 begin = blockIdx.y * run, end = min(begin + run, last ? pixels : rows);
        channel = last ? blockIdx.x * lanes + lane : blockIdx.x;
        row = last ? 0 : begin + line;
        last_row = last ? 1 : end;
        rows_apart = lines;
        first_pixel = pixel = last ? begin + line : lane;
        last_pixel = last ? end : pixels;
        step = last ? lines : lanes;
        pixel_distance = last ? channels : 1;
        row_distance = channels * pixels;
        apart = step * pixel_distance;
        start = last ? channel : channel * pixels;
        if (channel >= channels || pixel >= last_pixel) row = last_row;
    }

    __device__ __forceinline__ bool more() const { return row < last_row; }
    // The number of pixels from the current one to the end of the run or row, limited so that it fits into an int.
    __device__ __forceinline__ int room() const { return (int)min(last_pixel - pixel, (int64)AHEAD * THREADS); }
    __device__ __forceinline__ int64 here() const { return row * row_distance + start + pixel * pixel_distance; }
    __device__ __forceinline__ void next() {
        pixel += AHEAD * step;
        if (pixel < last_pixel) return;
        pixel = first_pixel;
        row += rows_apart;
    }
};

// The count and the mean of some values, and the sum of their squared distances from the mean.
struct Moments {
    C count, mean, squares;
};
struct Sums {
    C dy, dy_z;
};
struct Sum {
    C value;
};

// The formula of Chan, Golub and LeVeque (1979), which avoids differences of large sums.
__device__ __forceinline__ Moments merged(Moments a, Moments b) {
    if (b.count == 0) return a;
    C count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * (a.count * share)};
}
__device__ __forceinline__ Sums merged(Sums a, Sums b) { return {a.dy + b.dy, a.dy_z + b.dy_z}; }
__device__ __forceinline__ Sum merged(Sum a, Sum b) { return {a.value + b.value}; }

// Merge the results that all threads of the block have for the channel of this thread, pair by pair in a fixed order.
template <typename Found>
__device__ Found of_block(Found mine, int width) {
    __shared__ Found found[THREADS];
    found[threadIdx.x] = mine;
    __syncthreads();
    for (int distance = THREADS / 2; distance >= width; distance /= 2) {
        if (threadIdx.x < distance) found[threadIdx.x] = merged(found[threadIdx.x], found[threadIdx.x + distance]);
        __syncthreads();
    }
    return found[threadIdx.x % width];
}

template <typename Found>
__device__ void write_partial(Found *partials, Found mine, int channel, int channels, int width) {
    Found whole = of_block(mine, width);
    if (threadIdx.x < width && channel < channels) partials[(int64)blockIdx.y * channels + channel] = whole;
}

template <typename Found>
__device__ Found of_splits(const Found *partials, int channel, int channels, int width, int splits) {
    Found total = {};
    if (channel < channels)
        for (int split = threadIdx.x / width; split < splits; split += THREADS / width)
            total = merged(total, partials[(int64)split * channels + channel]);
    return of_block(total, width);
}

// Return whether this thread writes the results of its channel.
__device__ __forceinline__ bool writes_results(int channel, int channels, int width) {
    return blockIdx.y == 0 && threadIdx.x < width && channel < channels;
}

// Return the number of channels of a block.
__device__ __forceinline__ int width_of(int lanes, int last) { return last ? lanes : 1; }

// Read the next values of a thread, and set the rest of `values` to 0; return the number of values. In place of a
// missing value, the first value is read again, so that no branch delays the other loads.
template <int AHEAD>
__device__ __forceinline__ int read(C *values, const T *x, const Walk<AHEAD> &at) {
    int count = 0, room = at.room();
    const T *first = x + at.here(), *next = first;
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        bool is_there = k * at.step < room;
        C value = (C)*(is_there ? next : first);
        values[k] = is_there ? value : (C)0;
        count += is_there;
        next += at.apart;
    }
    return count;
}

extern "C" __global__ void __launch_bounds__(THREADS) channel_sums(const T *x, Sum *partials, SHAPE) {
    Walk<8> at(GIVEN);
    Sum total = {0};
    for (; at.more(); at.next()) {
        C values[8];
        read(values, x, at);
#pragma unroll
        for (int k = 0; k < 8; ++k) total.value += values[k];
    }
    write_partial(partials, total, at.channel, channels, width_of(lanes, last));
}

extern "C" __global__ void __launch_bounds__(THREADS) channel_totals(const Sum *partials, R *sums, SHAPE) {
    Walk<1> at(GIVEN);
    Sum total = of_splits(partials, at.channel, channels, width_of(lanes, last), splits);
    if (writes_results(at.channel, channels, width_of(lanes, last))) sums[at.channel] = (R)total.value;
}

// Each thread reads 8 values at a time, computes their moments about their own mean, and merges these into its total.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_moments(const T *x, Moments *partials, SHAPE) {
    Walk<8> at(GIVEN);
    Moments total = {0, 0, 0};
    for (; at.more(); at.next()) {
        C values[8], sum = 0, squares = 0;
        int count = read(values, x, at);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += values[k];
        C mean = sum / (C)count;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            C distance = k < count ? values[k] - mean : (C)0;
            squares += distance * distance;
        }
        total = merged(total, {(C)count, mean, squares});
    }
    write_partial(partials, total, at.channel, channels, width_of(lanes, last));
}

// y may share memory with x. mask: null for no ReLU; otherwise receives whether each value before ReLU is positive.
__device__ __forceinline__ void normalise(const T *x, T *y, bool *mask, Walk<8> at, C mean, C factor, C shift) {
    for (; at.more(); at.next()) {
        C values[8];
        int count = read(values, x, at);
        int64 place = at.here();
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            C value = (values[k] - mean) * factor + shift;
            if (mask && k < count) mask[place] = value > 0;
            // A comparison with NaN is false, so NaN stays NaN.
            if (mask && value <= 0) value = 0;
            if (k < count) y[place] = (T)value;
            place += at.apart;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm(const T *x, const C *gamma, const C *beta,
            const Moments *partials, T *y, C *mean, C *variance, bool *mask, C epsilon, SHAPE) {
    Walk<8> at(GIVEN);
    Moments moments = of_splits(partials, at.channel, channels, width_of(lanes, last), splits);
    C found = moments.squares / moments.count;
    if (writes_results(at.channel, channels, width_of(lanes, last))) {
        mean[at.channel] = moments.mean;
        variance[at.channel] = found;
    }
    if (!at.more()) return;
    C deviation = sqrt(found + epsilon);
    normalise(x, y, mask, at, moments.mean, gamma[at.channel] / deviation, beta[at.channel]);
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_inference(const T *x, const C *gamma, const C *beta,
            const C *mean, const C *variance, T *y, C epsilon, SHAPE) {
    Walk<8> at(GIVEN);
    if (!at.more()) return;
    C deviation = sqrt(variance[at.channel] + epsilon);
    normalise(x, y, 0, at, mean[at.channel], gamma[at.channel] / deviation, beta[at.channel]);
}

// Read the next values of x and of dy, with 0 for dy where the mask is false; return the number of values.
__device__ __forceinline__ int read_both(C *values, C *gradients, const T *x, const T *dy, const bool *mask,
            const Walk<4> &at) {
    int count = read(values, x, at);
    read(gradients, dy, at);
    if (!mask) return count;
    bool passes[4];
    const bool *first = mask + at.here(), *next = first;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        passes[k] = *(k < count ? next : first);
        next += at.apart;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) gradients[k] = passes[k] ? gradients[k] : (C)0;
    return count;
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_gradient_sums(const T *x, const C *mean,
            const C *variance, const bool *mask, const T *dy, Sums *partials, C epsilon, SHAPE) {
    Walk<4> at(GIVEN);
    Sums total = {0, 0};
    C deviation = at.more() ? sqrt(variance[at.channel] + epsilon) : 1, centre = at.more() ? mean[at.channel] : 0;
    C inverse = 1 / deviation;
    for (; at.more(); at.next()) {
        C values[4], gradients[4];
        read_both(values, gradients, x, dy, mask, at);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            total.dy += gradients[k];
            total.dy_z += gradients[k] * ((values[k] - centre) * inverse);
        }
    }
    write_partial(partials, total, at.channel, channels, width_of(lanes, last));
}

// dx may share memory with dy.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_gradient(const T *x, const C *gamma, const C *mean,
            const C *variance, const bool *mask, const T *dy, const Sums *partials, T *dx, C *dgamma, C *dbeta,
            C epsilon, SHAPE) {
    Walk<4> at(GIVEN);
    Sums sums = of_splits(partials, at.channel, channels, width_of(lanes, last), splits);
    if (writes_results(at.channel, channels, width_of(lanes, last))) {
        dgamma[at.channel] = sums.dy_z;
        dbeta[at.channel] = sums.dy;
    }
    if (!at.more()) return;
    C count = (C)(rows * pixels), mean_dy = sums.dy / count, mean_dy_z = sums.dy_z / count;
    C deviation = sqrt(variance[at.channel] + epsilon), inverse = 1 / deviation, centre = mean[at.channel];
    C factor = gamma[at.channel] * inverse;
    for (; at.more(); at.next()) {
        C values[4], gradients[4];
        int there = read_both(values, gradients, x, dy, mask, at);
        int64 place = at.here();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            C z = (values[k] - centre) * inverse;
            if (k < there) dx[place] = (T)((gradients[k] - mean_dy - z * mean_dy_z) * factor);
            place += at.apart;
        }
    }
}
