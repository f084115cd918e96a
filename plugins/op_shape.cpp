#include "op_shape.h"

#include <algorithm>
#include <limits>
#include <string>

#include "logging.h"

namespace fastocr::plugin {

using nvinfer1::DataType;

namespace {

constexpr int64_t kFree = -1; // TensorRT's mark of a dimension that a profile leaves open

char const* typeName(DataType type) {
    switch (type) {
    case DataType::kFLOAT: return "FP32";
    case DataType::kHALF: return "FP16";
    case DataType::kBF16: return "BF16";
    case DataType::kINT8: return "INT8";
    case DataType::kINT32: return "INT32";
    case DataType::kINT64: return "INT64";
    case DataType::kBOOL: return "BOOL";
    default: return "of another type";
    }
}

bool isModelType(DataType type) {
    return type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
}

int32_t libraryType(DataType type) {
    switch (type) {
    case DataType::kHALF: return FASTOCR_FLOAT16;
    case DataType::kBF16: return FASTOCR_BFLOAT16;
    default: return FASTOCR_FLOAT32;
    }
}

void checkType(TensorSpec const& tensor, DataType type, TensorSpec const& first, DataType modelType) {
    std::string const is = std::string(tensor.name) + " is " + typeName(type);
    if (tensor.kind == Kind::kIndex) {
        if (type != DataType::kINT64) {
            throw PluginError(is + "; it must be INT64");
        }
    } else if (!isModelType(type)) {
        throw PluginError(is + "; it must be FP32, FP16 or BF16");
    } else if (type != modelType) {
        throw PluginError(
            is + " and " + first.name + " is " + typeName(modelType) + "; all but the INT64 tensors share one type");
    }
}

void checkRank(TensorSpec const& tensor, int32_t nbDims) {
    auto const rank = static_cast<int32_t>(tensor.axes.size());
    if (nbDims != rank) {
        throw PluginError(std::string(tensor.name) + " has " + std::to_string(nbDims) + " dimensions; it must have "
            + std::to_string(rank));
    }
}

// One size per axis, and the first tensor that gave it.
class AxisSizes {
public:
    AxisSizes() { set(Axis::kOne, 1, nullptr); }

    void fix(TensorSpec const& tensor, Axis axis, int64_t size) {
        std::string const is = std::string(tensor.name) + " has " + axisName(axis) + " " + std::to_string(size);
        if (axis == Axis::kOne) {
            if (size != 1) {
                throw PluginError(std::string(tensor.name) + " has " + std::to_string(size) + " entries; it must have 1");
            }
            return;
        }
        if (size < 1 || size > std::numeric_limits<int32_t>::max()) {
            throw PluginError(is + "; it must be 1 to " + std::to_string(std::numeric_limits<int32_t>::max()));
        }
        TensorSpec const* const from = from_[index(axis)];
        if (from != nullptr && sizes_[index(axis)] != size) {
            throw PluginError(is + " and " + from->name + " has " + std::to_string(sizes_[index(axis)])
                + "; they must be equal");
        }
        if (from == nullptr) {
            set(axis, size, &tensor);
        }
    }

    // An open axis of a profile. What is fixed by some tensor stays.
    void atMost(Axis axis, int64_t size) {
        int64_t const limit = std::numeric_limits<int32_t>::max();
        bounds_[index(axis)] = std::max(bounds_[index(axis)], std::min(size, limit));
    }

    // 0 for an axis that no tensor showed.
    int32_t of(Axis axis) const {
        std::size_t const i = index(axis);
        return static_cast<int32_t>(sizes_[i] != 0 ? sizes_[i] : bounds_[i]);
    }

private:
    static std::size_t index(Axis axis) { return static_cast<std::size_t>(axis); }

    void set(Axis axis, int64_t size, TensorSpec const* from) {
        sizes_[index(axis)] = size;
        from_[index(axis)] = from;
    }

