// From TensorRT's tensor descriptions to the kernels' FastocrShape, checking every dtype and dimension on the way.
//
// All functions throw PluginError with a sentence that names the tensor, the value and the limit.
#ifndef FASTOCR_PLUGIN_OP_SHAPE_H
#define FASTOCR_PLUGIN_OP_SHAPE_H

#include <cstdint>

#include "fields.h"
#include "op_tensors.h"
#include "tensorrt_headers.h"

namespace fastocr::plugin {

// inputs, outputs: the numbers that TensorRT gives.
void checkCounts(OpSpec const& spec, int32_t inputs, int32_t outputs);

// Of the inputs alone; `types` and `dims` in the order of spec.inputs.
void checkTypes(OpSpec const& spec, nvinfer1::DataType const* types);
void checkRanks(OpSpec const& spec, nvinfer1::DimsExprs const* dims);

// `position` counts inputs, then outputs. Whether the tensor may have this dtype and format, given the first tensor's:
// linear; one dtype for all of the model's tensors; INT64 for the others.
bool isSupported(OpSpec const& spec, int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors);

// Of one call: every dimension known, equal wherever it appears, and within what the kernels run.
FastocrShape callShape(OpSpec const& spec, Attributes const& attributes, nvinfer1::PluginTensorDesc const* inputs,
    nvinfer1::PluginTensorDesc const* outputs);

// The largest of an optimisation profile: fixed dimensions as they are, the others at the largest maximum that any
// input gives (TensorRT's bounds of an intermediate tensor may be looser than those of the inputs it came from).
FastocrShape largestShape(
    OpSpec const& spec, Attributes const& attributes, nvinfer1::DynamicPluginTensorDesc const* inputs);

} // namespace fastocr::plugin

#endif
