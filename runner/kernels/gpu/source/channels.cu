// What is added up and mapped channel by channel: batch normalisation, and sums. A tensor is (outer, channels, inner):
// with the channels last inner is 1, in C order outer are the examples and inner the pixels.
// T: of tensors. C: computed in, and of what there is one of for each channel. R: of sums that are a result.
//
// A block works on `width` neighbouring channels and a run of outer, a split. Its threads are rows of `lanes`, which are
// neighbours in memory: channels (width = lanes), or pixels of one channel (width = 1). A sum over a channel is made in
// two launches: a partial one of each split, and their total, which every block of the second makes for its channels.

#define THREADS 1024
#define SHAPE int64 outer, int64 inner, int channels, int lanes, int width, int64 rows_of_split, int splits

// The elements of one thread, one after the other.
struct Walk {
    int channel, first, step, rows;
    int64 row, last, pixel, inner, row_distance, start;

    __device__ __forceinline__ Walk(int64 outer, int64 inner, int channels, int lanes, int width, int64 rows_of_split)
        : inner(inner) {
        int lane = threadIdx.x % lanes;
        channel = blockIdx.x * width + lane % width;
        first = lane / width;
        step = lanes / width;
        rows = THREADS / lanes;
        last = min((blockIdx.y + 1) * rows_of_split, outer);
        row = channel < channels && first < inner ? blockIdx.y * rows_of_split + threadIdx.x / lanes : last;
        pixel = first;
        row_distance = channels * inner;
        start = channel * inner;
    }

    __device__ __forceinline__ bool more() const { return row < last; }
    __device__ __forceinline__ int64 here() const { return row * row_distance + start + pixel; }
    __device__ __forceinline__ void next() {
        pixel += step;
        if (pixel >= inner) {
            pixel = first;
            row += rows;
        }
    }
};

// Number, mean and sum of squared distances from the mean.
struct Moments {
    C count, mean, squares;
};
struct Sums {
    C dy, dy_z;
};
struct Sum {
    C value;
};

// Chan, Golub and LeVeque (1979): no difference of large sums.
__device__ __forceinline__ Moments merged(Moments a, Moments b) {
    if (b.count == 0) return a;
    C count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * (a.count * share)};
}
__device__ __forceinline__ Sums merged(Sums a, Sums b) { return {a.dy + b.dy, a.dy_z + b.dy_z}; }
__device__ __forceinline__ Sum merged(Sum a, Sum b) { return {a.value + b.value}; }

// What all threads of a block found for the channel of this one, put together as a tree.
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
__device__ void write_partial(Found *partials, Found mine, const Walk &at, int channels, int width) {
    Found whole = of_block(mine, width);
    if (threadIdx.x < width && at.channel < channels) partials[(int64)blockIdx.y * channels + at.channel] = whole;
}

template <typename Found>
__device__ Found of_splits(const Found *partials, const Walk &at, int channels, int width, int splits) {
    Found total = {};
    if (at.channel < channels)
        for (int split = threadIdx.x / width; split < splits; split += THREADS / width)
            total = merged(total, partials[(int64)split * channels + at.channel]);
    return of_block(total, width);
}

// Whether this thread is the one that writes what there is one of for its channel.
__device__ __forceinline__ bool speaks(const Walk &at, int channels, int width) {
    return blockIdx.y == 0 && threadIdx.x < width && at.channel < channels;
}

extern "C" __global__ void __launch_bounds__(THREADS) channel_sums(const T *x, Sum *partials, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split), begin = at;
    Sum total = {0};
    while (at.more()) {
        C values[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            values[k] = at.more() ? (C)x[at.here()] : (C)0;
            at.next();
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) total.value += values[k];
    }
    write_partial(partials, total, begin, channels, width);
}

extern "C" __global__ void __launch_bounds__(THREADS) channel_totals(const Sum *partials, R *sums, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split);
    Sum total = of_splits(partials, at, channels, width, splits);
    if (speaks(at, channels, width)) sums[at.channel] = (R)total.value;
}

