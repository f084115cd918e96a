// Drives fastocr_run on random shapes under the address and undefined-behaviour sanitizers, against a naive loop.
//
// Every tensor is an allocation of its own, to the byte: an access beyond it ends the program. Rows that may not be
// read, the workspace and the outputs start as NaN.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention.h"

namespace {

std::mt19937 random_bits(7);

int pick(int least, int most)
{
    return std::uniform_int_distribution<int>(least, most)(random_bits);
}

[[noreturn]] void fail(std::string const& what, FastocrShape const& s)
{
    std::fprintf(stderr,
        "%s: op %d dtype %d batch %d heads %d/%d rows %d head_dim %d capacities %d %d k %d per_kv_head %d splits %d\n",
        what.c_str(), s.op, s.dtype, s.batch, s.num_attention_heads, s.num_key_value_heads, s.rows, s.head_dim,
        s.visual_capacity, s.text_capacity, s.fixation_size, s.per_kv_head, s.num_splits);
    std::exit(1);
}

// Elements of the model's type in an allocation of their own size.
class Elements {
public:
    Elements(int dtype, size_t count)
        : dtype_(dtype)
        , count_(count)
        , bytes_(count * (dtype == FASTOCR_FLOAT32 ? 4 : 2))
        , data_(std::aligned_alloc(16, bytes_), &std::free)
    {
        std::memset(data_.get(), 0xFF, bytes_);
    }

    void* data() const { return data_.get(); }
    size_t count() const { return count_; }

    void set(size_t i, float value)
    {
        if (dtype_ == FASTOCR_FLOAT32) {
            std::memcpy(place(i), &value, 4);
        } else if (dtype_ == FASTOCR_FLOAT16) {
            __half const stored = __float2half_rn(value);
            std::memcpy(place(i), &stored, 2);
        } else {
            __nv_bfloat16 const stored = __float2bfloat16_rn(value);
            std::memcpy(place(i), &stored, 2);
        }
    }

    double get(size_t i) const
    {
        if (dtype_ == FASTOCR_FLOAT32) {
            float value;
            std::memcpy(&value, place(i), 4);
            return value;
        }
        if (dtype_ == FASTOCR_FLOAT16) {
            __half value;
            std::memcpy(&value, place(i), 2);
            return __half2float(value);
        }
        __nv_bfloat16 value;
        std::memcpy(&value, place(i), 2);
        return __bfloat162float(value);
    }

    bool same(Elements const& other, size_t i) const
    {
        return std::memcmp(place(i), other.place(i), bytes_ / count_) == 0;
    }

    void copy(Elements const& other) { std::memcpy(data(), other.data(), bytes_); }

private:
    unsigned char* place(size_t i) const { return static_cast<unsigned char*>(data_.get()) + i * (bytes_ / count_); }

    int dtype_;
    size_t count_;
    size_t bytes_;
    std::unique_ptr<void, decltype(&std::free)> data_;
};

void fill(Elements& elements, size_t first, size_t count)
{
    std::normal_distribution<float> normal;
    for (size_t i = first; i < first + count; ++i)
        elements.set(i, normal(random_bits));
}

struct Case {
    FastocrShape shape{};
    std::vector<Elements> past; // visual key, visual value, text key, text value
    std::vector<Elements> present; // empty: in place
    std::unique_ptr<Elements> query, key, value, output;
    std::vector<int64_t> lengths[2], valid[2], num_fixations, fixation, chosen;
    int64_t attend_all = 0, status_in = 0, status_out = 0;

