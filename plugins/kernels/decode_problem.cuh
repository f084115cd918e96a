// What the decode kernels are given, and the sizes they are cut into.
#ifndef FASTOCR_KERNELS_DECODE_PROBLEM_CUH
#define FASTOCR_KERNELS_DECODE_PROBLEM_CUH

#include <stdint.h>

namespace fastocr {
namespace decode {

constexpr int kThreads = 128;
constexpr int kHeadTile = 4; // query heads that a thread works for at once
constexpr int kHeadsPerBlock = 16; // of one KV head; larger groups take more blocks, which read the rows again
constexpr int kFewestRows = 32; // of a split
constexpr int kMostSplits = 128;

// Rows of a bank that a block holds at once: 16 KiB of keys at head_dim 128 in 16 bits, so that five blocks share a
// multiprocessor of 228 KiB and two one of 100 KiB.
template <class T>
constexpr int kTileRows = 128 / static_cast<int>(sizeof(T));

} // namespace decode

template <class T>
struct DecodeProblem {
    T const* query; // [B,H,n,D]
    T const* visual_key; // [B,KV,VCAP,D]
    T const* visual_value;
    T const* text_key; // [B,KV,TCAP,D]
    T const* text_value;
    int64_t const* visual_valid; // [B,n]
    int64_t const* text_valid;
    int64_t const* fixation; // [B,KV,k], and attend_all [1]: null for an op that always reads the whole page
    int64_t const* attend_all;
    int64_t* status; // [1]
    T* output; // [B,H,n,D], of which row `row` is written: by decode_attention where num_splits is 1
    float* parts; // [B,H,splits,D]: the output of each split, where there is more than one
    float* part_lse; // [B,H,splits]: log2 of the sum of powers of each split
    float* scores; // [B,H,scores_stride], null where no one asks: of visual rows, in units of log2
    int64_t scores_stride;
    int num_key_value_heads;
    int group; // H / KV
    int rows; // n
    int row; // the query row
    int head_dim;
    int visual_capacity;
    int text_capacity;
    int fixation_size;
    int num_splits;
    float scale; // times log2(e)
};

} // namespace fastocr
#endif