// Eight values at a time are read ahead; their mean is known before their distances from it are squared.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_moments(const T *x, Moments *partials, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split), begin = at;
    Moments total = {0, 0, 0};
    while (at.more()) {
        C values[8], sum = 0, squares = 0;
        int count = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            values[k] = at.more() ? (C)x[at.here()] : (C)0;
            count += at.more();
            at.next();
        }
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
    write_partial(partials, total, begin, channels, width);
}

// y may be where x is. mask: where y is positive, and nothing less is let through; 0 where all of it is.
__device__ __forceinline__ void normalise(const T *x, T *y, bool *mask, Walk from, C mean, C factor, C shift) {
    Walk to = from;
    while (from.more()) {
        C values[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            values[k] = from.more() ? (C)x[from.here()] : (C)0;
            from.next();
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            C value = (values[k] - mean) * factor + shift;
            if (to.more() && mask) mask[to.here()] = value > 0;
            if (mask && value <= 0) value = 0;
            if (to.more()) y[to.here()] = (T)value;
            to.next();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm(const T *x, const C *gamma, const C *beta, const Moments *partials, T *y, C *mean, C *variance,
                  bool *mask, C epsilon, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split);
    Moments moments = of_splits(partials, at, channels, width, splits);
    C found = moments.squares / moments.count;
    if (speaks(at, channels, width)) {
        mean[at.channel] = moments.mean;
        variance[at.channel] = found;
    }
    if (!at.more()) return;
    C deviation = sqrt(found + epsilon);
    normalise(x, y, mask, at, moments.mean, gamma[at.channel] / deviation, beta[at.channel]);
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_inference(const T *x, const C *gamma, const C *beta, const C *mean, const C *variance, T *y,
                            C epsilon, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split);
    if (!at.more()) return;
    C deviation = sqrt(variance[at.channel] + epsilon);
    normalise(x, y, 0, at, mean[at.channel], gamma[at.channel] / deviation, beta[at.channel]);
}

// Four values of x and of the gradient that arrives, where the mask lets it through. All are asked for before one is
// waited for.
__device__ __forceinline__ void read_ahead(C *values, C *gradients, const T *x, const T *dy, const bool *mask,
                                           Walk &at) {
    bool passed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        values[k] = at.more() ? (C)x[at.here()] : (C)0;
        gradients[k] = at.more() ? (C)dy[at.here()] : (C)0;
        passed[k] = true;
        if (mask) passed[k] = at.more() ? mask[at.here()] : false;
        at.next();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) gradients[k] = passed[k] ? gradients[k] : (C)0;
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_gradient_sums(const T *x, const C *mean, const C *variance, const bool *mask, const T *dy,
                                Sums *partials, C epsilon, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split), begin = at;
    Sums total = {0, 0};
    C deviation = at.more() ? sqrt(variance[at.channel] + epsilon) : 1, centre = at.more() ? mean[at.channel] : 0;
    C inverse = 1 / deviation;
    while (at.more()) {
        C values[4], gradients[4];
        read_ahead(values, gradients, x, dy, mask, at);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            total.dy += gradients[k];
            total.dy_z += gradients[k] * ((values[k] - centre) * inverse);
        }
    }
    write_partial(partials, total, begin, channels, width);
}

// dx may be where dy is.
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_gradient(const T *x, const C *gamma, const C *mean, const C *variance, const bool *mask, const T *dy,
                           const Sums *partials, T *dx, C *dgamma, C *dbeta, C epsilon, SHAPE) {
    Walk at(outer, inner, channels, lanes, width, rows_of_split), to = at;
    Sums sums = of_splits(partials, at, channels, width, splits);
    if (speaks(at, channels, width)) {
        dgamma[at.channel] = sums.dy_z;
        dbeta[at.channel] = sums.dy;
    }
    if (!at.more()) return;
    C count = (C)(outer * inner), mean_dy = sums.dy / count, mean_dy_z = sums.dy_z / count;
    C deviation = sqrt(variance[at.channel] + epsilon), inverse = 1 / deviation, centre = mean[at.channel];
    C factor = gamma[at.channel] * inverse;
    while (at.more()) {
        C values[4], gradients[4];
        read_ahead(values, gradients, x, dy, mask, at);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            C z = (values[k] - centre) * inverse;
            if (to.more()) dx[to.here()] = (T)((gradients[k] - mean_dy - z * mean_dy_z) * factor);
            to.next();
        }
    }
}
