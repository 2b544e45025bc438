// The part of CUDA that kernels need, on the host. The blocks of a grid run one after the other. The threads of a block
// take turns: a thread runs until it waits for other threads. Threads that wait at different barriers are an error.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <math.h>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
// Blocks run one after the other, so a static variable belongs to one block at a time.
#define __shared__ static

struct Index { unsigned int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned int __float_as_uint(float v) { unsigned int w; std::memcpy(&w, &v, 4); return w; }
static inline float __uint_as_float(unsigned int w) { float v; std::memcpy(&v, &w, 4); return v; }
static inline double __longlong_as_double(long long w) { double v; std::memcpy(&v, &w, 8); return v; }
static inline long long __double_as_longlong(double v) { long long w; std::memcpy(&w, &v, 8); return w; }
static inline float __int_as_float(int w) { float v; std::memcpy(&v, &w, 4); return v; }
static inline int __float_as_int(float v) { int w; std::memcpy(&w, &v, 4); return w; }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)(((std::uint64_t)a * b) >> 32); }
static inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
static inline float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
static inline float __fsub_rn(float a, float b) { volatile float c = a - b; return c; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline double __dmul_rn(double a, double b) { volatile double c = a * b; return c; }
static inline double __dadd_rn(double a, double b) { volatile double c = a + b; return c; }
static inline double __dsub_rn(double a, double b) { volatile double c = a - b; return c; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return std::sqrt(a); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
static inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
static inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
using std::isfinite; using std::isinf; using std::isnan;

namespace emulation {

enum State { READY, AT_BLOCK, AT_WARP, DONE };
constexpr std::size_t STACK = 64 << 10;

// A thread has a separate stack; jumps leave and resume the thread. It starts once and then runs block after block.
struct Thread {
    State state = READY;
    Index index;
    bool started = false;
    jmp_buf place;
    ucontext_t start;
    std::unique_ptr<char[]> stack{new char[STACK]};
};
static std::vector<std::unique_ptr<Thread>> threads;
static jmp_buf scheduler;
static int current, count_of_block;
static void (*body_of_block)(void *);
static void *body_data;
static unsigned long long exchanged[1024];

// Jump to the scheduler; return at the next turn of this thread.
__attribute__((noinline)) inline void leave_as(State state) {
    Thread &self = *threads[current];
    self.state = state;
    if (_setjmp(self.place) == 0) _longjmp(scheduler, 1);
}

inline void wait_as(State state) {
    leave_as(state);
    threadIdx = threads[current]->index;
}

inline void run_for_ever() {
    for (;;) {
        body_of_block(body_data);
        leave_as(DONE);
    }
}

__attribute__((noinline)) inline void resume(Thread &thread) {
    threadIdx = thread.index;
    if (_setjmp(scheduler) != 0) return;
    if (thread.started) _longjmp(thread.place, 1);
    thread.started = true;
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = STACK;
    makecontext(&thread.start, run_for_ever, 0);
    setcontext(&thread.start);
}

// Let threads continue if all unfinished ones wait at the same barrier. Return whether a thread was waiting.
inline bool release(int first, int last, State waiting) {
    bool any = false;
    for (int t = first; t < last; ++t) {
        if (threads[t]->state != DONE && threads[t]->state != waiting) return false;
        any = any || threads[t]->state == waiting;
    }
    for (int t = first; t < last; ++t)
        if (threads[t]->state == waiting) threads[t]->state = READY;
    return any;
}

inline bool any_is(State state) {
    for (int t = 0; t < count_of_block; ++t)
        if (threads[t]->state == state) return true;
    return false;
}

// Return whether threads continue. All threads of a block, and all unfinished threads of a warp, must have arrived.
inline bool release_some(int count) {
    bool released = false;
    for (int w = 0; w < count; w += 32) released = release(w, w + 32 < count ? w + 32 : count, AT_WARP) || released;
    return released || (!any_is(DONE) && release(0, count, AT_BLOCK));
}

// Return 0, or 1 if threads wait at different barriers or for threads that have ended.
template <typename Body>
int run_block(int count, bool reversed, Body body) {
    body_of_block = [](void *data) { (*static_cast<Body *>(data))(); };
    body_data = &body;
    count_of_block = count;
    while ((int)threads.size() < count) threads.emplace_back(new Thread);
    for (int t = 0; t < count; ++t) {
        threads[t]->state = READY;
        threads[t]->index = {t % blockDim.x, (t / blockDim.x) % blockDim.y, t / (blockDim.x * blockDim.y)};
    }
    for (;;) {
        for (int k = 0; k < count; ++k) {
            current = reversed ? count - 1 - k : k;
            if (threads[current]->state == READY) resume(*threads[current]);
        }
        if (!any_is(AT_BLOCK) && !any_is(AT_WARP)) return 0;
        if (release_some(count)) continue;
        threads.clear();  // The threads are in the middle of a failed block.
        return 1;
    }
}

template <typename T>
T exchange(T value, int lane) {
    static_assert(sizeof(T) <= 8, "up to eight bytes are exchanged");
    int self = current, warp = self & ~31;
    std::memcpy(&exchanged[self], &value, sizeof(T));
    wait_as(AT_WARP);
    T found = value;
    if (lane >= 0 && lane < 32 && warp + lane < count_of_block) std::memcpy(&found, &exchanged[warp + lane], sizeof(T));
    wait_as(AT_WARP);
    return found;
}

template <typename... A, std::size_t... I>
int launch(void (*kernel)(A...), const unsigned *grid, const unsigned *block, void **arguments, const int *sizes,
           int count, int together, int reversed, std::index_sequence<I...>) {
    if (count != (int)sizeof...(A)) return 100;
    const int wanted[] = {(int)sizeof(A)..., 0};
    for (int k = 0; k < count; ++k) if (sizes[k] != wanted[k]) return 101 + k;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    int threads_of_block = block[0] * block[1] * block[2];
    auto body = [&] { kernel(*static_cast<std::decay_t<A> *>(arguments[I])...); };
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                if (together) {
                    if (int status = run_block(threads_of_block, reversed, body)) return status;
                    continue;
                }
                for (int k = 0; k < threads_of_block; ++k) {
                    int t = reversed ? threads_of_block - 1 - k : k;
                    threadIdx = {t % block[0], (t / block[0]) % block[1], t / (block[0] * block[1])};
                    body();
                }
            }
    return 0;
}

template <typename... A>
int launch(void (*kernel)(A...), const unsigned *grid, const unsigned *block, void **arguments, const int *sizes,
           int count, int together, int reversed) {
    return launch(kernel, grid, block, arguments, sizes, count, together, reversed, std::index_sequence_for<A...>());
}

}  // namespace emulation

inline void __syncthreads() { emulation::wait_as(emulation::AT_BLOCK); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulation::wait_as(emulation::AT_WARP); }
inline void __threadfence() {}
template <typename T> T __shfl_sync(unsigned, T v, int lane) { return emulation::exchange(v, lane & 31); }
template <typename T> T __shfl_xor_sync(unsigned, T v, int mask) { return emulation::exchange(v, (emulation::current & 31) ^ mask); }
template <typename T> T __shfl_down_sync(unsigned, T v, int delta) { return emulation::exchange(v, (emulation::current & 31) + delta); }
template <typename T> T __shfl_up_sync(unsigned, T v, int delta) { return emulation::exchange(v, (emulation::current & 31) - delta); }
