#include "fields.h"

#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "logging.h"

namespace fastocr::plugin {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

namespace {

constexpr char const* kScale = "scale";

struct Flag {
    char const* name;
    int32_t Attributes::*member;
    bool focalOnly;
};

// All of them are 0 or 1.
constexpr Flag kFlags[] = {
    {"dense_prefill", &Attributes::densePrefill, false},
    {"per_kv_head", &Attributes::perKvHead, true},
    {"alias_banks", &Attributes::aliasBanks, false},
    {"tune_splits", &Attributes::tuneSplits, false},
};

bool has(Flag const& flag, Op op) {
    return !flag.focalOnly || op == Op::kFocal;
}

char const* typeName(PluginFieldType type) {
    switch (type) {
    case PluginFieldType::kFLOAT16: return "FLOAT16";
    case PluginFieldType::kFLOAT32: return "FLOAT32";
    case PluginFieldType::kFLOAT64: return "FLOAT64";
    case PluginFieldType::kINT8: return "INT8";
    case PluginFieldType::kINT16: return "INT16";
    case PluginFieldType::kINT32: return "INT32";
    case PluginFieldType::kCHAR: return "CHAR";
    case PluginFieldType::kINT64: return "INT64";
    default: return "of another type";
    }
}

std::string quoted(char const* name) {
    return std::string("the attribute '") + name + "'";
}

void checkSingle(PluginField const& field) {
    if (field.length != 1 || field.data == nullptr) {
        throw PluginError(quoted(field.name) + " has " + std::to_string(field.length) + " values; it must have 1");
    }
}

// Fields of an engine file lie where they lie, not where a Value must.
template <typename Value>
Value readValue(PluginField const& field) {
    Value value;
    std::memcpy(&value, field.data, sizeof(value));
    return value;
}

int64_t readInteger(PluginField const& field) {
    checkSingle(field);
    if (field.type == PluginFieldType::kINT64) {
        return readValue<int64_t>(field);
    }
    if (field.type == PluginFieldType::kINT32) {
        return readValue<int32_t>(field);
    }
    throw PluginError(quoted(field.name) + " is " + typeName(field.type) + "; it must be INT64 or INT32");
}

float readScale(PluginField const& field) {
    checkSingle(field);
    if (field.type != PluginFieldType::kFLOAT32) {
        throw PluginError(quoted(kScale) + " is " + typeName(field.type) + "; it must be FLOAT32");
    }
    auto const scale = readValue<float>(field);
    if (!std::isfinite(scale) || scale <= 0.F) {
        throw PluginError(quoted(kScale) + " is " + std::to_string(scale) + "; it must be finite and above 0");
    }
    return scale;
}

Flag const* findFlag(Op op, std::string const& name) {
    for (Flag const& flag : kFlags) {
        if (has(flag, op) && name == flag.name) {
            return &flag;
        }
    }
    return nullptr;
}

std::string knownNames(Op op) {
    std::string names = kScale;
    for (Flag const& flag : kFlags) {
        names += has(flag, op) ? std::string(", ") + flag.name : "";
    }
    return names;
}

void readField(Op op, PluginField const& field, Attributes& attributes) {
    if (std::string(field.name) == kScale) {
        attributes.scale = readScale(field);
        return;
    }
    Flag const* const flag = findFlag(op, field.name);
    if (flag == nullptr) {
        throw PluginError(quoted(field.name) + " is unknown; it takes " + knownNames(op));
    }
    int64_t const value = readInteger(field);
    // 0 of dense_prefill is told below, as is its absence: both are the form that has no plugin.
    if (value != 0 && value != 1) {
        std::string const allowed = flag->member == &Attributes::densePrefill ? "1" : "0 or 1";
        throw PluginError(quoted(field.name) + " is " + std::to_string(value) + "; it must be " + allowed);
    }
    attributes.*(flag->member) = static_cast<int32_t>(value);
}

} // namespace

std::vector<PluginField> fieldNames(Op op) {
    std::vector<PluginField> names{{kScale, nullptr, PluginFieldType::kFLOAT32, 1}};
    for (Flag const& flag : kFlags) {
        if (has(flag, op)) {
            names.emplace_back(flag.name, nullptr, PluginFieldType::kINT32, 1);
        }
    }
    return names;
}

Attributes parseFields(Op op, nvinfer1::PluginFieldCollection const* fields) {
    if (fields == nullptr || (fields->nbFields > 0 && fields->fields == nullptr)) {
        throw PluginError("there is no field collection; it must hold scale and dense_prefill");
    }
    Attributes attributes;
    std::set<std::string> seen;
    for (int32_t i = 0; i < fields->nbFields; ++i) {
        PluginField const& field = fields->fields[i];
        if (field.name == nullptr) {
            throw PluginError("field " + std::to_string(i) + " has no name");
        }
        std::string const name = field.name;
        if (name == "plugin_version" || name == "plugin_namespace") {
            continue;
        }
        if (!seen.insert(name).second) {
            throw PluginError(quoted(field.name) + " is given twice");
        }
        readField(op, field, attributes);
    }
    if (seen.count(kScale) == 0) {
        throw PluginError(quoted(kScale) + " is missing; it is the factor of the scores, often head_dim ** -0.5");
    }
    if (attributes.densePrefill != 1) {
        throw PluginError(quoted("dense_prefill") + (seen.count("dense_prefill") == 0 ? " is missing" : " is 0")
            + "; it must be 1, since only the engine form (decoder_plugin.onnx) is a plugin");
    }
    return attributes;
}

SerializedFields::SerializedFields(Op op, Attributes const& attributes) : attributes_(attributes) {
    fields_.emplace_back(kScale, &attributes_.scale, PluginFieldType::kFLOAT32, 1);
    for (Flag const& flag : kFlags) {
        if (has(flag, op)) {
            fields_.emplace_back(flag.name, &(attributes_.*(flag.member)), PluginFieldType::kINT32, 1);
        }
    }
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

} // namespace fastocr::plugin
