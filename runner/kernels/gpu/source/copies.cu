// Copies between strided blocks. T: any type of the size of the units that are copied.

// Copy a block of up to six axes. eN: extents; e0 follows from count. sN: strides in x. tN: strides in y.
extern "C" __global__ void copy_block(const T *x, T *y, int64 count, int64 e1, int64 e2, int64 e3, int64 e4, int64 e5,
                                      int64 s0, int64 s1, int64 s2, int64 s3, int64 s4, int64 s5,
                                      int64 t0, int64 t1, int64 t2, int64 t3, int64 t4, int64 t5) {
    const int64 extents[6] = {0, e1, e2, e3, e4, e5};
    const int64 from[6] = {s0, s1, s2, s3, s4, s5};
    const int64 to[6] = {t0, t1, t2, t3, t4, t5};
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        int64 rest = i, source = 0, target = 0;
#pragma unroll
        for (int axis = 5; axis > 0; --axis) {
            if (extents[axis] == 1) continue;
            int64 outer = quotient(rest, extents[axis]);
            int64 place = rest - outer * extents[axis];
            source += place * from[axis];
            target += place * to[axis];
            rest = outer;
        }
        y[target + rest * to[0]] = x[source + rest * from[0]];
    }
}

extern "C" __global__ void clear(T *y, int64 count) {
    T zero = T();
    for (int64 i = first_element(); i < count; i += stride_of_grid()) y[i] = zero;
}
