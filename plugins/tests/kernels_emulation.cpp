// The emulation of cuda_on_cpu.h itself: what a GPU would hang on or compute wrongly must not pass on the CPU.
//
// Each argument is a kernel; those with mistakes in them end the program with a message, which CTest looks for.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_compat.cuh"

namespace {

__global__ void barrier_in_a_branch()
{
    if (threadIdx.x < 32)
        __syncthreads();
}

__global__ void barrier_in_half_a_warp()
{
    if (threadIdx.x % 2 == 0)
        __syncthreads();
}

__global__ void shuffle_in_half_a_warp(int* out)
{
    if (threadIdx.x % 2 == 0)
        *out = __shfl_sync(~0u, *out, 0);
}

__global__ void shuffle_beside_a_ballot(int* out)
{
    if (threadIdx.x % 2 == 0)
        *out = __shfl_xor_sync(~0u, 1, 1);
    else
        *out = static_cast<int>(__ballot_sync(~0u, 1));
}

__global__ void copy_without_a_wait(float const* from)
{
    FASTOCR_DYNAMIC_SHARED(float, shared);
    fastocr::copy_async_16(shared + 4 * threadIdx.x, from + 4 * threadIdx.x);
}

// Reads its copies before the wait; an even thread's may be there, an odd one's are not.
__global__ void copy_read_early(float const* from, float* out)
{
    FASTOCR_DYNAMIC_SHARED(float, shared);
    fastocr::copy_async_16(shared + 4 * threadIdx.x, from + 4 * threadIdx.x);
    fastocr::copy_async_commit();
    out[threadIdx.x] = shared[4 * threadIdx.x];
    fastocr::copy_async_wait<0>();
    __syncthreads();
    out[blockDim.x + threadIdx.x] = shared[4 * threadIdx.x];
}

__global__ void sum_of_a_block(int const* from, int* out)
{
    __shared__ int warps[4];
    int sum = from[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(out, warps[0] + warps[1] + warps[2] + warps[3]);
}

__global__ void votes(unsigned* out)
{
    unsigned const odd = __ballot_sync(~0u, threadIdx.x % 2);
    bool const some = __any_sync(~0u, threadIdx.x == 40) != 0;
    bool const all = __all_sync(~0u, threadIdx.x != 40) != 0;
    float const before = __shfl_up_sync(~0u, static_cast<float>(threadIdx.x), 2);
    out[threadIdx.x] = odd == 0xAAAAAAAAu && some == (threadIdx.x >= 32) && all == (threadIdx.x < 32)
        && before == (threadIdx.x % 32 < 2 ? threadIdx.x : threadIdx.x - 2);
}

bool sound()
{
    int numbers[256];
    int expected = 0;
    for (int i = 0; i < 256; ++i)
        expected += numbers[i] = i * i;
    int sum = 0;
    int const* const from = numbers;
    int* const to = &sum;
    FASTOCR_LAUNCH(sum_of_a_block, 2, 128, 0, nullptr, from, to);

    unsigned agreed[64];
    unsigned* const agreement = agreed;
    FASTOCR_LAUNCH(votes, 1, 64, 0, nullptr, agreement);
    bool voted = true;
    for (unsigned each : agreed)
        voted = voted && each == 1;

    alignas(16) float source[128];
    float seen[64];
    for (int i = 0; i < 128; ++i)
        source[i] = static_cast<float>(i);
    float const* const copied = source;
    float* const result = seen;
    FASTOCR_LAUNCH(copy_read_early, 1, 32, sizeof source, nullptr, copied, result);
    bool arrived = true;
    for (int i = 0; i < 32; ++i) {
        bool const early = i % 2 == 0 ? seen[i] == 4.0f * i : std::isnan(seen[i]);
        arrived = arrived && early && seen[32 + i] == 4.0f * i;
    }
    return sum == expected && voted && arrived && cudaGetLastError() == cudaSuccess;
}

} // namespace

int main(int argc, char** argv)
{
    std::signal(SIGABRT, [](int) { std::_Exit(3); }); // CTest takes a signal for a failure, whatever was printed
    char const* const which = argc > 1 ? argv[1] : "";
    int value = 0;
    int* const out = &value;
    alignas(16) float source[128] = {};
    float const* const from = source;
    if (std::strcmp(which, "barrier_in_a_branch") == 0)
        FASTOCR_LAUNCH(barrier_in_a_branch, 1, 64, 0, nullptr);
    else if (std::strcmp(which, "barrier_in_half_a_warp") == 0)
        FASTOCR_LAUNCH(barrier_in_half_a_warp, 1, 64, 0, nullptr);
    else if (std::strcmp(which, "shuffle_in_half_a_warp") == 0)
        FASTOCR_LAUNCH(shuffle_in_half_a_warp, 1, 64, 0, nullptr, out);
    else if (std::strcmp(which, "shuffle_beside_a_ballot") == 0)
        FASTOCR_LAUNCH(shuffle_beside_a_ballot, 1, 64, 0, nullptr, out);
    else if (std::strcmp(which, "copy_without_a_wait") == 0)
        FASTOCR_LAUNCH(copy_without_a_wait, 1, 32, sizeof source, nullptr, from);
    else if (std::strcmp(which, "sound") == 0)
        return sound() ? 0 : 1;
    else
        std::fprintf(stderr, "unknown kernel %s\n", which);
    return 2; // a kernel with a mistake must not come so far
}
