// One op from the creator to its results, as a C function: what tests/test_plugin.py calls with numpy's arrays.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "plugin_harness.h"

namespace {

using namespace fastocr::harness;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

constexpr int32_t kMaxDims = 8;

} // namespace

// type: of nvinfer1::DataType. data: of row-major values.
struct DriverTensor {
    void* data;
    int32_t type;
    int32_t nbDims;
    int64_t dims[kMaxDims];
};

namespace {

std::vector<Tensor> tensorsOf(DriverTensor const* given, int32_t count) {
    std::vector<Tensor> tensors;
    for (int32_t i = 0; i < count; ++i) {
        std::vector<int64_t> const dims(given[i].dims, given[i].dims + given[i].nbDims);
        tensors.push_back({static_cast<nvinfer1::DataType>(given[i].type), dims});
    }
    return tensors;
}

void expect(bool holds, std::string const& what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

// As the builder does: types, shapes, formats, configuration. Returns the bytes of workspace.
size_t build(Plugin& plugin, std::vector<Tensor> const& inputs, std::vector<Tensor> const& outputs) {
    auto const numInputs = static_cast<int32_t>(inputs.size());
    auto const numOutputs = static_cast<int32_t>(outputs.size());
    expect(plugin.build->getNbOutputs() == numOutputs, "getNbOutputs");
    std::vector<nvinfer1::DataType> types;
    std::vector<nvinfer1::DataType> outputTypes(outputs.size());
    std::vector<nvinfer1::DynamicPluginTensorDesc> profiles;
    for (Tensor const& tensor : inputs) {
        types.push_back(tensor.type);
        profiles.push_back(fixedProfile(tensor));
    }
    for (Tensor const& tensor : outputs) {
        profiles.push_back(fixedProfile(tensor));
    }
    expect(plugin.build->getOutputDataTypes(outputTypes.data(), numOutputs, types.data(), numInputs) == 0,
        "getOutputDataTypes");
    std::vector<std::vector<int64_t>> shapes;
    expect(outputShapes(*plugin.build, inputs, shapes) == 0, "getOutputShapes");
    for (int32_t i = 0; i < numOutputs; ++i) {
        expect(outputTypes[i] == outputs[i].type, "the type of output " + std::to_string(i));
        expect(shapes[i] == outputs[i].dims, "the shape of output " + std::to_string(i));
    }
    for (int32_t i = 0; i < numInputs + numOutputs; ++i) {
        expect(plugin.build->supportsFormatCombination(i, profiles.data(), numInputs, numOutputs),
            "supportsFormatCombination of tensor " + std::to_string(i));
    }
    auto const* const in = profiles.data();
    auto const* const out = in + numInputs;
    expect(plugin.build->configurePlugin(in, numInputs, out, numOutputs) == 0, "configurePlugin");
    return plugin.build->getWorkspaceSize(in, numInputs, out, numOutputs);
}

void run(Library& library, char const* op, float scale, int32_t perKvHead, int32_t tactic, DriverTensor const* in,
    int32_t numInputs, DriverTensor* out, int32_t numOutputs) {
    std::vector<Tensor> const inputs = tensorsOf(in, numInputs);
    std::vector<Tensor> const outputs = tensorsOf(out, numOutputs);
    int64_t const densePrefill = 1; // INT64, as the ONNX parser hands whole numbers over
    int64_t const headwise = perKvHead;
    int64_t const tune = tactic != 0;
    std::vector<PluginField> fields{{"scale", &scale, PluginFieldType::kFLOAT32, 1},
        {"dense_prefill", &densePrefill, PluginFieldType::kINT64, 1},
        {"tune_splits", &tune, PluginFieldType::kINT64, 1}};
    if (std::string(op) == "FocalAttention") {
        fields.emplace_back("per_kv_head", &headwise, PluginFieldType::kINT64, 1);
    }
    nvinfer1::PluginFieldCollection const collection{static_cast<int32_t>(fields.size()), fields.data()};
    nvinfer1::IPluginCreatorV3One& creator = library.creator(op);

    size_t workspaceSize = 0;
    std::unique_ptr<StoredFields> stored;
    {
        Plugin built(creator.createPlugin(op, &collection, nvinfer1::TensorRTPhase::kBUILD));
        workspaceSize = build(built, inputs, outputs);
        stored = std::make_unique<StoredFields>(*built.runtime->getFieldsToSerialize());
    }
    Plugin loaded(creator.createPlugin(op, stored->collection(), nvinfer1::TensorRTPhase::kRUNTIME));
    Plugin attached(loaded.runtime->attachToContext(nullptr));

    std::vector<nvinfer1::PluginTensorDesc> inputDescs;
    std::vector<nvinfer1::PluginTensorDesc> outputDescs;
    std::vector<void const*> inputData;
    std::vector<void*> outputData;
    for (int32_t i = 0; i < numInputs; ++i) {
        inputDescs.push_back(describe(inputs[i]));
        inputData.push_back(in[i].data);
    }
    for (int32_t i = 0; i < numOutputs; ++i) {
        outputDescs.push_back(describe(outputs[i]));
        outputData.push_back(out[i].data);
    }
    expect(attached.runtime->setTactic(tactic) == 0, "setTactic");
    expect(attached.runtime->onShapeChange(inputDescs.data(), numInputs, outputDescs.data(), numOutputs) == 0,
        "onShapeChange");
    constexpr size_t kAlignment = 256; // what TensorRT promises of a workspace
    size_t const rounded = (workspaceSize + kAlignment - 1) / kAlignment * kAlignment;
    std::unique_ptr<void, void (*)(void*)> const workspace(
        std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded), std::free);
    expect(attached.runtime->enqueue(inputDescs.data(), outputDescs.data(), inputData.data(), outputData.data(),
               workspace.get(), nullptr)
            == 0,
        "enqueue");
}

} // namespace

// Creates `op` of the library at `path`, takes it through the builder's questions, serialises it, creates it again for
// the run-time phase and enqueues it once. tactic 0: none. Returns 0; otherwise 1, and the first line of `log` says
// which step failed. The other lines of `log` (size bytes) are what the plugin logged.
extern "C" __attribute__((visibility("default"))) int fastocr_drive_plugin(char const* path, char const* op,
    float scale, int32_t per_kv_head, int32_t tactic, DriverTensor const* inputs, int32_t num_inputs,
    DriverTensor* outputs, int32_t num_outputs, char* log, size_t size) {
    std::ostringstream lines;
    int code = 0;
    try {
        Library library(path);
        library.logger().lines.clear();
        try {
            run(library, op, scale, per_kv_head, tactic, inputs, num_inputs, outputs, num_outputs);
        } catch (std::exception const& error) {
            code = 1;
            lines << error.what() << '\n';
        }
        for (std::string const& line : library.logger().lines) {
            lines << line << '\n';
        }
    } catch (std::exception const& error) {
        code = 1;
        lines << error.what() << '\n';
    }
    std::snprintf(log, size, "%s", lines.str().c_str());
    return code;
}
