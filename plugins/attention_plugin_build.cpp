// What TensorRT's builder asks: types, shapes, formats, workspace, tactics, aliases.
#include <algorithm>

#include "attention_plugin.h"
#include "logging.h"
#include "op_shape.h"

namespace fastocr::plugin {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;

namespace {

constexpr int32_t kOk = 0;
constexpr int32_t kFailed = 1;

} // namespace

int32_t AttentionPlugin::getNbOutputs() const noexcept {
    return spec_.numOutputs();
}

int32_t AttentionPlugin::getOutputDataTypes(
    DataType* outputTypes, int32_t nbOutputs, DataType const* inputTypes, int32_t nbInputs) const noexcept {
    return guarded(name(), kFailed, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        checkTypes(spec_, inputTypes);
        for (int32_t i = 0; i < nbOutputs; ++i) {
            outputTypes[i] = spec_.outputs[i].kind == Kind::kIndex ? DataType::kINT64 : inputTypes[kQuery];
        }
        return kOk;
    });
}

int32_t AttentionPlugin::getOutputShapes(DimsExprs const* inputs, int32_t nbInputs, DimsExprs const* /*shapeInputs*/,
    int32_t /*nbShapeInputs*/, DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder& exprBuilder) noexcept {
    return guarded(name(), kFailed, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        checkRanks(spec_, inputs);
        outputs[kOutput] = inputs[kQuery];
        for (Bank const& bank : kBanks) {
            outputs[bank.present] = inputs[bank.past];
        }
        if (spec_.op == Op::kFocal) {
            DimsExprs& fixation = outputs[FocalOutput::kFixation];
            fixation.nbDims = 3;
            fixation.d[0] = inputs[kQuery].d[0];
            fixation.d[1] = inputs[kKey].d[1];
            fixation.d[2] = inputs[FocalInput::kFixationSlots].d[0];
        }
        outputs[spec_.nextStatus].nbDims = 1;
        outputs[spec_.nextStatus].d[0] = exprBuilder.constant(1);
        return kOk;
    });
}

bool AttentionPlugin::supportsFormatCombination(
    int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept {
    return guarded(name(), false, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        return isSupported(spec_, pos, inOut);
    });
}

int32_t AttentionPlugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
    nvinfer1::DynamicPluginTensorDesc const* /*out*/, int32_t nbOutputs) noexcept {
    return guarded(name(), kFailed, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        largestShape(spec_, attributes_, in);
        return kOk;
    });
}

size_t AttentionPlugin::getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t nbInputs,
    nvinfer1::DynamicPluginTensorDesc const* /*outputs*/, int32_t nbOutputs) const noexcept {
    return guarded(name(), size_t{0}, [&] {
        checkCounts(spec_, nbInputs, nbOutputs);
        FastocrShape shape = largestShape(spec_, attributes_, inputs);
        size_t bytes = fastocr_workspace_size(&shape);
        if (attributes_.tuneSplits != 0) {
            for (int32_t const splits : kTacticSplits) {
                shape.num_splits = splits;
                bytes = std::max(bytes, fastocr_workspace_size(&shape));
            }
        }
        return bytes;
    });
}

int32_t AttentionPlugin::getNbTactics() noexcept {
    return attributes_.tuneSplits != 0 ? static_cast<int32_t>(kTacticSplits.size()) : 0;
}

int32_t AttentionPlugin::getValidTactics(int32_t* tactics, int32_t nbTactics) noexcept {
    for (int32_t i = 0; i < std::min(nbTactics, getNbTactics()); ++i) {
        tactics[i] = i + 1;
    }
    return kOk;
}

char const* AttentionPlugin::getTimingCacheID() noexcept {
    return description_.c_str();
}

char const* AttentionPlugin::getMetadataString() noexcept {
    return description_.c_str();
}

int32_t AttentionPlugin::getAliasedInput(int32_t outputIndex) noexcept {
    if (attributes_.aliasBanks != 0) {
        for (Bank const& bank : kBanks) {
            if (bank.present == outputIndex) {
                return bank.past;
            }
        }
    }
    return -1;
}

} // namespace fastocr::plugin
