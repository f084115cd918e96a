// The matrix instructions on the CPU against a plain product: random matrices go through shared memory, fragments and
// back. Every element of the factors is different, so that a fragment of the wrong lane or register shows.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../kernels/mma.cuh"

namespace {

using namespace fastocr;

constexpr int kM = 16, kN = 16, kK = 32;

// sum [16,16] = a [16,32] b [32,16], b given as it lies (rows of n) or transposed (rows of k), for one warp.
template <class T>
__global__ void multiply(T const* a, T const* b, bool transposed, float* sum) {
    FASTOCR_DYNAMIC_SHARED(unsigned char, shared);
    T* const a_tile = reinterpret_cast<T*>(shared);
    T* const b_tile = a_tile + kM * kK;
    int const lane = threadIdx.x;
    for (int chunk = lane; chunk < kM * kK / 8; chunk += 32) copy_async_16(a_tile + 8 * chunk, a + 8 * chunk);
    for (int chunk = lane; chunk < kK * kN / 8; chunk += 32) copy_async_16(b_tile + 8 * chunk, b + 8 * chunk);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();

    float left[4] = {}, right[4] = {}; // columns 0 to 7 and 8 to 15
    for (int k = 0; k < kK; k += 16) {
        uint32_t a_fragment[4], b_fragment[4];
        load_matrices(a_fragment, a_tile + lane % 16 * kK + k + lane / 16 * 8);
        if (transposed)
            load_matrices(b_fragment, b_tile + (lane % 8 + lane / 16 * 8) * kK + k + lane / 8 % 2 * 8);
        else
            load_matrices_transposed(b_fragment, b_tile + (k + lane % 16) * kN + lane / 16 * 8);
        multiply_add<T>(left, a_fragment, b_fragment[0], b_fragment[1]);
        multiply_add<T>(right, a_fragment, b_fragment[2], b_fragment[3]);
    }
    for (int i = 0; i < 4; ++i) {
        int const at = (lane / 4 + i / 2 * 8) * kN + lane % 4 * 2 + i % 2;
        sum[at] = left[i];
        sum[at + 8] = right[i];
    }
}

template <class T>
int differences(char const* type) {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
    std::vector<T> a(kM * kK), b(kK * kN), b_transposed(kK * kN);
    for (T& value : a) value = T(uniform(random));
    for (int k = 0; k < kK; ++k)
        for (int n = 0; n < kN; ++n) b_transposed[n * kK + k] = b[k * kN + n] = T(uniform(random));

    int wrong = 0;
    for (bool const transposed : {false, true}) {
        std::vector<float> sum(kM * kN, NAN);
        T const* const from_a = a.data();
        T const* const from_b = transposed ? b_transposed.data() : b.data();
        float* const to = sum.data();
        FASTOCR_LAUNCH(
            multiply<T>, 1, 32, (kM * kK + kK * kN) * sizeof(T), nullptr, from_a, from_b, transposed, to);
        for (int m = 0; m < kM; ++m)
            for (int n = 0; n < kN; ++n) {
                double expected = 0;
                for (int k = 0; k < kK; ++k)
                    expected += static_cast<double>(float(a[m * kK + k])) * float(b[k * kN + n]);
                if (!(std::abs(sum[m * kN + n] - expected) < 1e-4)) {
                    if (wrong++ < 5)
                        std::printf("%s, transposed %d, element (%d, %d): %g instead of %g\n", type, transposed, m, n,
                            sum[m * kN + n], expected);
                }
            }
    }
    return wrong;
}

// Packing puts the first number in the lower half, where the instruction expects the lower column, and rounds to
// nearest: 1 - 2^-13 is nearer to 1 than to the number below it in both types.
template <class T>
int packing_is_wrong(char const* type) {
    uint32_t const bits = pack_pair<T>(-3.0f, 1.0f - std::ldexp(1.0f, -13));
    T halves[2];
    std::memcpy(static_cast<void*>(halves), &bits, sizeof bits);
    if (float(halves[0]) == -3.0f && float(halves[1]) == 1.0f) return 0;
    std::printf("%s: packed %g and %g\n", type, float(halves[0]), float(halves[1]));
    return 1;
}

} // namespace

int main() {
    int const wrong = differences<__half>("float16") + differences<__nv_bfloat16>("bfloat16")
        + packing_is_wrong<__half>("float16") + packing_is_wrong<__nv_bfloat16>("bfloat16");
    if (wrong == 0) std::puts("matrix fragments: ok");
    return wrong == 0 ? 0 : 1;
}
