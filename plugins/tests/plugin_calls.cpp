#include "plugin_calls.h"

#include <stdexcept>

namespace fastocr::harness {

using nvinfer1::DataType;
using nvinfer1::PluginFieldType;

namespace {

char const* const kBanks[] = {"visual_key", "visual_value", "text_key", "text_value"};

int64_t countOf(Tensor const& tensor) {
    int64_t count = 1;
    for (int64_t const dim : tensor.dims) {
        count *= dim;
    }
    return count;
}

template <typename Value>
std::vector<char> bytesOf(Value value) {
    auto const* const first = reinterpret_cast<char const*>(&value);
    return {first, first + sizeof(value)};
}

} // namespace

std::vector<NamedTensor> inputsOf(std::string const& op, Sizes const& s) {
    Tensor const rows{DataType::kFLOAT, {s.batch, s.kvHeads, s.rows, s.headDim}};
    Tensor const bank{DataType::kFLOAT, {s.batch, s.kvHeads, s.capacity, s.headDim}};
    Tensor const pages{DataType::kINT64, {s.batch}};
    Tensor const valid{DataType::kINT64, {s.batch, s.rows}};
    Tensor const one{DataType::kINT64, {1}};
    std::vector<NamedTensor> inputs{{"query", {DataType::kFLOAT, {s.batch, s.heads, s.rows, s.headDim}}},
        {"key", rows}, {"value", rows}};
    for (char const* const name : kBanks) {
        inputs.push_back({std::string("past_") + name, bank});
    }
    inputs.push_back({"visual_length", pages});
    inputs.push_back({"text_length", pages});
    inputs.push_back({"visual_valid", valid});
    inputs.push_back({"text_valid", valid});
    if (op == "FocalAttention") {
        inputs.push_back({"num_fixations", pages});
        inputs.push_back({"fixation_slots", {DataType::kINT64, {s.fixation}}});
    } else if (op == "GatheredAttention") {
        inputs.push_back({"fixation", {DataType::kINT64, {s.batch, s.kvHeads, s.fixation}}});
        inputs.push_back({"attend_all", one});
    }
    inputs.push_back({"status", one});
    return inputs;
}

std::vector<NamedTensor> outputsOf(std::string const& op, Sizes const& s) {
    std::vector<NamedTensor> outputs{{"output", {DataType::kFLOAT, {s.batch, s.heads, s.rows, s.headDim}}}};
    for (char const* const name : kBanks) {
        outputs.push_back(
            {std::string("present_") + name, {DataType::kFLOAT, {s.batch, s.kvHeads, s.capacity, s.headDim}}});
    }
    if (op == "FocalAttention") {
        outputs.push_back({"next_fixation", {DataType::kINT64, {s.batch, s.kvHeads, s.fixation}}});
    }
    outputs.push_back({"next_status", {DataType::kINT64, {1}}});
    return outputs;
}

std::vector<Tensor> tensorsOf(std::vector<NamedTensor> const& named) {
    std::vector<Tensor> tensors;
    for (NamedTensor const& entry : named) {
        tensors.push_back(entry.tensor);
    }
    return tensors;
}

int32_t positionOf(std::vector<NamedTensor> const& named, std::string const& name) {
    for (std::size_t i = 0; i < named.size(); ++i) {
        if (named[i].name == name) {
            return static_cast<int32_t>(i);
        }
    }
    throw std::runtime_error("no tensor is called " + name);
}

Fields& Fields::number(std::string const& name, float value) {
    owned_.push_back({name, bytesOf(value), PluginFieldType::kFLOAT32, 1});
    return *this;
}

Fields& Fields::integer(std::string const& name, int64_t value) {
    owned_.push_back({name, bytesOf(value), PluginFieldType::kINT64, 1});
    return *this;
}

Fields& Fields::narrow(std::string const& name, int32_t value) {
    owned_.push_back({name, bytesOf(value), PluginFieldType::kINT32, 1});
    return *this;
}

Fields& Fields::text(std::string const& name, std::string const& value) {
    std::vector<char> const bytes(value.begin(), value.end());
    owned_.push_back({name, bytes, PluginFieldType::kCHAR, static_cast<int32_t>(value.size())});
    return *this;
}

nvinfer1::PluginFieldCollection const* Fields::collection() {
    fields_.clear();
    for (Field const& field : owned_) {
        fields_.emplace_back(field.name.c_str(), field.bytes.data(), field.type, field.length);
    }
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
    return &collection_;
}

Fields goodFields() {
    Fields fields;
    fields.number("scale", 0.125F).integer("dense_prefill", 1);
    return fields;
}

Call::Call(std::string const& op, Sizes const& sizes) : inputs_(inputsOf(op, sizes)), outputs_(outputsOf(op, sizes)) {
    for (auto const* const side : {&inputs_, &outputs_}) {
        for (NamedTensor const& entry : *side) {
            memory_[entry.name].resize(countOf(entry.tensor));
        }
    }
    uint32_t state = 1;
    for (NamedTensor const& entry : inputs_) {
        if (entry.tensor.type == DataType::kFLOAT) {
            float* const data = values(entry.name);
            for (int64_t i = 0; i < countOf(entry.tensor); ++i) {
                state = state * 1664525U + 1013904223U; // a linear congruential generator
                data[i] = static_cast<float>(state >> 8U) / static_cast<float>(1U << 23U) - 1.F;
            }
        }
    }
}

float* Call::values(std::string const& name) {
    return static_cast<float*>(memory(name));
}

int64_t* Call::numbers(std::string const& name) {
    return static_cast<int64_t*>(memory(name));
}

void Call::shareBanks() {
    shared_ = true;
}

void* Call::memory(std::string const& name) {
    std::string const present = "present_";
    if (shared_ && name.compare(0, present.size(), present) == 0) {
        return memory_.at("past_" + name.substr(present.size())).data();
    }
    return memory_.at(name).data();
}

int32_t Call::enqueue(Plugin& plugin, std::vector<char>& workspace) {
    std::vector<nvinfer1::PluginTensorDesc> in;
    std::vector<nvinfer1::PluginTensorDesc> out;
    std::vector<void const*> inputs;
    std::vector<void*> outputs;
    for (NamedTensor const& entry : inputs_) {
        in.push_back(describe(entry.tensor));
        inputs.push_back(memory(entry.name));
    }
    for (NamedTensor const& entry : outputs_) {
        out.push_back(describe(entry.tensor));
        outputs.push_back(memory(entry.name));
    }
    auto const numInputs = static_cast<int32_t>(in.size());
    auto const numOutputs = static_cast<int32_t>(out.size());
    int32_t const refused = plugin.runtime->onShapeChange(in.data(), numInputs, out.data(), numOutputs);
    if (refused != 0) {
        return refused;
    }
    return plugin.runtime->enqueue(
        in.data(), out.data(), inputs.data(), outputs.data(), workspace.data(), nullptr);
}

} // namespace fastocr::harness
