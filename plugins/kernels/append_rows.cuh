// New rows into both banks, and what the counts on the device say of the call's status.
#ifndef FASTOCR_KERNELS_APPEND_ROWS_CUH
#define FASTOCR_KERNELS_APPEND_ROWS_CUH

#include "attention.h"
#include "cuda_compat.cuh"

namespace fastocr {

// Rows are moved as they are, whatever their type: in pieces of 16 bytes, neighbouring threads taking neighbouring
// pieces, so that reads and writes are whole cache lines. A new row is read once and written to both banks.
struct AppendProblem {
    uint4 const* key; // [B,KV,n,pieces]
    uint4 const* value;
    uint4* visual_key; // [B,KV,VCAP,pieces]
    uint4* visual_value;
    uint4* text_key; // [B,KV,TCAP,pieces]
    uint4* text_value;
    int64_t const* visual_length; // [B]
    int64_t const* text_length;
    int64_t const* visual_valid; // [B,n]
    int64_t const* text_valid;
    int64_t const* status_in; // [1]
    int64_t* status_out; // [1]
    int batch;
    int num_key_value_heads;
    int rows;
    int pieces;
    int visual_capacity;
    int text_capacity;
};

constexpr int kAppendThreads = 256;

// Whether new row `row` has a place in a bank of `length` rows. Written so that no sum can overflow.
__device__ inline bool fits(int64_t length, int row, int capacity)
{
    return length >= -row && length < static_cast<int64_t>(capacity) - row;
}

// status_out = status_in and what is found in the lengths and valid counts. One block, so that one thread writes it.
__device__ inline void write_status(AppendProblem const& problem)
{
    __shared__ unsigned found;
    if (threadIdx.x == 0)
        found = 0;
    __syncthreads();
    unsigned mine = 0;
    // Only the first and the last new row need a look: lengths rise by one a row.
    for (int b = threadIdx.x; b < problem.batch; b += kAppendThreads)
        for (int row : {0, problem.rows - 1}) {
            if (!fits(problem.visual_length[b], row, problem.visual_capacity))
                mine |= FASTOCR_STATUS_VISUAL_BANK_FULL;
            if (!fits(problem.text_length[b], row, problem.text_capacity))
                mine |= FASTOCR_STATUS_TEXT_BANK_FULL;
        }
    int64_t const counts = static_cast<int64_t>(problem.batch) * problem.rows;
    for (int64_t i = threadIdx.x; i < counts; i += kAppendThreads) {
        int64_t const visual = problem.visual_valid[i];
        int64_t const text = problem.text_valid[i];
        if (visual < 0 || visual > problem.visual_capacity || text < 0 || text > problem.text_capacity)
            mine |= FASTOCR_STATUS_VALID_OUT_OF_RANGE;
    }
    if (mine != 0)
        atomicOr(&found, mine);
    __syncthreads();
    if (threadIdx.x == 0)
        *problem.status_out = *problem.status_in | static_cast<int64_t>(found);
}

// Grid: enough threads for the pieces of the new rows.
__global__ void __launch_bounds__(kAppendThreads) append_rows(AppendProblem const problem)
{
    int64_t const i = static_cast<int64_t>(blockIdx.x) * kAppendThreads + threadIdx.x;
    int64_t const source_row = i / problem.pieces;
    int const piece = static_cast<int>(i % problem.pieces);
    int64_t const page_and_head = source_row / problem.rows;
    int const row = static_cast<int>(source_row % problem.rows);
    int64_t const page = page_and_head / problem.num_key_value_heads;
    if (page < problem.batch) {
        uint4 const key = problem.key[i];
        uint4 const value = problem.value[i];
        int64_t const visual_length = problem.visual_length[page];
        if (fits(visual_length, row, problem.visual_capacity)) {
            int64_t const to
                = (page_and_head * problem.visual_capacity + visual_length + row) * problem.pieces + piece;
            problem.visual_key[to] = key;
            problem.visual_value[to] = value;
        }
        int64_t const text_length = problem.text_length[page];
        if (fits(text_length, row, problem.text_capacity)) {
            int64_t const to = (page_and_head * problem.text_capacity + text_length + row) * problem.pieces + piece;
            problem.text_key[to] = key;
            problem.text_value[to] = value;
        }
    }
    if (blockIdx.x == 0)
        write_status(problem);
}

inline cudaError_t launch_append_rows(AppendProblem const& problem, cudaStream_t stream)
{
    int64_t const pieces
        = static_cast<int64_t>(problem.batch) * problem.num_key_value_heads * problem.rows * problem.pieces;
    unsigned const blocks = static_cast<unsigned>((pieces + kAppendThreads - 1) / kAppendThreads);
    FASTOCR_LAUNCH(append_rows, blocks, kAppendThreads, 0, stream, problem);
    return cudaGetLastError();
}

} // namespace fastocr
#endif