    int capacity(int bank) const { return bank == 0 ? shape.visual_capacity : shape.text_capacity; }
    size_t pages_and_heads() const { return size_t(shape.batch) * shape.num_key_value_heads; }
};

Case make_case(int op)
{
    Case c;
    FastocrShape& s = c.shape;
    int const widths[] = {8, 16, 32, 64, 80, 96, 128, 200, 256};
    s.op = op;
    s.dtype = pick(0, 2);
    s.batch = pick(1, 3);
    s.num_key_value_heads = pick(1, 2);
    s.num_attention_heads = s.num_key_value_heads * pick(1, pick(0, 4) == 0 ? 18 : 4);
    s.rows = pick(0, 3) == 0 ? pick(2, 20) : 1;
    s.head_dim = widths[pick(0, 8)];
    s.visual_capacity = pick(s.rows, 150);
    s.text_capacity = pick(s.rows, 90);
    s.fixation_size = op == FASTOCR_DENSE ? 0 : pick(0, s.visual_capacity);
    s.per_kv_head = pick(0, 1);
    s.num_splits = pick(0, 5);
    s.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));

    for (int bank = 0; bank < 2; ++bank)
        for (int b = 0; b < s.batch; ++b) {
            // Now and then a length that is full, or nonsense.
            int64_t length = pick(0, c.capacity(bank) - s.rows);
            int64_t const odd[] = {c.capacity(bank), -1, std::numeric_limits<int64_t>::max(),
                std::numeric_limits<int64_t>::min()};
            c.lengths[bank].push_back(pick(0, 15) == 0 ? odd[pick(0, 3)] : length);
            for (int row = 0; row < s.rows; ++row)
                c.valid[bank].push_back(pick(0, 15) == 0 ? odd[pick(0, 3)] : pick(0, c.capacity(bank)));
        }
    size_t const width = s.head_dim;
    c.query = std::make_unique<Elements>(s.dtype, size_t(s.batch) * s.num_attention_heads * s.rows * width);
    c.output = std::make_unique<Elements>(s.dtype, c.query->count());
    c.key = std::make_unique<Elements>(s.dtype, c.pages_and_heads() * s.rows * width);
    c.value = std::make_unique<Elements>(s.dtype, c.key->count());
    for (Elements* elements : {c.query.get(), c.key.get(), c.value.get()})
        fill(*elements, 0, elements->count());
    bool const copies = pick(0, 2) == 0;
    for (int i = 0; i < 4; ++i) {
        c.past.emplace_back(s.dtype, c.pages_and_heads() * c.capacity(i / 2) * width);
        if (copies)
            c.present.emplace_back(s.dtype, c.past.back().count());
    }
    // Rows are numbers where some query row may see them, NaN elsewhere.
    for (int i = 0; i < 4; ++i)
        for (int b = 0; b < s.batch; ++b) {
            int64_t seen = 0;
            for (int row = 0; row < s.rows; ++row)
                seen = std::max(seen, std::min<int64_t>(c.valid[i / 2][b * s.rows + row], c.capacity(i / 2)));
            for (int kv = 0; kv < s.num_key_value_heads; ++kv)
                fill(c.past[i], (size_t(b) * s.num_key_value_heads + kv) * c.capacity(i / 2) * width, seen * width);
        }
    for (int b = 0; b < s.batch; ++b)
        c.num_fixations.push_back(pick(-1, s.fixation_size + 2));
    c.chosen.assign(c.pages_and_heads() * s.fixation_size, -99);
    for (size_t i = 0; i < c.chosen.size(); ++i)
        c.fixation.push_back(pick(0, 30) == 0 ? int64_t{1} << pick(0, 62) : pick(-1, s.visual_capacity - 1));
    c.attend_all = pick(0, 3) == 0;
    c.status_in = pick(0, 1) * 64;
    return c;
}

// What the op must leave, in plain loops and double.
struct Answer {
    std::vector<Elements> banks;
    std::vector<double> output;
    std::vector<double> mass; // [B,KV,VCAP] of the last row
    int64_t status;
};

