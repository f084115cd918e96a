// A block's threads as fibers of one host thread, and launches of a grid of them: the machine under cuda_on_cpu.h.
#ifndef FASTOCR_CPU_FIBERS_H
#define FASTOCR_CPU_FIBERS_H

#include <cuda_runtime_api.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_ON_CPU_ASAN 1
#include <sanitizer/common_interface_defs.h>
#else
#define CUDA_ON_CPU_ASAN 0
#endif
// swapcontext asks the kernel for the signal mask at every switch; setjmp does not, but it may not leave a stack where
// the sanitizer or the fortified C library watches it.
#if !CUDA_ON_CPU_ASAN && (!defined(__USE_FORTIFY_LEVEL) || __USE_FORTIFY_LEVEL == 0)
#define CUDA_ON_CPU_SETJMP 1
#else
#define CUDA_ON_CPU_SETJMP 0
#endif

namespace cuda_on_cpu {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024; // of a block, as on every GPU so far
constexpr size_t kStackBytes = 64 * 1024; // the address sanitizer clears its notes on all of it at every switch
constexpr unsigned char kCanary = 0xA5;
constexpr size_t kCanaryBytes = 64; // at the end of a stack
constexpr size_t kSlotBytes = 64; // what a lane can show the others of its warp in one exchange
constexpr int kMultiprocessors = 8;

// Where a thread waits. Two lanes of a warp that wait in different calls would never meet on a GPU.
enum class Wait : uint8_t { kNone, kBlock, kSyncWarp, kShuffle, kBallot, kGather, kDone };

inline char const* name(Wait wait) {
    static char const* const names[] = {"running", "__syncthreads", "__syncwarp", "a shuffle", "a ballot",
        "a warp-wide gather", "its end"};
    return names[static_cast<int>(wait)];
}

struct PendingCopy {
    void* destination;
    void const* source;
    size_t bytes;
    unsigned group;
};

struct Fiber {
    ucontext_t context;
    jmp_buf jump;
    std::unique_ptr<char[]> stack;
    bool started = false;
    Wait wait = Wait::kNone;
    dim3 thread{0, 0, 0};
    unsigned linear = 0;
    unsigned parity = 0;                // which of the two slots the next exchange uses
    unsigned group = 0;                 // number of the open group of copies
    std::vector<PendingCopy> pending;
    void* fake_stack = nullptr;         // ASan's own
};

struct Machine {
    std::mutex mutex;
    std::vector<std::unique_ptr<Fiber>> fibers;
    Fiber* current = nullptr;
    dim3 block{0, 0, 0};
    dim3 block_dim{1, 1, 1};
    dim3 grid_dim{1, 1, 1};
    unsigned char* shared = nullptr;
    std::function<void()> body;
    cudaError_t error = cudaSuccess; // of the last launch
    ucontext_t main_context;
    jmp_buf main_jump;
    void const* main_stack = nullptr;
    size_t main_stack_bytes = 0;
    void* main_fake_stack = nullptr;
    alignas(64) unsigned char slots[2][kMaxThreads][kSlotBytes];
};

inline Machine& machine() {
    static Machine instance;
    return instance;
}

// The running thread; only inside a kernel.
inline Fiber& self() { return *machine().current; }

[[noreturn]] inline void fail(char const* what) {
    Machine& m = machine();
    std::fprintf(stderr, "cuda_on_cpu: block (%u, %u, %u): %s\n", m.block.x, m.block.y, m.block.z, what);
    std::abort();
}

// ---- switching -----------------------------------------------------------------------------------------------------

inline void to_main() {
    Machine& m = machine();
    Fiber& fiber = *m.current;
#if CUDA_ON_CPU_SETJMP
    if (_setjmp(fiber.jump) == 0) _longjmp(m.main_jump, 1);
#else
#if CUDA_ON_CPU_ASAN
    __sanitizer_start_switch_fiber(&fiber.fake_stack, m.main_stack, m.main_stack_bytes);
#endif
    swapcontext(&fiber.context, &m.main_context);
#if CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &m.main_stack, &m.main_stack_bytes);
#endif
#endif
}

// A fiber never returns: after a thread's end it waits for the next block's thread.
inline void fiber_main() {
    Machine& m = machine();
#if CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &m.main_stack, &m.main_stack_bytes);
#endif
    for (;;) {
        m.body();
        m.current->wait = Wait::kDone;
        to_main();
    }
}

inline void to_fiber(Fiber& fiber) {
    Machine& m = machine();
    m.current = &fiber;
    fiber.wait = Wait::kNone;
    if (!fiber.started) {
        fiber.started = true;
        fiber.stack.reset(new char[kStackBytes]);
        std::memset(fiber.stack.get(), kCanary, kCanaryBytes);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
#if CUDA_ON_CPU_SETJMP
        if (_setjmp(m.main_jump) == 0) setcontext(&fiber.context);
        return;
#endif
    }
#if CUDA_ON_CPU_SETJMP
    if (_setjmp(m.main_jump) == 0) _longjmp(fiber.jump, 1);
#else
#if CUDA_ON_CPU_ASAN
    __sanitizer_start_switch_fiber(&m.main_fake_stack, fiber.stack.get(), kStackBytes);
#endif
    swapcontext(&m.main_context, &fiber.context);
#if CUDA_ON_CPU_ASAN
    __sanitizer_finish_switch_fiber(m.main_fake_stack, nullptr, nullptr);
#endif
#endif
}

inline void wait_at(Wait where) {
    self().wait = where;
    to_main();
}

// ---- a launch ------------------------------------------------------------------------------------------------------

// Runs one warp until all of its threads stand at a block barrier or have ended.
inline void run_warp(unsigned first) {
    Machine& m = machine();
    for (;;) {
        for (unsigned lane = 0; lane < kWarp; ++lane) to_fiber(*m.fibers[first + lane]);
        Wait const where = m.fibers[first]->wait;
        for (unsigned lane = 1; lane < kWarp; ++lane) {
            Wait const other = m.fibers[first + lane]->wait;
            if (other == where) continue;
            bool const apart = (where == Wait::kBlock || where == Wait::kDone)
                && (other == Wait::kBlock || other == Wait::kDone);
            char text[160];
            std::snprintf(text, sizeof text, "divergent %s: thread %u waits in %s while thread %u waits in %s",
                apart ? "block barrier" : "warp barrier", first, name(where), first + lane, name(other));
            fail(text);
        }
        if (where == Wait::kBlock || where == Wait::kDone) return;
    }
}

inline void run_block(unsigned threads) {
    Machine& m = machine();
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = *m.fibers[i];
        fiber.linear = i;
        fiber.thread = dim3(i % m.block_dim.x, i / m.block_dim.x % m.block_dim.y, i / m.block_dim.x / m.block_dim.y);
        fiber.parity = fiber.group = 0;
        fiber.pending.clear();
        fiber.wait = Wait::kNone;
    }
    for (;;) {
        unsigned waiting = 0;
        unsigned done = 0;
        for (unsigned first = 0; first < threads; first += kWarp) {
            if (m.fibers[first]->wait != Wait::kDone) run_warp(first);
            (m.fibers[first]->wait == Wait::kDone ? done : waiting) += kWarp;
        }
        if (waiting == 0) break;
        // A GPU lets ended threads miss a barrier; code that relies on it is more often a mistake than a wish.
        if (done != 0) fail("divergent block barrier: some warps wait in __syncthreads, others have ended");
    }
    for (unsigned i = 0; i < threads; ++i) {
        if (!m.fibers[i]->pending.empty()) fail("a block ended with an asynchronous copy that nothing waited for");
        char const* const stack = m.fibers[i]->stack.get();
        if (std::any_of(stack, stack + kCanaryBytes, [](char c) { return static_cast<unsigned char>(c) != kCanary; }))
            fail("a thread used more than its stack of 64 KiB");
    }
}

// Runs `body`, a kernel with its arguments, once for each thread of the grid.
inline void launch(dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> body) {
    Machine& m = machine();
    std::lock_guard<std::mutex> const lock(m.mutex);
    size_t const threads = size_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > kMaxThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535
        || grid.z > 65535) {
        m.error = cudaErrorInvalidConfiguration;
        return;
    }
    if (threads % kWarp != 0) fail("the emulation runs whole warps: a block must have a multiple of 32 threads");
    while (m.fibers.size() < threads) m.fibers.push_back(std::make_unique<Fiber>());
    m.grid_dim = grid;
    m.block_dim = block;
    m.body = std::move(body);
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                m.block = dim3(x, y, z);
                // Allocated to the byte, so that the address sanitizer sees one that is passed; NaN until written.
                m.shared = static_cast<unsigned char*>(::operator new(shared_bytes + 1, std::align_val_t(128)));
                std::memset(m.shared, 0xFF, shared_bytes + 1);
                run_block(static_cast<unsigned>(threads));
                ::operator delete(m.shared, std::align_val_t(128));
            }
    m.body = nullptr;
}

} // namespace cuda_on_cpu

#endif
