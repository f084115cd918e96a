// What TensorRT asks at run time, and what every phase needs: identity, clones, serialised fields.
#include "attention_plugin.h"

#include "logging.h"
#include "op_shape.h"

namespace fastocr::plugin {

using nvinfer1::IPluginV3;
using Severity = nvinfer1::ILogger::Severity;

namespace {

constexpr int32_t kOk = 0;
constexpr int32_t kFailed = 1;

// For TensorRT's timing cache, whose key it is beside the shapes, and for the engine inspector.
std::string describe(OpSpec const& spec, Attributes const& attributes) {
    return std::string("fastocr ") + kPluginVersion + " " + spec.name + " scale=" + std::to_string(attributes.scale)
        + " per_kv_head=" + std::to_string(attributes.perKvHead)
        + " alias_banks=" + std::to_string(attributes.aliasBanks)
        + " tune_splits=" + std::to_string(attributes.tuneSplits);
}

} // namespace

AttentionPlugin::AttentionPlugin(Op op, Attributes const& attributes, nvinfer1::TensorRTPhase phase)
    : spec_(specOf(op))
    , attributes_(attributes)
    , phase_(phase)
    , serialized_(op, attributes)
    , description_(describe(spec_, attributes)) {}

nvinfer1::IPluginCapability* AttentionPlugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept {
    switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

IPluginV3* AttentionPlugin::clone() noexcept {
    return guarded(name(), static_cast<IPluginV3*>(nullptr), [&]() -> IPluginV3* {
        auto* const copy = new AttentionPlugin(spec_.op, attributes_, phase_);
        copy->tactic_ = tactic_;
        return copy;
    });
}

char const* AttentionPlugin::getPluginName() const noexcept {
    return spec_.name;
}

char const* AttentionPlugin::getPluginVersion() const noexcept {
    return kPluginVersion;
}

char const* AttentionPlugin::getPluginNamespace() const noexcept {
    return kPluginNamespace;
}

int32_t AttentionPlugin::setTactic(int32_t tactic) noexcept {
    return guarded(name(), kFailed, [&] {
        int32_t const last = getNbTactics(); // the workspace has room for those of getValidTactics alone
        if (tactic < 0 || tactic > last) {
            throw PluginError("tactic is " + std::to_string(tactic) + "; it must be 0 to " + std::to_string(last));
        }
        tactic_ = tactic;
        return kOk;
    });
}

int32_t AttentionPlugin::onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t nbInputs,
    nvinfer1::PluginTensorDesc const* out, int32_t nbOutputs) noexcept {
    return guarded(name(), kFailed, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        callShape(spec_, attributes_, in, out);
        return kOk;
    });
}

int32_t AttentionPlugin::enqueue(nvinfer1::PluginTensorDesc const* inputDesc,
    nvinfer1::PluginTensorDesc const* outputDesc, void const* const* inputs, void* const* outputs, void* workspace,
    cudaStream_t stream) noexcept {
    return guarded(name(), kFailed, [&] {
        FastocrShape shape = callShape(spec_, attributes_, inputDesc, outputDesc);
        shape.num_splits = tactic_ == 0 ? 0 : kTacticSplits[tactic_ - 1];
        warnOfCopies(shape, inputs, outputs);
        FastocrTensors const tensors = bindTensors(spec_.op, inputs, outputs);
        // No larger than what getWorkspaceSize asked for: the size never falls when a dimension rises.
        int const error = fastocr_run(&shape, &tensors, workspace, fastocr_workspace_size(&shape), stream);
        if (error != 0) {
            throw PluginError("the kernels could not be started: CUDA error " + std::to_string(error));
        }
        return kOk;
    });
}

void AttentionPlugin::warnOfCopies(
    FastocrShape const& shape, void const* const* inputs, void* const* outputs) noexcept {
    // While an engine is built its tensors have buffers of their own, which nobody could bind.
    if (warned_ || phase_ != nvinfer1::TensorRTPhase::kRUNTIME) {
        return;
    }
    for (Bank const& bank : kBanks) {
        if (inputs[bank.past] == outputs[bank.present]) {
            continue;
        }
        warned_ = true;
        guarded(name(), kFailed, [&] {
            bool const visual = bank.past == kPastVisualKey || bank.past == kPastVisualValue;
            int64_t const rows = visual ? shape.visual_capacity : shape.text_capacity;
            int64_t const bytes = int64_t{shape.batch} * shape.num_key_value_heads * rows * shape.head_dim
                * (shape.dtype == FASTOCR_FLOAT32 ? 4 : 2);
            std::string const message = std::string(spec_.outputs[bank.present].name) + " is not at the address of "
                + spec_.inputs[bank.past].name + ", so that every call copies its " + std::to_string(bytes)
                + " bytes; bind both to one buffer to write in place";
            log(Severity::kWARNING, name(), message.c_str());
            return kOk;
        });
        return;
    }
}

IPluginV3* AttentionPlugin::attachToContext(nvinfer1::IPluginResourceContext* /*context*/) noexcept {
    return clone();
}

nvinfer1::PluginFieldCollection const* AttentionPlugin::getFieldsToSerialize() noexcept {
    return serialized_.collection();
}

} // namespace fastocr::plugin
