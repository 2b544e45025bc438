// Convert values of type T to type R.

extern "C" __global__ void convert(const T *x, R *y, int64 count) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = R(x[i]);
}
