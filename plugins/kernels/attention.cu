// The C interface of attention.h: checks, copies, and the order of an op's kernels.
#include "attention.h"

#include "append_rows.cuh"
#include "attend_declared.cuh"
#include "check.h"
#include "plan.h"
#include "select_topk.cuh"
#include "visual_mass.cuh"

namespace fastocr {
namespace {

size_t element_bytes(FastocrShape const& shape)
{
    return shape.dtype == FASTOCR_FLOAT32 ? 4 : 2;
}

// Rows are read and written 16 bytes at a time.
bool usable(void const* pointer)
{
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

bool usable_numbers(int64_t const* pointer)
{
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % sizeof(int64_t) == 0;
}

bool usable_tensors(FastocrShape const& shape, FastocrTensors const& t)
{
    for (void const* pointer : {t.query, t.key, t.value, t.past_visual_key, t.past_visual_value, t.past_text_key,
             t.past_text_value, static_cast<void const*>(t.present_visual_key),
             static_cast<void const*>(t.present_visual_value), static_cast<void const*>(t.present_text_key),
             static_cast<void const*>(t.present_text_value), static_cast<void const*>(t.output)})
        if (!usable(pointer))
            return false;
    for (int64_t const* pointer : {t.visual_length, t.text_length, t.visual_valid, t.text_valid, t.status_in,
             static_cast<int64_t const*>(t.status_out)})
        if (!usable_numbers(pointer))
            return false;
    bool const some = shape.fixation_size > 0; // an empty tensor may have no address
    if (shape.op == FASTOCR_FOCAL)
        return !some || (usable_numbers(t.num_fixations) && usable_numbers(t.fixation_out));
    if (shape.op == FASTOCR_GATHERED)
        return usable_numbers(t.attend_all) && (!some || usable_numbers(t.fixation_in));
    return true;
}

// present = past, for each bank that has two buffers.
cudaError_t copy_banks(FastocrShape const& shape, FastocrTensors const& t, cudaStream_t stream)
{
    size_t const row_bytes = shape.head_dim * element_bytes(shape);
    size_t const heads = static_cast<size_t>(shape.batch) * shape.num_key_value_heads;
    size_t const visual = heads * shape.visual_capacity * row_bytes;
    size_t const text = heads * shape.text_capacity * row_bytes;
    struct Bank {
        void const* past;
        void* present;
        size_t bytes;
    } const banks[] = {
        {t.past_visual_key, t.present_visual_key, visual},
        {t.past_visual_value, t.present_visual_value, visual},
        {t.past_text_key, t.present_text_key, text},
        {t.past_text_value, t.present_text_value, text},
    };
    for (Bank const& bank : banks)
        if (bank.past != bank.present) {
            cudaError_t const error
                = cudaMemcpyAsync(bank.present, bank.past, bank.bytes, cudaMemcpyDeviceToDevice, stream);
            if (error != cudaSuccess)
                return error;
        }
    return cudaSuccess;
}

cudaError_t append(FastocrShape const& shape, FastocrTensors const& t, cudaStream_t stream)
{
    AppendProblem problem{};
    problem.key = static_cast<uint4 const*>(t.key);
    problem.value = static_cast<uint4 const*>(t.value);
    problem.visual_key = static_cast<uint4*>(t.present_visual_key);
    problem.visual_value = static_cast<uint4*>(t.present_visual_value);
    problem.text_key = static_cast<uint4*>(t.present_text_key);
    problem.text_value = static_cast<uint4*>(t.present_text_value);
    problem.visual_length = t.visual_length;
    problem.text_length = t.text_length;
    problem.visual_valid = t.visual_valid;
    problem.text_valid = t.text_valid;
    problem.status_in = t.status_in;
    problem.status_out = t.status_out;
    problem.batch = shape.batch;
    problem.num_key_value_heads = shape.num_key_value_heads;
    problem.rows = shape.rows;
    problem.pieces = static_cast<int>(shape.head_dim * element_bytes(shape) / sizeof(uint4));
    problem.visual_capacity = shape.visual_capacity;
    problem.text_capacity = shape.text_capacity;
    return launch_append_rows(problem, stream);
}

cudaError_t select_fixation(FastocrShape const& shape, FastocrTensors const& t, SelectionBuffers const& selection,
    float* mass, cudaStream_t stream)
{
    int const sets = shape.per_kv_head != 0 ? shape.num_key_value_heads : 1;
    MassProblem masses{};
    masses.scores = selection.scores;
    masses.lse = selection.lse;
    masses.mass = mass;
    masses.visual_valid = t.visual_valid;
    masses.stride = shape.visual_capacity;
    masses.batch = shape.batch;
    masses.sets = sets;
    masses.heads_per_set = shape.num_attention_heads / sets;
    masses.rows = shape.rows;
    masses.visual_capacity = shape.visual_capacity;
    cudaError_t const error = launch_visual_mass(masses, stream);
    if (error != cudaSuccess)
        return error;
    SelectProblem choice{};
    choice.mass = mass;
    choice.num_fixations = t.num_fixations;
    choice.visual_valid = t.visual_valid;
    choice.fixation = t.fixation_out;
    choice.stride = shape.visual_capacity;
    choice.batch = shape.batch;
    choice.sets = sets;
    choice.num_key_value_heads = shape.num_key_value_heads;
    choice.rows = shape.rows;
    choice.visual_capacity = shape.visual_capacity;
    choice.fixation_size = shape.fixation_size;
    return launch_select_topk(choice, stream);
}

cudaError_t run(
    FastocrShape const& shape, FastocrTensors const& tensors, unsigned char* workspace, cudaStream_t stream)
{
    Workspace const places(shape);
    auto const floats = [&](size_t offset) { return reinterpret_cast<float*>(workspace + offset); };
    bool const selects = shape.op == FASTOCR_FOCAL && shape.fixation_size > 0;
    SelectionBuffers const selection{selects ? floats(places.scores) : nullptr, selects ? floats(places.lse) : nullptr};

    int num_splits = shape.num_splits;
    if (num_splits == 0) {
        int device = 0;
        int multiprocessors = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess)
            return error;
        num_splits = choose_splits(shape, multiprocessors);
    }

    cudaError_t error = copy_banks(shape, tensors, stream);
    if (error == cudaSuccess)
        error = append(shape, tensors, stream);
    if (error != cudaSuccess)
        return error;
    auto const attention = shape.dtype == FASTOCR_FLOAT32 ? &attend<float>
        : shape.dtype == FASTOCR_FLOAT16                  ? &attend<__half>
                                                          : &attend<__nv_bfloat16>;
    error = attention(shape, tensors, num_splits, floats(places.parts), floats(places.part_lse), selection, stream);
    if (error == cudaSuccess && selects)
        error = select_fixation(shape, tensors, selection, floats(places.mass), stream);
    return error;
}

} // namespace
} // namespace fastocr

int fastocr_check(FastocrShape const* shape, char* message, size_t size)
{
    if (size > 0)
        message[0] = 0;
    return fastocr::check_shape(shape, message, size) ? 0 : 1;
}

size_t fastocr_workspace_size(FastocrShape const* shape)
{
    return fastocr::check_shape(shape, nullptr, 0) ? fastocr::Workspace(*shape).bytes : 0;
}

int fastocr_run(
    FastocrShape const* shape, FastocrTensors const* tensors, void* workspace, size_t workspace_size, void* stream)
{
    if (!fastocr::check_shape(shape, nullptr, 0) || tensors == nullptr || !fastocr::usable(workspace)
        || workspace_size < fastocr::Workspace(*shape).bytes || !fastocr::usable_tensors(*shape, *tensors))
        return cudaErrorInvalidValue;
    return fastocr::run(
        *shape, *tensors, static_cast<unsigned char*>(workspace), static_cast<cudaStream_t>(stream));
}
