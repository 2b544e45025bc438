// Local response normalization of tensors (outer, channels, inner). With channels last, inner is 1; in C order, outer
// is the number of examples, and inner the number of pixels. The window of an element has up to `reach` channels
// on each side and is summed from the lowest channel to the highest. T: dtype of tensors. C: dtype of computations.

#define SHAPE int64 count, int64 inner, int64 channels, int64 reach

// The first and the last channel in the window of an element, relative to the channel of the element.
struct Window {
    int64 first, last;
};

__device__ __forceinline__ Window window_of(int64 element, int64 inner, int64 channels, int64 reach) {
    int64 channel = element / inner % channels;
    return {max(-channel, -reach), min(channels - 1 - channel, reach)};
}

__device__ __forceinline__ C denominator_of(const T *x, int64 i, Window window, int64 inner, C weight, C k) {
    C sum = 0;
    for (int64 d = window.first; d <= window.last; ++d) {
        C value = (C)x[i + d * inner];
        sum += value * value;
    }
    return k + weight * sum;
}

extern "C" __global__ void channel_window_sum(const T *x, T *y, SHAPE) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Window window = window_of(i, inner, channels, reach);
        C sum = 0;
        for (int64 d = window.first; d <= window.last; ++d) sum += (C)x[i + d * inner];
        y[i] = (T)sum;
    }
}

extern "C" __global__ void local_response_normalization(const T *x, T *y, SHAPE, C weight, C k, C exponent) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Window window = window_of(i, inner, channels, reach);
        C denominator = denominator_of(x, i, window, inner, weight, k);
        C power = pow(denominator, exponent);
        y[i] = (T)((C)x[i] * power);
    }
}

// scaled = dy * denominator^exponent; ratio = scaled * x / denominator, which response_gradient sums over windows.
extern "C" __global__ void response_gradient_parts(const T *x, const T *dy, C *scaled, C *ratio, SHAPE, C weight, C k,
                                                   C exponent) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Window window = window_of(i, inner, channels, reach);
        C denominator = denominator_of(x, i, window, inner, weight, k);
        C power = pow(denominator, exponent);
        C direct = (C)dy[i] * power;
        scaled[i] = direct;
        ratio[i] = direct * (C)x[i] / denominator;
    }
}

extern "C" __global__ void response_gradient(const T *x, const C *scaled, const C *ratio, T *dx, SHAPE, C factor) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        Window window = window_of(i, inner, channels, reach);
        C through = 0;
        for (int64 d = window.first; d <= window.last; ++d) through += ratio[i + d * inner];
        dx[i] = (T)(scaled[i] - factor * (C)x[i] * through);
    }
}
