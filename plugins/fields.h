// A plugin's attributes: from the fields of a creator call (the ONNX parser's, or an engine's), and back to fields.
#ifndef FASTOCR_PLUGIN_FIELDS_H
#define FASTOCR_PLUGIN_FIELDS_H

#include <cstdint>
#include <vector>

#include "op_tensors.h"
#include "tensorrt_headers.h"

namespace fastocr::plugin {

struct Attributes {
    float scale{0.F};        // of the scores; required, above 0
    int32_t densePrefill{0}; // required, 1: the engine form is the only one that is a plugin
    int32_t perKvHead{1};    // FocalAttention: 1 selects for each KV head, 0 once for all
    int32_t aliasBanks{0};   // 1 declares each present_* an alias of its past_*
    int32_t tuneSplits{0};   // 1 lets the builder time several split counts
};

// The attributes that `op` takes, for IPluginCreatorV3One::getFieldNames.
std::vector<nvinfer1::PluginField> fieldNames(Op op);

// Throws PluginError for a missing, unknown, doubled or wrong field. Whole numbers may be INT64 (the ONNX parser) or
// INT32; plugin_version and plugin_namespace are accepted and not read, since the registry has matched them already.
Attributes parseFields(Op op, nvinfer1::PluginFieldCollection const* fields);

// Fields that parseFields reads back to the same attributes. They point into this object: it must outlive their use,
// and is therefore neither copied nor moved.
class SerializedFields {
public:
    SerializedFields(Op op, Attributes const& attributes);
    SerializedFields(SerializedFields const&) = delete;
    SerializedFields& operator=(SerializedFields const&) = delete;

    nvinfer1::PluginFieldCollection const* collection() const noexcept { return &collection_; }

private:
    Attributes attributes_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
};

} // namespace fastocr::plugin

#endif
