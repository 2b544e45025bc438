// Random draws from the words of Philox4x32-10 (Salmon et al. 2011), the same words as in runner/kernels/philox.py.

struct Words {
    uint32 of[4];
};

// Return the words at positions 4 * group to 4 * group + 3 of an index in a step.
__device__ __forceinline__ Words draw(uint32 key0, uint32 key1, uint64 group, uint64 index, uint32 step) {
    uint32 c0 = (uint32)group, c1 = (uint32)index, c2 = (uint32)(index >> 32), c3 = step;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint32 low0 = c0 * 0xD2511F53u, high0 = __umulhi(c0, 0xD2511F53u);
        const uint32 low1 = c2 * 0xCD9E8D57u, high1 = __umulhi(c2, 0xCD9E8D57u);
        c0 = high1 ^ c1 ^ key0;
        c1 = low1;
        c2 = high0 ^ c3 ^ key1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Return a uniform number in [0, 1) from the word at a position of index 0 in step 0.
__device__ __forceinline__ double uniform_at(uint32 key0, uint32 key1, int64 position) {
    const Words words = draw(key0, key1, (uint64)position / 4, 0, 0);
    const int which = (int)(position % 4);
    const uint32 word = which == 0 ? words.of[0] : which == 1 ? words.of[1] : which == 2 ? words.of[2] : words.of[3];
    return word * 0x1p-32;
}

// The elements of a part of a whole tensor: runs of `columns` elements, which begin at `first` and are `stride` apart.
extern "C" __global__ void uniform(T *y, int64 count, int64 key0, int64 key1, double low, double width, int64 columns,
                                   int64 stride, int64 first) {
    for (int64 i = first_element(); i < count; i += stride_of_grid()) {
        const int64 position = i / columns * stride + first + i % columns;
        y[i] = (T)(C)(low + width * uniform_at((uint32)key0, (uint32)key1, position));
    }
}

// The Box-Muller transform: the first half of the uniform draws gives the radii, the second half the angles.
extern "C" __global__ void normal(T *y, int64 count, int64 key0, int64 key1, double mean, double deviation) {
    const int64 pairs = (count + 1) / 2;
    for (int64 i = first_element(); i < pairs; i += stride_of_grid()) {
        const double radius = sqrt(-2.0 * log1p(-uniform_at((uint32)key0, (uint32)key1, i)));
        const double angle = 0x1.921fb54442d18p+2 * uniform_at((uint32)key0, (uint32)key1, pairs + i);
        y[i] = (T)(C)(mean + deviation * (radius * cos(angle)));
        if (pairs + i < count) y[pairs + i] = (T)(C)(mean + deviation * (radius * sin(angle)));
    }
}

// y (rows, columns): uniform numbers from the words of each row's index. A thread computes a group of four elements.
extern "C" __global__ void uniform_rows(const int64 *step, const int64 *index, T *y, int64 rows, int64 columns,
                                        int64 key0, int64 key1) {
    const int64 groups = (columns + 3) / 4;
    for (int64 k = first_element(); k < rows * groups; k += stride_of_grid()) {
        const int64 row = k / groups, group = k % groups;
        const Words words = draw((uint32)key0, (uint32)key1, (uint64)group, (uint64)index[row], (uint32)*step);
#pragma unroll
        for (int w = 0; w < 4; ++w)
            if (4 * group + w < columns) y[row * columns + 4 * group + w] = (T)(C)(words.of[w] * 0x1p-32);
    }
}

// mask (rows, columns): 0 if the 32-bit word of an element is below the threshold, else `kept`. A row uses the words
// of its index from position `first` on. A thread computes the elements of one group of four words.
extern "C" __global__ void dropout_mask(const int64 *step, const int64 *index, T *mask, int64 rows, int64 columns,
                                        int64 key0, int64 key1, int64 first, int64 threshold, double kept) {
    const int64 group0 = first / 4, groups = columns ? (first + columns + 3) / 4 - group0 : 0;
    for (int64 k = first_element(); k < rows * groups; k += stride_of_grid()) {
        const int64 row = k / groups, group = group0 + k % groups;
        const Words words = draw((uint32)key0, (uint32)key1, (uint64)group, (uint64)index[row], (uint32)*step);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const int64 column = 4 * group + w - first;
            if (column >= 0 && column < columns)
                mask[row * columns + column] = (T)(C)((int64)words.of[w] < threshold ? 0.0 : kept);
        }
    }
}
