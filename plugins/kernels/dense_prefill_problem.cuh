// What a prefill kernel is given, and which query rows and keys one of its blocks is about.
//
// A block works for one KV head of one page. The query rows of its H / KV query heads ("the group") that share K and V
// are put in one list, row by row and within a row head by head, and the list is cut into tiles: so that a tile of K
// and V is read from memory once for all of them, and a tile's rows are neighbours, which see nearly the same keys.
#ifndef FASTOCR_KERNELS_DENSE_PREFILL_PROBLEM_CUH
#define FASTOCR_KERNELS_DENSE_PREFILL_PROBLEM_CUH

#include <stdint.h>

#include "cuda_compat.cuh"

namespace fastocr {
namespace dense_prefill {

// The banks in the order in which a row's keys are read.
enum { kVisual = 0, kText = 1, kBanks = 2 };

// The entry of a bank, without the indexed access that would put the pair in local memory.
template <class V>
__device__ __forceinline__ V of_bank(V const (&pair)[kBanks], int bank)
{
    return bank == kVisual ? pair[kVisual] : pair[kText];
}

template <class T>
struct Problem {
    T const* query; // [B,H,n,D]
    T const* key[kBanks]; // [B,KV,capacity,D]
    T const* value[kBanks];
    int64_t const* valid[kBanks]; // [B,n]
    T* output; // [B,H,n,D]
    int capacity[kBanks];
    int num_key_value_heads;
    int group; // H / KV
    int rows; // n
    int head_dim;
    int tiles; // of query rows, for one KV head of one page
    float scale; // of scores in units of log2: the exponentials are powers of two
};

// The tile of a block: entries `first` to `first + kQueries - 1` of the list; those past its end are unused.
template <class T, int kQueries>
struct QueryTile {
    Problem<T> const& problem;
    int page;
    int kv_head;
    int first;

    __device__ explicit QueryTile(Problem<T> const& of) : problem(of)
    {
        int const page_and_head = blockIdx.x / of.tiles;
        page = page_and_head / of.num_key_value_heads;
        kv_head = page_and_head % of.num_key_value_heads;
        // Later rows of a chunk see more keys, so their blocks start first and the short ones fill the gaps at the end.
        first = (of.tiles - 1 - static_cast<int>(blockIdx.x) % of.tiles) * kQueries;
    }

    __device__ bool holds(int entry) const { return first + entry < problem.rows * problem.group; }
    __device__ int row(int entry) const { return (first + entry) / problem.group; }

    // Of an entry's first element in query and output.
    __device__ int64_t offset(int entry) const
    {
        int64_t const head
            = (static_cast<int64_t>(page) * problem.num_key_value_heads + kv_head) * problem.group
            + (first + entry) % problem.group;
        return (head * problem.rows + row(entry)) * problem.head_dim;
    }

    // Of row 0 of the KV head's part of a bank.
    __device__ int64_t bank_offset(int bank) const
    {
        return (static_cast<int64_t>(page) * problem.num_key_value_heads + kv_head) * of_bank(problem.capacity, bank)
            * problem.head_dim;
    }

    // How many rows of a bank query row `row` sees. A count out of range is cut here as in the reference; the append
    // kernel reports it.
    __device__ int valid(int bank, int row) const
    {
        int64_t const count = of_bank(problem.valid, bank)[static_cast<int64_t>(page) * problem.rows + row];
        int64_t const capacity = of_bank(problem.capacity, bank);
        return static_cast<int>(count < 0 ? 0 : count > capacity ? capacity : count);
    }

    __device__ int valid_of_entry(int bank, int entry) const { return holds(entry) ? valid(bank, row(entry)) : 0; }
};

// The largest valid counts of a tile's rows, in every lane. Each warp finds them for itself: the counts are few and
// cached, and a barrier would cost more.
struct Reach {
    int largest[kBanks];

    template <class Tile>
    __device__ Reach(Tile const& tile, int entries)
    {
        int const last = tile.holds(entries - 1) ? tile.row(entries - 1) : tile.problem.rows - 1;
#pragma unroll
        for (int bank = 0; bank < kBanks; ++bank) {
            int most = 0;
            for (int row = tile.row(0) + static_cast<int>(threadIdx.x) % 32; row <= last; row += 32) {
                int const count = tile.valid(bank, row);
                most = count > most ? count : most;
            }
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                int const other = __shfl_xor_sync(0xffffffffu, most, distance);
                most = other > most ? other : most;
            }
            largest[bank] = most;
        }
    }
};

// The key tiles of a block, those of the visual bank and then those of the text bank: tiles that no row of the block
// sees are not among them.
template <int kKeys>
struct KeyTiles {
    int of_visual;
    int count;

    __device__ explicit KeyTiles(Reach const& reach)
        : of_visual((reach.largest[kVisual] + kKeys - 1) / kKeys)
        , count(of_visual + (reach.largest[kText] + kKeys - 1) / kKeys)
    {
    }

    __device__ int bank(int tile) const { return tile < of_visual ? kVisual : kText; }
    __device__ int first_key(int tile) const { return (tile < of_visual ? tile : tile - of_visual) * kKeys; }
};

} // namespace dense_prefill
} // namespace fastocr

#endif
