// The inputs and outputs of the three ops of the engine form: names, positions and shapes, in one table each.
//
// docs/architecture.md, "The engine form", is the contract; everything in the plugin that needs a position takes it
// from here.
#ifndef FASTOCR_PLUGIN_OP_TENSORS_H
#define FASTOCR_PLUGIN_OP_TENSORS_H

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace fastocr::plugin {

enum class Op : int32_t { kDense = FASTOCR_DENSE, kFocal = FASTOCR_FOCAL, kGathered = FASTOCR_GATHERED };

// The first 11 inputs, common to the three ops.
enum CommonInput : int32_t {
    kQuery,
    kKey,
    kValue,
    kPastVisualKey,
    kPastVisualValue,
    kPastTextKey,
    kPastTextValue,
    kVisualLength,
    kTextLength,
    kVisualValid,
    kTextValid,
    kNumCommonInputs
};

struct DenseInput {
    enum : int32_t { kStatus = kNumCommonInputs, kCount };
};

struct FocalInput {
    enum : int32_t { kNumFixations = kNumCommonInputs, kFixationSlots, kStatus, kCount };
};

struct GatheredInput {
    enum : int32_t { kFixation = kNumCommonInputs, kAttendAll, kStatus, kCount };
};

// The first 5 outputs, common to the three ops.
enum CommonOutput : int32_t {
    kOutput,
    kPresentVisualKey,
    kPresentVisualValue,
    kPresentTextKey,
    kPresentTextValue,
    kNumCommonOutputs
};

struct FocalOutput {
    enum : int32_t { kFixation = kNumCommonOutputs, kNextStatus, kCount };
};

// Dense and gathered.
struct PlainOutput {
    enum : int32_t { kNextStatus = kNumCommonOutputs, kCount };
};

// past_* input and present_* output of each bank.
struct Bank {
    CommonInput past;
    CommonOutput present;
};
inline constexpr std::array<Bank, 4> kBanks{{
    {kPastVisualKey, kPresentVisualKey},
    {kPastVisualValue, kPresentVisualValue},
    {kPastTextKey, kPresentTextKey},
    {kPastTextValue, kPresentTextValue},
}};

// What a dimension counts. One axis has one size in a call, whichever tensor shows it.
enum class Axis : int32_t {
    kOne,
    kBatch,
    kHeads,
    kKvHeads,
    kRows,
    kHeadDim,
    kVisualCapacity,
    kTextCapacity,
    kFixationSize,
    kCount
};
char const* axisName(Axis axis);

enum class Kind : int32_t {
    kModel, // the model's dtype: float32, float16 or bfloat16, one for all of them
    kIndex  // int64
};

struct TensorSpec {
    char const* name;
    Kind kind;
    std::vector<Axis> axes;
};

struct OpSpec {
    Op op;
    char const* name; // of the ONNX op and of the plugin
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
    int32_t status;     // position among inputs
    int32_t nextStatus; // position among outputs

    int32_t numInputs() const { return static_cast<int32_t>(inputs.size()); }
    int32_t numOutputs() const { return static_cast<int32_t>(outputs.size()); }
};

OpSpec const& specOf(Op op);

// The kernels' view of one call: pointers in the order of specOf(op), as TensorRT gives them.
FastocrTensors bindTensors(Op op, void const* const* inputs, void* const* outputs);

} // namespace fastocr::plugin

#endif