    std::array<int64_t, static_cast<std::size_t>(Axis::kCount)> sizes_{};
    std::array<int64_t, static_cast<std::size_t>(Axis::kCount)> bounds_{};
    std::array<TensorSpec const*, static_cast<std::size_t>(Axis::kCount)> from_{};
};

void fixAll(TensorSpec const& tensor, nvinfer1::Dims const& dims, AxisSizes& sizes) {
    checkRank(tensor, dims.nbDims);
    for (int32_t d = 0; d < dims.nbDims; ++d) {
        sizes.fix(tensor, tensor.axes[d], dims.d[d]);
    }
}

FastocrShape checkedShape(OpSpec const& spec, Attributes const& attributes, DataType type, AxisSizes const& sizes) {
    FastocrShape shape{};
    shape.op = static_cast<int32_t>(spec.op);
    shape.dtype = libraryType(type);
    shape.batch = sizes.of(Axis::kBatch);
    shape.num_attention_heads = sizes.of(Axis::kHeads);
    shape.num_key_value_heads = sizes.of(Axis::kKvHeads);
    shape.rows = sizes.of(Axis::kRows);
    shape.head_dim = sizes.of(Axis::kHeadDim);
    shape.visual_capacity = sizes.of(Axis::kVisualCapacity);
    shape.text_capacity = sizes.of(Axis::kTextCapacity);
    shape.fixation_size = sizes.of(Axis::kFixationSize);
    shape.per_kv_head = attributes.perKvHead;
    shape.scale = attributes.scale;
    char message[512] = "";
    if (fastocr_check(&shape, message, sizeof(message)) != 0) {
        throw PluginError(message);
    }
    return shape;
}

} // namespace

void checkCounts(OpSpec const& spec, int32_t inputs, int32_t outputs) {
    if (inputs != spec.numInputs() || outputs != spec.numOutputs()) {
        throw PluginError("it has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs)
            + " outputs; the engine form takes " + std::to_string(spec.numInputs()) + " and gives "
            + std::to_string(spec.numOutputs()));
    }
}

void checkTypes(OpSpec const& spec, DataType const* types) {
    for (int32_t i = 0; i < spec.numInputs(); ++i) {
        checkType(spec.inputs[i], types[i], spec.inputs[kQuery], types[kQuery]);
    }
}

void checkRanks(OpSpec const& spec, nvinfer1::DimsExprs const* dims) {
    for (int32_t i = 0; i < spec.numInputs(); ++i) {
        checkRank(spec.inputs[i], dims[i].nbDims);
    }
}

bool isSupported(OpSpec const& spec, int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors) {
    nvinfer1::PluginTensorDesc const& tensor = tensors[position].desc;
    if (tensor.format != nvinfer1::TensorFormat::kLINEAR) {
        return false;
    }
    int32_t const inputs = spec.numInputs();
    TensorSpec const& expected = position < inputs ? spec.inputs[position] : spec.outputs[position - inputs];
    if (expected.kind == Kind::kIndex) {
        return tensor.type == DataType::kINT64;
    }
    return isModelType(tensor.type) && tensor.type == tensors[kQuery].desc.type;
}

FastocrShape callShape(OpSpec const& spec, Attributes const& attributes, nvinfer1::PluginTensorDesc const* inputs,
    nvinfer1::PluginTensorDesc const* outputs) {
    DataType const type = inputs[kQuery].type;
    AxisSizes sizes;
    for (int32_t i = 0; i < spec.numInputs(); ++i) {
        checkType(spec.inputs[i], inputs[i].type, spec.inputs[kQuery], type);
        fixAll(spec.inputs[i], inputs[i].dims, sizes);
    }
    for (int32_t i = 0; i < spec.numOutputs(); ++i) {
        checkType(spec.outputs[i], outputs[i].type, spec.inputs[kQuery], type);
        fixAll(spec.outputs[i], outputs[i].dims, sizes);
    }
    return checkedShape(spec, attributes, type, sizes);
}

FastocrShape largestShape(
    OpSpec const& spec, Attributes const& attributes, nvinfer1::DynamicPluginTensorDesc const* inputs) {
    DataType const type = inputs[kQuery].desc.type;
    AxisSizes sizes;
    for (int32_t i = 0; i < spec.numInputs(); ++i) {
        TensorSpec const& tensor = spec.inputs[i];
        checkType(tensor, inputs[i].desc.type, spec.inputs[kQuery], type);
        nvinfer1::Dims const& dims = inputs[i].desc.dims;
        checkRank(tensor, dims.nbDims);
        for (int32_t d = 0; d < dims.nbDims; ++d) {
            if (dims.d[d] == kFree) {
                sizes.atMost(tensor.axes[d], inputs[i].max.d[d]);
            } else {
                sizes.fix(tensor, tensor.axes[d], dims.d[d]);
            }
        }
    }
    return checkedShape(spec, attributes, type, sizes);
}

} // namespace fastocr::plugin
