// The part of CUDA that kernels need, on the host. The blocks of a grid run one after the other. The threads of a block
// take turns: a thread runs until it waits for other threads. The source that defines EMULATION has the functions.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after the other, so a static variable belongs to one block at a time.
#define __shared__ static

struct Index { unsigned int x, y, z; };
#pragma GCC visibility push(hidden)
extern Index threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();
#pragma GCC visibility pop

static inline unsigned int __float_as_uint(float v) { unsigned int w; std::memcpy(&w, &v, 4); return w; }
static inline float __uint_as_float(unsigned int w) { float v; std::memcpy(&v, &w, 4); return v; }
static inline double __longlong_as_double(long long w) { double v; std::memcpy(&v, &w, 8); return v; }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)(((std::uint64_t)a * b) >> 32); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }

namespace emulation {

// A launch. sizes: bytes of each argument that is passed. together: whether threads wait for each other. reversed:
// whether the last thread of a block runs first.
struct Launch {
    const unsigned *grid, *block;
    void **arguments;
    const int *sizes;
    int count, together, reversed;
};

// Run all threads. wanted: bytes of each argument of the kernel. Return 0, 100 for another number of arguments, 101 + k
// for another size of argument k, or 1 if threads wait for threads that have ended.
__attribute__((visibility("hidden"))) int run(const Launch &launch, void (*kernel)(void **), const int *wanted, int count);

template <auto KERNEL, typename Type> struct Entry;
template <auto KERNEL, typename... A> struct Entry<KERNEL, void (*)(A...)> {
    template <std::size_t... I> static void pass(void **arguments, std::index_sequence<I...>) {
        KERNEL(*static_cast<std::decay_t<A> *>(arguments[I])...);
    }
    static void call(void **arguments) { pass(arguments, std::index_sequence_for<A...>()); }
    static int launch(const Launch &launch) {
        const int wanted[] = {(int)sizeof(A)..., 0};
        return run(launch, call, wanted, (int)sizeof...(A));
    }
};

}  // namespace emulation

#ifdef EMULATION
#include <memory>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum State { READY, WAITING, DONE };
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
static int current;
static void (*kernel_of_block)(void **);
static void **arguments_of_block;

// Jump to the scheduler; return at the next turn of this thread.
__attribute__((noinline)) static void leave_as(State state) {
    Thread &self = *threads[current];
    self.state = state;
    if (_setjmp(self.place) == 0) _longjmp(scheduler, 1);
}

static void run_for_ever() {
    for (;;) {
        kernel_of_block(arguments_of_block);
        leave_as(DONE);
    }
}

__attribute__((noinline)) static void resume(Thread &thread) {
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

static int how_many(int count, State state) {
    int found = 0;
    for (int t = 0; t < count; ++t) found += threads[t]->state == state;
    return found;
}

// Return 0, or 1 if threads wait for threads that have ended.
static int run_block(int count, bool reversed) {
    while ((int)threads.size() < count) threads.emplace_back(new Thread);
    for (int t = 0; t < count; ++t) {
        threads[t]->state = READY;
        threads[t]->index = {t % blockDim.x, (t / blockDim.x) % blockDim.y, t / (blockDim.x * blockDim.y)};
    }
    for (;;) {
        for (int k = 0; k < count; ++k) {
            current = reversed ? count - 1 - k : k;
            resume(*threads[current]);
        }
        if (how_many(count, DONE) == count) return 0;
        if (how_many(count, WAITING) < count) {
            threads.clear();  // The threads are in the middle of a failed block.
            return 1;
        }
        for (int t = 0; t < count; ++t) threads[t]->state = READY;
    }
}

int run(const Launch &launch, void (*kernel)(void **), const int *wanted, int count) {
    if (launch.count != count) return 100;
    for (int k = 0; k < count; ++k) if (launch.sizes[k] != wanted[k]) return 101 + k;
    const unsigned *grid = launch.grid, *block = launch.block;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    kernel_of_block = kernel;
    arguments_of_block = launch.arguments;
    int threads_of_block = block[0] * block[1] * block[2];
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                if (launch.together) {
                    if (int status = run_block(threads_of_block, launch.reversed)) return status;
                    continue;
                }
                for (int k = 0; k < threads_of_block; ++k) {
                    int t = launch.reversed ? threads_of_block - 1 - k : k;
                    threadIdx = {t % block[0], (t / block[0]) % block[1], t / (block[0] * block[1])};
                    kernel(launch.arguments);
                }
            }
    return 0;
}

}  // namespace emulation

void __syncthreads() {
    emulation::leave_as(emulation::WAITING);
    threadIdx = emulation::threads[emulation::current]->index;
}
#endif
