// Prefill attention on the CPU against a plain softmax in double precision, for the sanitizers: every head_dim and
// type, chunks of text and of page, rows that see nothing, counts out of range. Banks hold NaN beyond the rows that any
// query row of the page sees, and end where their allocation ends.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../kernels/dense_prefill.cuh"

namespace {

struct Case {
    int batch, heads, kv_heads, rows, head_dim, visual_capacity, text_capacity;
    // Row i of page b sees visual + b + i * visual_step and text + b + i * text_step rows.
    int visual, visual_step, text, text_step;
};

template <class T>
struct Page {
    Case shape;
    std::vector<T> query, bank[4], output; // banks: visual key, visual value, text key, text value
    std::vector<int64_t> valid[2];

    int capacity(int bank) const { return bank == 0 ? shape.visual_capacity : shape.text_capacity; }
    int seen(int bank, int b, int i) const {
        return static_cast<int>(std::clamp<int64_t>(valid[bank][b * shape.rows + i], 0, capacity(bank)));
    }

    explicit Page(Case const& of) : shape(of) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        query.resize(size_t(of.batch) * of.heads * of.rows * of.head_dim);
        output.assign(query.size(), T(NAN));
        for (T& value : query) value = T(normal(random));
        for (int b = 0; b < of.batch; ++b)
            for (int i = 0; i < of.rows; ++i) {
                valid[0].push_back(of.visual + b + i * of.visual_step);
                valid[1].push_back(of.text + b + i * of.text_step);
            }
        for (int which = 0; which < 4; ++which) {
            int const rows = capacity(which / 2);
            bank[which].assign(size_t(of.batch) * of.kv_heads * rows * of.head_dim, T(NAN));
            for (int b = 0; b < of.batch; ++b) {
                int most = 0;
                for (int i = 0; i < of.rows; ++i) most = std::max(most, seen(which / 2, b, i));
                for (int g = 0; g < of.kv_heads; ++g)
                    for (int e = 0; e < most * of.head_dim; ++e)
                        bank[which][size_t(b * of.kv_heads + g) * rows * of.head_dim + e] = T(normal(random));
            }
        }
    }

    cudaError_t run() {
        FastocrShape shape_{};
        shape_.batch = shape.batch;
        shape_.num_attention_heads = shape.heads;
        shape_.num_key_value_heads = shape.kv_heads;
        shape_.rows = shape.rows;
        shape_.head_dim = shape.head_dim;
        shape_.visual_capacity = shape.visual_capacity;
        shape_.text_capacity = shape.text_capacity;
        shape_.scale = scale();
        FastocrTensors tensors{};
        tensors.query = query.data();
        tensors.present_visual_key = bank[0].data();
        tensors.present_visual_value = bank[1].data();
        tensors.present_text_key = bank[2].data();
        tensors.present_text_value = bank[3].data();
        tensors.visual_valid = valid[0].data();
        tensors.text_valid = valid[1].data();
        tensors.output = output.data();
        return fastocr::launch_dense_prefill<T>(shape_, tensors, nullptr);
    }

    float scale() const { return 1.5f / std::sqrt(static_cast<float>(shape.head_dim)); }

    // The output of one query row.
    std::vector<double> expected(int b, int h, int i) const {
        int const dim = shape.head_dim;
        int const kv_head = h / (shape.heads / shape.kv_heads);
        T const* q = &query[(size_t(b * shape.heads + h) * shape.rows + i) * dim];
        std::vector<double> scores;
        std::vector<T const*> values;
        for (int k = 0; k < 2; ++k)
            for (int row = 0; row < seen(k, b, i); ++row) {
                size_t const at = (size_t(b * shape.kv_heads + kv_head) * capacity(k) + row) * dim;
                double score = 0;
                for (int d = 0; d < dim; ++d) score += double(float(q[d])) * float(bank[2 * k][at + d]);
                scores.push_back(score * scale());
                values.push_back(&bank[2 * k + 1][at]);
            }
        std::vector<double> result(dim, 0.0);
        if (scores.empty()) return result;
        double const largest = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - largest);
        for (size_t k = 0; k < scores.size(); ++k)
            for (int d = 0; d < dim; ++d) result[d] += scores[k] / sum * float(values[k][d]);
        return result;
    }
};

template <class T>
int differences(char const* type, Case const& shape, double tolerance) {
    Page<T> page(shape);
    if (page.run() != cudaSuccess) {
        std::printf("%s, head_dim %d: refused\n", type, shape.head_dim);
        return 1;
    }
    double worst = 0;
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int i = 0; i < shape.rows; ++i) {
                std::vector<double> const expected = page.expected(b, h, i);
                for (int d = 0; d < shape.head_dim; ++d) {
                    double const got
                        = float(page.output[(size_t(b * shape.heads + h) * shape.rows + i) * shape.head_dim + d]);
                    worst = std::isnan(got) ? INFINITY : std::max(worst, std::abs(got - expected[d]));
                }
            }
    if (worst <= tolerance) return 0;
    std::printf("%s, head_dim %d, %d rows of %d heads over %d: off by %g, more than %g\n", type, shape.head_dim,
        shape.rows, shape.heads, shape.kv_heads, worst, tolerance);
    return 1;
}

int all_types(Case const& shape) {
    // Outputs are about 1; the powers are rounded to the storage type before they meet the values.
    return differences<float>("float32", shape, 2e-5) + differences<__half>("float16", shape, 4e-3)
        + differences<__nv_bfloat16>("bfloat16", shape, 3e-2);
}

} // namespace

int main() {
    int wrong = 0;
    for (int const head_dim : {16, 32, 64, 80, 96, 128, 256}) // a chunk of page after some text
        wrong += all_types({1, 3, 1, 5, head_dim, 90, 20, 70, 1, 9, 0});
    wrong += all_types({2, 4, 2, 37, 32, 70, 110, 66, 0, 60, 1}); // a chunk of text; several tiles of each kind
    wrong += all_types({1, 16, 1, 6, 16, 8, 8, 0, 0, 0, 1});      // no page yet; the first row sees nothing
    wrong += all_types({2, 1, 1, 3, 16, 8, 8, -20, 0, -9, 0});    // counts below zero: nothing is seen
    wrong += all_types({1, 7, 1, 4, 16, 40, 33, 38, 1, 31, 9});   // counts that pass the end of the banks
    if (wrong == 0) std::puts("prefill attention: ok");
    return wrong == 0 ? 0 : 1;
}
