#include "creators.h"

#include <string>

#include "attention_plugin.h"
#include "fields.h"
#include "logging.h"

#define FASTOCR_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace fastocr::plugin {

AttentionCreator::AttentionCreator(Op op) : spec_(specOf(op)), fields_(fieldNames(op)) {
    collection_ = {static_cast<int32_t>(fields_.size()), fields_.data()};
}

nvinfer1::IPluginV3* AttentionCreator::createPlugin(
    char const* name, nvinfer1::PluginFieldCollection const* fc, nvinfer1::TensorRTPhase phase) noexcept {
    return guarded(spec_.name, static_cast<nvinfer1::IPluginV3*>(nullptr), [&]() -> nvinfer1::IPluginV3* {
        try {
            return new AttentionPlugin(spec_.op, parseFields(spec_.op, fc), phase);
        } catch (PluginError const& error) {
            throw PluginError("layer '" + std::string(name == nullptr ? "" : name) + "': " + error.what());
        }
    });
}

nvinfer1::PluginFieldCollection const* AttentionCreator::getFieldNames() noexcept {
    return &collection_;
}

char const* AttentionCreator::getPluginName() const noexcept {
    return spec_.name;
}

char const* AttentionCreator::getPluginVersion() const noexcept {
    return kPluginVersion;
}

char const* AttentionCreator::getPluginNamespace() const noexcept {
    return kPluginNamespace;
}

} // namespace fastocr::plugin

// What TensorRT's registry looks up by name when it loads the library; nothing else is exported.

FASTOCR_PLUGIN_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    fastocr::plugin::setFinder(finder);
}

FASTOCR_PLUGIN_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    using fastocr::plugin::AttentionCreator;
    using fastocr::plugin::Op;
    static AttentionCreator dense(Op::kDense);
    static AttentionCreator focal(Op::kFocal);
    static AttentionCreator gathered(Op::kGathered);
    static nvinfer1::IPluginCreatorInterface* const creators[] = {&dense, &focal, &gathered};
    count = static_cast<int32_t>(sizeof(creators) / sizeof(creators[0]));
    return creators;
}