Answer answer(Case const& c)
{
    FastocrShape const& s = c.shape;
    size_t const width = s.head_dim;
    int const group = s.num_attention_heads / s.num_key_value_heads;
    Answer a;
    a.status = c.status_in;
    for (int i = 0; i < 4; ++i) {
        Elements const& rows = i % 2 == 0 ? *c.key : *c.value;
        int const capacity = c.capacity(i / 2);
        a.banks.emplace_back(s.dtype, c.past[i].count());
        a.banks[i].copy(c.past[i]);
        for (int b = 0; b < s.batch; ++b)
            for (int row = 0; row < s.rows; ++row) {
                int64_t const length = c.lengths[i / 2][b];
                // As float: the sum of an extreme length and a row is no int64.
                double const at = static_cast<double>(length) + row;
                if (at < 0 || at >= capacity) {
                    a.status |= i / 2 == 0 ? FASTOCR_STATUS_VISUAL_BANK_FULL : FASTOCR_STATUS_TEXT_BANK_FULL;
                    continue;
                }
                for (int kv = 0; kv < s.num_key_value_heads; ++kv)
                    for (size_t d = 0; d < width; ++d) {
                        size_t const head = size_t(b) * s.num_key_value_heads + kv;
                        a.banks[i].set((head * capacity + length + row) * width + d,
                            static_cast<float>(rows.get((head * s.rows + row) * width + d)));
                    }
            }
    }
    for (int bank = 0; bank < 2; ++bank)
        for (int64_t count : c.valid[bank])
            if (count < 0 || count > c.capacity(bank))
                a.status |= FASTOCR_STATUS_VALID_OUT_OF_RANGE;

    a.output.assign(c.output->count(), 0);
    a.mass.assign(c.pages_and_heads() * s.visual_capacity, 0);
    auto const numbers = [](Elements const& elements) {
        std::vector<double> result(elements.count());
        for (size_t i = 0; i < result.size(); ++i)
            result[i] = elements.get(i);
        return result;
    };
    std::vector<double> const query = numbers(*c.query);
    std::vector<double> banks[4];
    for (int i = 0; i < 4; ++i)
        banks[i] = numbers(a.banks[i]);
    bool const gathers = s.op == FASTOCR_GATHERED && s.rows == 1 && c.attend_all == 0;
    for (int b = 0; b < s.batch; ++b)
        for (int head = 0; head < s.num_attention_heads; ++head)
            for (int row = 0; row < s.rows; ++row) {
                size_t const kv = size_t(b) * s.num_key_value_heads + head / group;
                size_t const at = ((size_t(b) * s.num_attention_heads + head) * s.rows + row) * width;
                int64_t counts[2];
                for (int bank = 0; bank < 2; ++bank)
                    counts[bank] = std::min<int64_t>(
                        std::max<int64_t>(c.valid[bank][b * s.rows + row], 0), c.capacity(bank));
                std::vector<std::pair<int, size_t>> seen; // bank, row of it
                if (gathers) {
                    for (int i = 0; i < s.fixation_size; ++i) {
                        int64_t const entry = c.fixation[kv * s.fixation_size + i];
                        if (entry >= 0 && entry < counts[0])
                            seen.emplace_back(0, entry);
                        else if (entry != -1)
                            a.status |= FASTOCR_STATUS_FIXATION_OUT_OF_RANGE;
                    }
                } else {
                    for (int64_t i = 0; i < counts[0]; ++i)
                        seen.emplace_back(0, i);
                }
                for (int64_t i = 0; i < counts[1]; ++i)
                    seen.emplace_back(1, i);
                std::vector<double> powers;
                double total = 0;
                for (auto const& [bank, i] : seen) {
                    double score = 0;
                    for (size_t d = 0; d < width; ++d)
                        score += query[at + d] * banks[2 * bank][(kv * c.capacity(bank) + i) * width + d];
                    powers.push_back(std::exp(score * s.scale));
                    total += powers.back();
                }
                for (size_t j = 0; j < seen.size(); ++j) {
                    auto const [bank, i] = seen[j];
                    for (size_t d = 0; d < width; ++d)
                        a.output[at + d]
                            += powers[j] / total * banks[2 * bank + 1][(kv * c.capacity(bank) + i) * width + d];
                    if (bank == 0 && row == s.rows - 1)
                        a.mass[kv * s.visual_capacity + i] += powers[j] / total;
                }
            }
    return a;
}

