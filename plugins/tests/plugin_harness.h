// Drives a plugin library as TensorRT does, without TensorRT: opens the .so, takes its creators, answers its questions.
//
// NVIDIA's classes for dimension expressions are abstract, so those here compute at once; every dimension is known.
#ifndef FASTOCR_PLUGIN_TESTS_PLUGIN_HARNESS_H
#define FASTOCR_PLUGIN_TESTS_PLUGIN_HARNESS_H

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tensorrt_headers.h"

namespace fastocr::harness {

// Keeps what the plugin logs; a line starts with E: (error), W: (warning) or I: (anything else).
class RecordingLogger final : public nvinfer1::ILogger {
public:
    void log(Severity severity, nvinfer1::AsciiChar const* message) noexcept override;

    std::vector<std::string> lines;
};

// The library at `path`, whose messages go to logger(). Throws std::runtime_error where it cannot be opened or lacks an
// entry point. One at a time: the logger is the library's.
class Library {
public:
    explicit Library(std::string const& path);
    ~Library();
    Library(Library const&) = delete;
    Library& operator=(Library const&) = delete;

    std::vector<nvinfer1::IPluginCreatorV3One*> const& creators() const { return creators_; }
    nvinfer1::IPluginCreatorV3One& creator(std::string const& name) const; // std::runtime_error where there is none
    RecordingLogger& logger();

private:
    void* handle_;
    std::vector<nvinfer1::IPluginCreatorV3One*> creators_;
};

// A plugin and its three capabilities; std::runtime_error for a null plugin or a missing capability.
struct Plugin {
    explicit Plugin(nvinfer1::IPluginV3* created);

    std::unique_ptr<nvinfer1::IPluginV3> plugin;
    nvinfer1::IPluginV3OneCore* core;
    nvinfer1::IPluginV3OneBuildV2* build;
    nvinfer1::IPluginV3OneRuntime* runtime;
};

// A copy of serialised fields, as they come out of an engine file: the plugin that wrote them may be gone.
class StoredFields {
public:
    explicit StoredFields(nvinfer1::PluginFieldCollection const& fields);

    nvinfer1::PluginFieldCollection const* collection() const { return &collection_; }

private:
    std::deque<std::string> names_;
    std::deque<std::vector<char>> values_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
};

struct Tensor {
    nvinfer1::DataType type;
    std::vector<int64_t> dims;
};

nvinfer1::PluginTensorDesc describe(Tensor const& tensor); // linear
// A profile in which nothing is open: dims = min = opt = max.
nvinfer1::DynamicPluginTensorDesc fixedProfile(Tensor const& tensor);

// getOutputShapes for inputs of known dimensions. Returns its code; on 0, `outputs` holds the shapes.
int32_t outputShapes(nvinfer1::IPluginV3OneBuild& build, std::vector<Tensor> const& inputs,
    std::vector<std::vector<int64_t>>& outputs);

} // namespace fastocr::harness

#endif
