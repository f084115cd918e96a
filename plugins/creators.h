// The creators: one per op, listed for TensorRT's registry.
#ifndef FASTOCR_PLUGIN_CREATORS_H
#define FASTOCR_PLUGIN_CREATORS_H

#include <cstdint>
#include <vector>

#include "op_tensors.h"
#include "tensorrt_headers.h"

namespace fastocr::plugin {

class AttentionCreator final : public nvinfer1::IPluginCreatorV3One {
public:
    explicit AttentionCreator(Op op);

    // nullptr for fields that fields.h refuses; the reason is logged with the layer's name.
    nvinfer1::IPluginV3* createPlugin(
        char const* name, nvinfer1::PluginFieldCollection const* fc, nvinfer1::TensorRTPhase phase) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override;
    char const* getPluginName() const noexcept override;
    char const* getPluginVersion() const noexcept override;
    char const* getPluginNamespace() const noexcept override;

private:
    OpSpec const& spec_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
};

} // namespace fastocr::plugin

#endif
