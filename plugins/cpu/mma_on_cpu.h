// The matrix instructions of kernels/mma.cuh between emulated lanes: each lane shows the warp what it holds, and picks
// up what the PTX ISA's fragment layout gives it. No lane works for another, so a kernel that hands the wrong fragment
// to the wrong lane is wrong here as well.
#ifndef FASTOCR_CPU_MMA_ON_CPU_H
#define FASTOCR_CPU_MMA_ON_CPU_H

#include <cstdint>
#include <cstring>

#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

// A row of an 8x8 matrix in shared memory.
struct MatrixRow {
    uint16_t elements[8];
};

// Shows the row at `address`, as it is now, and returns what the lanes of the warp show.
inline MatrixRow const* show_matrix_row(void const* address) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) fail("a matrix row that is not aligned to 16 bytes");
    MatrixRow row;
    std::memcpy(&row, address, sizeof row);
    auto* slots = exchange(row, Wait::kGather);
    static_assert(kSlotBytes % sizeof(MatrixRow) == 0, "slots are read as an array of rows");
    return reinterpret_cast<MatrixRow const*>(slots);
}

inline MatrixRow const& row_of_lane(MatrixRow const* rows, unsigned lane) {
    return rows[lane * (kSlotBytes / sizeof(MatrixRow))];
}

inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

// ldmatrix .m8n8.x4 .b16
inline void load_matrices(uint32_t (&fragment)[4], void const* row) {
    MatrixRow const* rows = show_matrix_row(row);
    unsigned const lane = lane_of_self();
    unsigned const column = lane % 4 * 2;
    for (unsigned j = 0; j < 4; ++j) {
        MatrixRow const& from = row_of_lane(rows, 8 * j + lane / 4);
        fragment[j] = pair_of(from.elements[column], from.elements[column + 1]);
    }
}

// ldmatrix .m8n8.x4.trans .b16
inline void load_matrices_transposed(uint32_t (&fragment)[4], void const* row) {
    MatrixRow const* rows = show_matrix_row(row);
    unsigned const lane = lane_of_self();
    unsigned const column = lane / 4;
    for (unsigned j = 0; j < 4; ++j) {
        unsigned const first = 8 * j + lane % 4 * 2;
        fragment[j]
            = pair_of(row_of_lane(rows, first).elements[column], row_of_lane(rows, first + 1).elements[column]);
    }
}

// The registers of `a` (four) and `b` (two) as numbers, the lower half of a register first.
struct Factors {
    float a[8];
    float b[4];
};

template <class T>
void unpack(float* to, uint32_t bits) {
    T low, high;
    uint16_t const low_bits = static_cast<uint16_t>(bits);
    uint16_t const high_bits = static_cast<uint16_t>(bits >> 16);
    std::memcpy(static_cast<void*>(&low), &low_bits, sizeof low);
    std::memcpy(static_cast<void*>(&high), &high_bits, sizeof high);
    to[0] = static_cast<float>(low);
    to[1] = static_cast<float>(high);
}

// mma .m16n8k16 .row.col with sums in float32
template <class T>
void multiply_add(float (&sum)[4], uint32_t const (&a)[4], uint32_t b_upper, uint32_t b_lower) {
    Factors mine;
    for (int i = 0; i < 4; ++i) unpack<T>(mine.a + 2 * i, a[i]);
    unpack<T>(mine.b, b_upper);
    unpack<T>(mine.b + 2, b_lower);
    auto* slots = exchange(mine, Wait::kGather);
    unsigned const lane = lane_of_self();
    for (unsigned i = 0; i < 4; ++i) {
        unsigned const row = lane / 4 + 8 * (i / 2);
        unsigned const column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; ++k) {
            // The lane and the register that hold element (row, k) of a, and (k, column) of b.
            unsigned const a_lane = row % 8 * 4 + k % 8 / 2;
            unsigned const a_register = row / 8 + 2 * (k / 8);
            unsigned const b_lane = column * 4 + k % 8 / 2;
            unsigned const b_register = k / 8;
            auto const* of_a = reinterpret_cast<Factors const*>(slots[a_lane]);
            auto const* of_b = reinterpret_cast<Factors const*>(slots[b_lane]);
            sum[i] += of_a->a[2 * a_register + k % 2] * of_b->b[2 * b_register + k % 2];
        }
    }
}

} // namespace cuda_on_cpu

#endif
