#include "plugin_harness.h"

#include <dlfcn.h>

#include <stdexcept>

#include <NvInfer.h>
#include <NvInferImpl.h>

namespace fastocr::harness {

using nvinfer1::DimensionOperation;
using nvinfer1::DimsExprs;
using nvinfer1::IDimensionExpr;

namespace {

class LoggerFinder final : public nvinfer1::ILoggerFinder {
public:
    nvinfer1::ILogger* findLogger() override { return &logger; }
    RecordingLogger logger;
};

LoggerFinder& finder() {
    static LoggerFinder only; // outlives every library, which keeps a pointer to it
    return only;
}

class KnownSize final : public nvinfer1::apiv::VDimensionExpr {
public:
    explicit KnownSize(int64_t value) : value_(value) {}
    bool isConstant() const override { return true; }
    int64_t getConstantValue() const override { return value_; }
    bool isSizeTensor() const override { return false; }

private:
    int64_t value_;
};

class KnownExpr final : public IDimensionExpr {
public:
    explicit KnownExpr(int64_t value) : size_(value) { mImpl = &size_; }
    ~KnownExpr() noexcept override = default;

private:
    KnownSize size_;
};

class KnownExprs final : public nvinfer1::apiv::VExprBuilder {
public:
    IDimensionExpr const* constant(int64_t value) override {
        pool_.push_back(std::make_unique<KnownExpr>(value));
        return pool_.back().get();
    }

    IDimensionExpr const* operation(
        DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) override {
        return nullptr; // no output of these ops is computed from two dimensions
    }

    IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override {
        return nullptr;
    }

private:
    std::deque<std::unique_ptr<KnownExpr>> pool_;
};

class ExprBuilder final : public nvinfer1::IExprBuilder {
public:
    ExprBuilder() { mImpl = &exprs_; }
    ~ExprBuilder() noexcept override = default;

private:
    KnownExprs exprs_;
};

template <typename Function>
Function symbol(void* handle, char const* name) {
    auto* const found = reinterpret_cast<Function>(dlsym(handle, name));
    if (found == nullptr) {
        throw std::runtime_error(std::string("the library does not export ") + name);
    }
    return found;
}

int32_t bytesOf(nvinfer1::PluginFieldType type) {
    switch (type) {
    case nvinfer1::PluginFieldType::kINT64:
    case nvinfer1::PluginFieldType::kFLOAT64: return 8;
    case nvinfer1::PluginFieldType::kINT32:
    case nvinfer1::PluginFieldType::kFLOAT32: return 4;
    default: return 1;
    }
}

} // namespace

void RecordingLogger::log(Severity severity, nvinfer1::AsciiChar const* message) noexcept {
    char const* const mark = severity <= Severity::kERROR ? "E: " : severity == Severity::kWARNING ? "W: " : "I: ";
    lines.push_back(std::string(mark) + message);
}

Library::Library(std::string const& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
        throw std::runtime_error(dlerror());
    }
    using SetFinder = void (*)(nvinfer1::ILoggerFinder*);
    using GetCreators = nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&);
    symbol<SetFinder>(handle_, "setLoggerFinder")(&finder());
    int32_t count = 0;
    nvinfer1::IPluginCreatorInterface* const* const listed = symbol<GetCreators>(handle_, "getCreators")(count);
    for (int32_t i = 0; i < count; ++i) {
        creators_.push_back(static_cast<nvinfer1::IPluginCreatorV3One*>(listed[i]));
    }
}

Library::~Library() {
    dlclose(handle_);
}

nvinfer1::IPluginCreatorV3One& Library::creator(std::string const& name) const {
    for (nvinfer1::IPluginCreatorV3One* const creator : creators_) {
        if (name == creator->getPluginName()) {
            return *creator;
        }
    }
    throw std::runtime_error("the library has no creator of " + name);
}

RecordingLogger& Library::logger() {
    return finder().logger;
}

Plugin::Plugin(nvinfer1::IPluginV3* created) : plugin(created) {
    using Type = nvinfer1::PluginCapabilityType;
    if (created == nullptr) {
        throw std::runtime_error("no plugin was created");
    }
    core = static_cast<nvinfer1::IPluginV3OneCore*>(created->getCapabilityInterface(Type::kCORE));
    build = static_cast<nvinfer1::IPluginV3OneBuildV2*>(created->getCapabilityInterface(Type::kBUILD));
    runtime = static_cast<nvinfer1::IPluginV3OneRuntime*>(created->getCapabilityInterface(Type::kRUNTIME));
    if (core == nullptr || build == nullptr || runtime == nullptr) {
        throw std::runtime_error("the plugin lacks a capability");
    }
}

StoredFields::StoredFields(nvinfer1::PluginFieldCollection const& fields) {
    for (int32_t i = 0; i < fields.nbFields; ++i) {
        nvinfer1::PluginField const& field = fields.fields[i];
        auto const* const bytes = static_cast<char const*>(field.data);
        names_.emplace_back(field.name);
        values_.emplace_back(bytes, bytes + field.length * bytesOf(field.type));
        fields_.emplace_back(names_.back().c_str(), values_.back().data(), field.type, field.length);
    }
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

nvinfer1::PluginTensorDesc describe(Tensor const& tensor) {
    nvinfer1::PluginTensorDesc desc{};
    desc.type = tensor.type;
    desc.format = nvinfer1::TensorFormat::kLINEAR;
    desc.scale = 1.F;
    desc.dims.nbDims = static_cast<int32_t>(tensor.dims.size());
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
        desc.dims.d[d] = tensor.dims[d];
    }
    return desc;
}

nvinfer1::DynamicPluginTensorDesc fixedProfile(Tensor const& tensor) {
    nvinfer1::DynamicPluginTensorDesc profile{};
    profile.desc = describe(tensor);
    profile.min = profile.opt = profile.max = profile.desc.dims;
    return profile;
}

int32_t outputShapes(nvinfer1::IPluginV3OneBuild& build, std::vector<Tensor> const& inputs,
    std::vector<std::vector<int64_t>>& outputs) {
    ExprBuilder builder;
    std::vector<DimsExprs> in(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        in[i].nbDims = static_cast<int32_t>(inputs[i].dims.size());
        for (std::size_t d = 0; d < inputs[i].dims.size(); ++d) {
            in[i].d[d] = builder.constant(inputs[i].dims[d]);
        }
    }
    std::vector<DimsExprs> out(build.getNbOutputs());
    int32_t const code = build.getOutputShapes(in.data(), static_cast<int32_t>(in.size()), nullptr, 0, out.data(),
        static_cast<int32_t>(out.size()), builder);
    outputs.clear();
    for (DimsExprs const& shape : out) {
        outputs.emplace_back();
        for (int32_t d = 0; code == 0 && d < shape.nbDims; ++d) {
            outputs.back().push_back(shape.d[d]->getConstantValue());
        }
    }
    return code;
}

} // namespace fastocr::harness
