// Tiles in shared memory and how rows get there.
#ifndef FASTOCR_KERNELS_DENSE_PREFILL_TILE_CUH
#define FASTOCR_KERNELS_DENSE_PREFILL_TILE_CUH

#include "dense_prefill_problem.cuh"
#include "mma.cuh"

namespace fastocr {
namespace dense_prefill {

// `kRows` rows of up to kHeadDim elements. 16 bytes of padding make a row's length an odd multiple of 16, so that the
// eight rows that a matrix load or a 16-byte read touches at once lie in different banks.
template <class T, int kRows, int kHeadDim>
struct SharedTile {
    static constexpr int kChunk = 16 / sizeof(T); // elements of one copy
    static constexpr int kStride = kHeadDim + kChunk;
    static constexpr int kBytes = kRows * kStride * static_cast<int>(sizeof(T));
    static_assert(kHeadDim * sizeof(T) % 32 == 0, "rows would share banks");

    T* data;

    __device__ T* at(int row, int column) const { return data + row * kStride + column; }

    // Starts the copies of rows 0 to kRows - 1, shared by kThreads threads of which this is number `thread`;
    // `source(row)` is a row's first element, or null for a row of zeros. Columns from head_dim on are zeros. The
    // caller waits for the copies and meets at a barrier.
    template <int kThreads, class Source>
    __device__ void start_copy(int thread, Source source, int head_dim) const
    {
        constexpr int kChunks = kHeadDim / kChunk;
        static_assert(kRows * kChunks % kThreads == 0, "the threads share the copies evenly");
#pragma unroll
        for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
            int const chunk = i * kThreads + thread;
            int const row = chunk / kChunks;
            int const column = chunk % kChunks * kChunk;
            T const* from = source(row);
            if (from != nullptr && column < head_dim)
                copy_async_16(at(row, column), from + column);
            else
                *reinterpret_cast<uint4*>(at(row, column)) = uint4{0, 0, 0, 0};
        }
        copy_async_commit();
    }

    // Rows first_key on of a bank, and zeros from row `end` on: what lies there belongs to no row of the block and may
    // be anything, but 0 times NaN would spoil a sum.
    template <int kThreads>
    __device__ void start_copy_of_keys(int thread, T const* bank, int first_key, int end, int head_dim) const
    {
        T const* first = bank + static_cast<int64_t>(first_key) * head_dim;
        int const left = end - first_key;
        start_copy<kThreads>(
            thread, [=](int row) { return row < left ? first + row * head_dim : static_cast<T const*>(nullptr); },
            head_dim);
    }
};

} // namespace dense_prefill
} // namespace fastocr

#endif
