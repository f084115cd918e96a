#include "op_tensors.h"

namespace fastocr::plugin {

namespace {

std::vector<Axis> rowsOf(Axis heads) {
    return {Axis::kBatch, heads, Axis::kRows, Axis::kHeadDim};
}

std::vector<Axis> bankOf(Axis capacity) {
    return {Axis::kBatch, Axis::kKvHeads, capacity, Axis::kHeadDim};
}

std::vector<TensorSpec> commonInputs() {
    std::vector<Axis> const visual = bankOf(Axis::kVisualCapacity);
    std::vector<Axis> const text = bankOf(Axis::kTextCapacity);
    return {
        {"query", Kind::kModel, rowsOf(Axis::kHeads)},
        {"key", Kind::kModel, rowsOf(Axis::kKvHeads)},
        {"value", Kind::kModel, rowsOf(Axis::kKvHeads)},
        {"past_visual_key", Kind::kModel, visual},
        {"past_visual_value", Kind::kModel, visual},
        {"past_text_key", Kind::kModel, text},
        {"past_text_value", Kind::kModel, text},
        {"visual_length", Kind::kIndex, {Axis::kBatch}},
        {"text_length", Kind::kIndex, {Axis::kBatch}},
        {"visual_valid", Kind::kIndex, {Axis::kBatch, Axis::kRows}},
        {"text_valid", Kind::kIndex, {Axis::kBatch, Axis::kRows}},
    };
}

std::vector<TensorSpec> commonOutputs() {
    std::vector<Axis> const visual = bankOf(Axis::kVisualCapacity);
    std::vector<Axis> const text = bankOf(Axis::kTextCapacity);
    return {
        {"output", Kind::kModel, rowsOf(Axis::kHeads)},
        {"present_visual_key", Kind::kModel, visual},
        {"present_visual_value", Kind::kModel, visual},
        {"present_text_key", Kind::kModel, text},
        {"present_text_value", Kind::kModel, text},
    };
}

std::vector<TensorSpec> joined(std::vector<TensorSpec> first, std::vector<TensorSpec> const& rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
}

TensorSpec const kStatus{"status", Kind::kIndex, {Axis::kOne}};
TensorSpec const kNextStatus{"next_status", Kind::kIndex, {Axis::kOne}};
TensorSpec const kFixation{"fixation", Kind::kIndex, {Axis::kBatch, Axis::kKvHeads, Axis::kFixationSize}};

OpSpec makeDense() {
    return {Op::kDense, "DenseAttention", joined(commonInputs(), {kStatus}), joined(commonOutputs(), {kNextStatus}),
        DenseInput::kStatus, PlainOutput::kNextStatus};
}

OpSpec makeFocal() {
    TensorSpec const numFixations{"num_fixations", Kind::kIndex, {Axis::kBatch}};
    TensorSpec const fixationSlots{"fixation_slots", Kind::kIndex, {Axis::kFixationSize}};
    return {Op::kFocal, "FocalAttention", joined(commonInputs(), {numFixations, fixationSlots, kStatus}),
        joined(commonOutputs(), {kFixation, kNextStatus}), FocalInput::kStatus, FocalOutput::kNextStatus};
}

OpSpec makeGathered() {
    TensorSpec const attendAll{"attend_all", Kind::kIndex, {Axis::kOne}};
    return {Op::kGathered, "GatheredAttention", joined(commonInputs(), {kFixation, attendAll, kStatus}),
        joined(commonOutputs(), {kNextStatus}), GatheredInput::kStatus, PlainOutput::kNextStatus};
}

template <typename T>
T const* at(void const* const* inputs, int32_t position) {
    return static_cast<T const*>(inputs[position]);
}

} // namespace

char const* axisName(Axis axis) {
    switch (axis) {
    case Axis::kOne: return "1";
    case Axis::kBatch: return "batch";
    case Axis::kHeads: return "num_attention_heads";
    case Axis::kKvHeads: return "num_key_value_heads";
    case Axis::kRows: return "rows";
    case Axis::kHeadDim: return "head_dim";
    case Axis::kVisualCapacity: return "visual_capacity";
    case Axis::kTextCapacity: return "text_capacity";
    case Axis::kFixationSize: return "fixation_size";
    case Axis::kCount: break;
    }
    return "?";
}

OpSpec const& specOf(Op op) {
    static OpSpec const dense = makeDense();
    static OpSpec const focal = makeFocal();
    static OpSpec const gathered = makeGathered();
    switch (op) {
    case Op::kFocal: return focal;
    case Op::kGathered: return gathered;
    case Op::kDense: break;
    }
    return dense;
}

FastocrTensors bindTensors(Op op, void const* const* inputs, void* const* outputs) {
    OpSpec const& spec = specOf(op);
    FastocrTensors tensors{};
    tensors.query = inputs[kQuery];
    tensors.key = inputs[kKey];
    tensors.value = inputs[kValue];
    tensors.past_visual_key = inputs[kPastVisualKey];
    tensors.past_visual_value = inputs[kPastVisualValue];
    tensors.past_text_key = inputs[kPastTextKey];
    tensors.past_text_value = inputs[kPastTextValue];
    tensors.present_visual_key = outputs[kPresentVisualKey];
    tensors.present_visual_value = outputs[kPresentVisualValue];
    tensors.present_text_key = outputs[kPresentTextKey];
    tensors.present_text_value = outputs[kPresentTextValue];
    tensors.visual_length = at<int64_t>(inputs, kVisualLength);
    tensors.text_length = at<int64_t>(inputs, kTextLength);
    tensors.visual_valid = at<int64_t>(inputs, kVisualValid);
    tensors.text_valid = at<int64_t>(inputs, kTextValid);
    tensors.output = outputs[kOutput];
    tensors.status_in = at<int64_t>(inputs, spec.status);
    tensors.status_out = static_cast<int64_t*>(outputs[spec.nextStatus]);
    if (op == Op::kFocal) {
        tensors.num_fixations = at<int64_t>(inputs, FocalInput::kNumFixations);
        tensors.fixation_out = static_cast<int64_t*>(outputs[FocalOutput::kFixation]);
    } else if (op == Op::kGathered) {
        tensors.fixation_in = at<int64_t>(inputs, GatheredInput::kFixation);
        tensors.attend_all = at<int64_t>(inputs, GatheredInput::kAttendAll);
    }
    return tensors;
}

} // namespace fastocr::plugin
