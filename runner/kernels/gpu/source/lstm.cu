// One step of an LSTM over N rows of H units, before and after the product with the recurrent weights.
// T: storage type; A: type of arithmetic, in which products and the gradient of the cell are kept between steps.
// Rows of 4 H numbers have the columns of the gates i, f, g and o.

__device__ __forceinline__ A sigmoid(A x) {
    A decay = exp(x < A(0) ? x : -x);
    return (x < A(0) ? decay : A(1)) / (A(1) + decay);
}

extern "C" __global__ void forward(const A *product, const T *inputs, const T *before, T *h, T *c, T *gates, int64 count,
                                   int64 units) {
    for (int64 e = first_element(); e < count; e += stride_of_grid()) {
        int64 row = quotient(e, units), at = row * 3 * units + e;
        A i = sigmoid(product[at] + (A)inputs[at]);
        A f = sigmoid(product[at + units] + (A)inputs[at + units]);
        A g = tanh(product[at + 2 * units] + (A)inputs[at + 2 * units]);
        A o = sigmoid(product[at + 3 * units] + (A)inputs[at + 3 * units]);
        A cell = f * (A)before[e] + i * g;
        c[e] = T(cell);
        h[e] = T(o * tanh(cell));
        gates[at] = T(i);
        gates[at + units] = T(f);
        gates[at + 2 * units] = T(g);
        gates[at + 3 * units] = T(o);
    }
}

// later_h, later_c: gradients from the next step, not read in the last step (has_later is 0); later_c is replaced.
extern "C" __global__ void backward(const A *later_h, A *later_c, const T *dh, const T *dc, const T *before, const T *c,
                                    const T *gates, const T *dgates, T *dinputs, int64 count, int64 units,
                                    int has_later, int has_dgates) {
    for (int64 e = first_element(); e < count; e += stride_of_grid()) {
        int64 row = quotient(e, units), at = row * 3 * units + e;
        A i = gates[at], f = gates[at + units], g = gates[at + 2 * units], o = gates[at + 3 * units];
        A size = tanh((A)c[e]);
        A into_h = (A)dh[e] + (has_later ? later_h[e] : A(0));
        A into_c = (A)dc[e] + into_h * o * (A(1) - size * size) + (has_later ? later_c[e] : A(0));
        A of_i = into_c * g, of_f = into_c * (A)before[e], of_g = into_c * i, of_o = into_h * size;
        if (has_dgates) {
            of_i = of_i + (A)dgates[at];
            of_f = of_f + (A)dgates[at + units];
            of_g = of_g + (A)dgates[at + 2 * units];
            of_o = of_o + (A)dgates[at + 3 * units];
        }
        dinputs[at] = T(of_i * i * (A(1) - i));
        dinputs[at + units] = T(of_f * f * (A(1) - f));
        dinputs[at + 2 * units] = T(of_g * (A(1) - g * g));
        dinputs[at + 3 * units] = T(of_o * o * (A(1) - o));
        later_c[e] = into_c * f;
    }
}
