// Calls for the C++ tests: an op's tensors by name, with memory for them, and a plugin made from fields.
#ifndef FASTOCR_PLUGIN_TESTS_PLUGIN_CALLS_H
#define FASTOCR_PLUGIN_TESTS_PLUGIN_CALLS_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plugin_harness.h"

namespace fastocr::harness {

// Sizes of a call. FP32; every bank has the same capacity.
struct Sizes {
    int64_t batch = 2;
    int64_t heads = 4;
    int64_t kvHeads = 2;
    int64_t rows = 1;
    int64_t headDim = 64;
    int64_t capacity = 12;
    int64_t fixation = 3;
};

struct NamedTensor {
    std::string name;
    Tensor tensor;
};

// Inputs and outputs of DenseAttention, FocalAttention or GatheredAttention, in order.
std::vector<NamedTensor> inputsOf(std::string const& op, Sizes const& sizes);
std::vector<NamedTensor> outputsOf(std::string const& op, Sizes const& sizes);
std::vector<Tensor> tensorsOf(std::vector<NamedTensor> const& named);
int32_t positionOf(std::vector<NamedTensor> const& named, std::string const& name);

// Fields with the values they point to. A collection is good until the next call of collection().
class Fields {
public:
    Fields& number(std::string const& name, float value);
    Fields& integer(std::string const& name, int64_t value);
    Fields& narrow(std::string const& name, int32_t value);
    Fields& text(std::string const& name, std::string const& value);
    nvinfer1::PluginFieldCollection const* collection();

private:
    struct Field {
        std::string name;
        std::vector<char> bytes;
        nvinfer1::PluginFieldType type;
        int32_t length;
    };

    std::vector<Field> owned_;
    std::vector<nvinfer1::PluginField> fields_;
    nvinfer1::PluginFieldCollection collection_{};
};

Fields goodFields(); // scale 0.125 and dense_prefill 1

// One call with memory: float tensors are filled with small values that differ, INT64 tensors with zeros.
class Call {
public:
    Call(std::string const& op, Sizes const& sizes);

    float* values(std::string const& name);   // of an FP32 input or output
    int64_t* numbers(std::string const& name); // of an INT64 input or output
    void shareBanks();                         // present_* become the memory of past_*

    int32_t enqueue(Plugin& plugin, std::vector<char>& workspace);

private:
    void* memory(std::string const& name);

    std::vector<NamedTensor> inputs_;
    std::vector<NamedTensor> outputs_;
    std::map<std::string, std::vector<int64_t>> memory_; // of 8-byte words, so that INT64 lies aligned
    bool shared_ = false;
};

} // namespace fastocr::harness

#endif