void check_fixation(Case const& c, Answer const& a)
{
    FastocrShape const& s = c.shape;
    for (int b = 0; b < s.batch; ++b)
        for (int kv = 0; kv < s.num_key_value_heads; ++kv) {
            int64_t const valid = std::min<int64_t>(
                std::max<int64_t>(c.valid[0][b * s.rows + s.rows - 1], 0), s.visual_capacity);
            int64_t const count = std::max<int64_t>(
                0, std::min({valid, c.num_fixations[b], static_cast<int64_t>(s.fixation_size)}));
            int64_t const* chosen = c.chosen.data() + (size_t(b) * s.num_key_value_heads + kv) * s.fixation_size;
            std::vector<double> mass(valid, 0);
            for (int other = 0; other < s.num_key_value_heads; ++other)
                if (other == kv || s.per_kv_head == 0)
                    for (int64_t i = 0; i < valid; ++i)
                        mass[i] += a.mass[(size_t(b) * s.num_key_value_heads + other) * s.visual_capacity + i];
            double least = 1e300;
            std::vector<bool> taken(valid, false);
            for (int64_t i = 0; i < s.fixation_size; ++i) {
                bool const ascends = i == 0 || chosen[i] > chosen[i - 1];
                if (i >= count ? chosen[i] != -1 : chosen[i] < 0 || chosen[i] >= valid || !ascends)
                    fail("a fixation that is not ascending rows and then -1", s);
                if (i < count) {
                    taken[chosen[i]] = true;
                    least = std::min(least, mass[chosen[i]]);
                }
            }
            for (int64_t i = 0; i < valid && count > 0; ++i)
                if (!taken[i] && mass[i] > least * (1 + 1e-5))
                    fail("a row with more mass was left out", s);
        }
}

void run_case(int op)
{
    Case c = make_case(op);
    FastocrShape const& s = c.shape;
    char message[200];
    if (fastocr_check(&s, message, sizeof message) != 0)
        fail(message, s);
    Answer const want = answer(c);
    size_t const needed = fastocr_workspace_size(&s);
    std::unique_ptr<void, decltype(&std::free)> const workspace(std::aligned_alloc(16, needed), &std::free);
    std::memset(workspace.get(), 0xFF, needed);

    std::vector<Elements> const& present = c.present.empty() ? c.past : c.present;
    FastocrTensors t{};
    t.query = c.query->data();
    t.key = c.key->data();
    t.value = c.value->data();
    t.past_visual_key = c.past[0].data();
    t.past_visual_value = c.past[1].data();
    t.past_text_key = c.past[2].data();
    t.past_text_value = c.past[3].data();
    t.present_visual_key = present[0].data();
    t.present_visual_value = present[1].data();
    t.present_text_key = present[2].data();
    t.present_text_value = present[3].data();
    t.visual_length = c.lengths[0].data();
    t.text_length = c.lengths[1].data();
    t.visual_valid = c.valid[0].data();
    t.text_valid = c.valid[1].data();
    t.num_fixations = c.num_fixations.data();
    t.fixation_in = c.fixation.data();
    t.attend_all = &c.attend_all;
    t.status_in = &c.status_in;
    t.output = c.output->data();
    t.fixation_out = c.chosen.data();
    t.status_out = &c.status_out;
    if (fastocr_run(&s, &t, workspace.get(), needed, nullptr) != 0)
        fail("fastocr_run failed", s);

    double const eps = s.dtype == FASTOCR_FLOAT32 ? 0 : s.dtype == FASTOCR_FLOAT16 ? 1.0 / 1024 : 1.0 / 128;
    for (size_t i = 0; i < want.output.size(); ++i)
        if (!(std::fabs(c.output->get(i) - want.output[i]) <= 8 * eps + 1e-5))
            fail("output " + std::to_string(c.output->get(i)) + " is not " + std::to_string(want.output[i]), s);
    for (int i = 0; i < 4; ++i)
        for (size_t j = 0; j < present[i].count(); ++j)
            if (!present[i].same(want.banks[i], j))
                fail("bank " + std::to_string(i) + " differs", s);
    if (c.status_out != want.status)
        fail("status " + std::to_string(c.status_out) + " is not " + std::to_string(want.status), s);
    if (op == FASTOCR_FOCAL)
        check_fixation(c, want);
}

} // namespace

int main(int argc, char** argv)
{
    int const cases = argc > 1 ? std::atoi(argv[1]) : 60;
    for (int i = 0; i < cases; ++i)
        run_case(i % 3);
    std::printf("%d random calls as the naive loop has them\n", cases);
    return 0;
}
