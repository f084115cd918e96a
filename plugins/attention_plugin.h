// DenseAttention, FocalAttention and GatheredAttention as one TensorRT plugin (IPluginV3: core, build, runtime).
#ifndef FASTOCR_PLUGIN_ATTENTION_PLUGIN_H
#define FASTOCR_PLUGIN_ATTENTION_PLUGIN_H

#include <array>
#include <cstdint>
#include <string>

#include "fields.h"
#include "op_tensors.h"
#include "tensorrt_headers.h"

namespace fastocr::plugin {

inline constexpr char const* kPluginVersion = "1"; // changes when inputs, outputs or attributes do
inline constexpr char const* kPluginNamespace = "fastocr";

// Tactic t of the plugin is kTacticSplits[t - 1] parts of the keys in decode; 0 parts lets the kernels choose.
// TensorRT keeps tactic 0 for "no tactic", which is the same as 0 parts.
inline constexpr std::array<int32_t, 6> kTacticSplits{0, 1, 4, 8, 16, 32};

// The kernels keep no state between calls and neither does the plugin, but for its attributes, its tactic and whether
// it has warned: a clone is another plugin of the same attributes and tactic.
class AttentionPlugin final : public nvinfer1::IPluginV3,
                              public nvinfer1::IPluginV3OneCore,
                              public nvinfer1::IPluginV3OneBuildV2,
                              public nvinfer1::IPluginV3OneRuntime {
public:
    AttentionPlugin(Op op, Attributes const& attributes, nvinfer1::TensorRTPhase phase);

    // IPluginV3
    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;

    // IPluginV3OneCore
    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

    // IPluginV3OneBuild
    int32_t getNbOutputs() const noexcept override;
    int32_t getOutputDataTypes(nvinfer1::DataType* outputTypes, int32_t nbOutputs,
        nvinfer1::DataType const* inputTypes, int32_t nbInputs) const noexcept override;
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t nbInputs,
        nvinfer1::DimsExprs const* shapeInputs, int32_t nbShapeInputs, nvinfer1::DimsExprs* outputs, int32_t nbOutputs,
        nvinfer1::IExprBuilder& exprBuilder) noexcept override;
    bool supportsFormatCombination(int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs,
        int32_t nbOutputs) noexcept override;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* out, int32_t nbOutputs) noexcept override;
    size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t nbInputs,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t nbOutputs) const noexcept override;
    int32_t getNbTactics() noexcept override;
    int32_t getValidTactics(int32_t* tactics, int32_t nbTactics) noexcept override;
    char const* getTimingCacheID() noexcept override;
    char const* getMetadataString() noexcept override;
    int32_t getAliasedInput(int32_t outputIndex) noexcept override;

    // IPluginV3OneRuntime
    int32_t setTactic(int32_t tactic) noexcept override;
    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* in, int32_t nbInputs,
        nvinfer1::PluginTensorDesc const* out, int32_t nbOutputs) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* inputDesc, nvinfer1::PluginTensorDesc const* outputDesc,
        void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

private:
    char const* name() const noexcept { return spec_.name; }
    void warnOfCopies(FastocrShape const& shape, void const* const* inputs, void* const* outputs) noexcept;

    OpSpec const& spec_;
    Attributes const attributes_;
    nvinfer1::TensorRTPhase const phase_;
    int32_t tactic_{0};
    bool warned_{false};
    SerializedFields serialized_;
    std::string description_;
};

} // namespace fastocr::plugin

#endif
