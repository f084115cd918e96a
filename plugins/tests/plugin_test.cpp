// The plugin library's host code, question by question as TensorRT asks, and one decode step against a plain loop.
//
//   plugin_test libfastocr_plugin_cpu.so
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
#include <stdexcept>

#include "plugin_calls.h"

namespace {

using namespace fastocr::harness;
using nvinfer1::DataType;
using nvinfer1::TensorRTPhase;

char const* const kOps[] = {"DenseAttention", "FocalAttention", "GatheredAttention"};

void check(bool holds, std::string const& what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

// Exactly one line has been logged since the last call, and it holds every part.
void checkLogged(Library& library, std::vector<std::string> const& parts) {
    std::vector<std::string> const lines = std::move(library.logger().lines);
    library.logger().lines.clear();
    check(lines.size() == 1, "expected one message, not " + std::to_string(lines.size()));
    for (std::string const& part : parts) {
        check(lines[0].find(part) != std::string::npos, "'" + part + "' is not in '" + lines[0] + "'");
    }
}

Plugin make(Library& library, std::string const& op, Fields fields = goodFields(),
    TensorRTPhase phase = TensorRTPhase::kBUILD) {
    return Plugin(library.creator(op).createPlugin("layer", fields.collection(), phase));
}

std::vector<nvinfer1::DynamicPluginTensorDesc> profilesOf(std::string const& op, Sizes const& sizes) {
    std::vector<nvinfer1::DynamicPluginTensorDesc> profiles;
    for (auto const& named : {inputsOf(op, sizes), outputsOf(op, sizes)}) {
        for (NamedTensor const& entry : named) {
            profiles.push_back(fixedProfile(entry.tensor));
        }
    }
    return profiles;
}

int32_t configure(Plugin& plugin, std::string const& op, std::vector<nvinfer1::DynamicPluginTensorDesc> const& all) {
    auto const numInputs = static_cast<int32_t>(inputsOf(op, {}).size());
    auto const numOutputs = static_cast<int32_t>(all.size()) - numInputs;
    return plugin.build->configurePlugin(all.data(), numInputs, all.data() + numInputs, numOutputs);
}

size_t workspaceOf(Plugin& plugin, std::string const& op, std::vector<nvinfer1::DynamicPluginTensorDesc> const& all) {
    auto const numInputs = static_cast<int32_t>(inputsOf(op, {}).size());
    auto const numOutputs = static_cast<int32_t>(all.size()) - numInputs;
    return plugin.build->getWorkspaceSize(all.data(), numInputs, all.data() + numInputs, numOutputs);
}

void testIdentity(Library& library) {
    check(library.creators().size() == 3, "three creators");
    for (char const* const op : kOps) {
        nvinfer1::IPluginCreatorV3One& creator = library.creator(op);
        Plugin plugin = make(library, op);
        check(std::string(creator.getPluginVersion()) == "1", "creator version");
        check(std::string(creator.getPluginNamespace()) == "fastocr", "creator namespace");
        check(std::string(plugin.core->getPluginName()) == op, "plugin name");
        check(std::string(plugin.core->getPluginVersion()) == "1", "plugin version");
        check(std::string(plugin.core->getPluginNamespace()) == "fastocr", "plugin namespace");
    }
}

void testFieldsRefused(Library& library) {
    struct Case {
        char const* op;
        Fields fields;
        std::vector<std::string> message;
    };
    Fields noScale;
    noScale.integer("dense_prefill", 1);
    Fields noForm;
    noForm.number("scale", 0.125F);
    Fields otherForm;
    otherForm.number("scale", 0.125F).integer("dense_prefill", 0);
    Fields strangeForm;
    strangeForm.number("scale", 0.125F).integer("dense_prefill", 2);
    Fields badScale;
    badScale.number("scale", -1.F).integer("dense_prefill", 1);
    Fields wholeScale;
    wholeScale.integer("scale", 1).integer("dense_prefill", 1);
    Case cases[] = {
        {"DenseAttention", noScale, {"E: ", "DenseAttention", "layer", "'scale'", "missing"}},
        {"DenseAttention", noForm, {"'dense_prefill'", "missing", "1"}},
        {"GatheredAttention", otherForm, {"'dense_prefill' is 0", "must be 1"}},
        {"GatheredAttention", strangeForm, {"'dense_prefill' is 2", "must be 1"}},
        {"FocalAttention", badScale, {"'scale' is -1", "above 0"}},
        {"FocalAttention", wholeScale, {"'scale' is INT64", "FLOAT32"}},
        {"FocalAttention", goodFields().integer("per_kv_head", 7), {"'per_kv_head' is 7", "0 or 1"}},
        {"FocalAttention", goodFields().number("per_kv_head", 1.F), {"'per_kv_head' is FLOAT32", "INT64 or INT32"}},
        {"DenseAttention", goodFields().integer("per_kv_head", 1), {"'per_kv_head'", "unknown", "alias_banks"}},
        {"DenseAttention", goodFields().integer("topk", 64), {"'topk'", "unknown"}},
        {"DenseAttention", goodFields().number("scale", 1.F), {"'scale'", "twice"}},
        {"DenseAttention", goodFields().text("alias_banks", "yes"), {"'alias_banks' has 3 values", "1"}},
    };
    for (Case& bad : cases) {
        nvinfer1::IPluginV3* const created
            = library.creator(bad.op).createPlugin("layer", bad.fields.collection(), TensorRTPhase::kBUILD);
        check(created == nullptr, "refused: " + bad.message.back());
        checkLogged(library, bad.message);
    }
    check(library.creator("DenseAttention").createPlugin("layer", nullptr, TensorRTPhase::kBUILD) == nullptr,
        "refused: no fields");
    checkLogged(library, {"no field collection"});
}

void testFieldsAccepted(Library& library) {
    Fields fields = goodFields();
    fields.narrow("per_kv_head", 0).text("plugin_version", "1").text("plugin_namespace", "fastocr");
    make(library, "FocalAttention", fields);
    check(library.logger().lines.empty(), "nothing is logged");
}

void testShapesAndTypes(Library& library) {
    Sizes const sizes{};
    for (char const* const op : kOps) {
        Plugin plugin = make(library, op);
        std::vector<Tensor> inputs = tensorsOf(inputsOf(op, sizes));
        std::vector<Tensor> const outputs = tensorsOf(outputsOf(op, sizes));
        std::vector<std::vector<int64_t>> shapes;
        check(outputShapes(*plugin.build, inputs, shapes) == 0, "getOutputShapes");
        check(shapes.size() == outputs.size(), "number of outputs");
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            check(shapes[i] == outputs[i].dims, std::string(op) + ": shape of output " + std::to_string(i));
        }
        std::vector<DataType> types;
        for (Tensor const& tensor : inputs) {
            types.push_back(tensor.type == DataType::kFLOAT ? DataType::kBF16 : tensor.type);
        }
        std::vector<DataType> outputTypes(outputs.size());
        auto const numInputs = static_cast<int32_t>(types.size());
        auto const numOutputs = static_cast<int32_t>(outputs.size());
        auto const ask = [&] {
            return plugin.build->getOutputDataTypes(outputTypes.data(), numOutputs, types.data(), numInputs);
        };
        check(ask() == 0, "getOutputDataTypes");
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            bool const index = outputs[i].type == DataType::kINT64;
            check(outputTypes[i] == (index ? DataType::kINT64 : DataType::kBF16), "output type");
        }
        types[6] = DataType::kHALF;
        check(ask() != 0, "mixed dtypes are refused");
        checkLogged(library, {"past_text_value is FP16", "query is BF16"});
        types[6] = DataType::kBF16;
        types[7] = DataType::kINT32;
        check(ask() != 0, "a length of INT32 is refused");
        checkLogged(library, {"visual_length is INT32", "INT64"});

        inputs.pop_back();
        check(outputShapes(*plugin.build, inputs, shapes) != 0, "a missing input is refused");
        checkLogged(library, {std::to_string(numInputs - 1) + " inputs", "takes " + std::to_string(numInputs)});
        inputs = tensorsOf(inputsOf(op, sizes));
        inputs[0].dims.pop_back();
        check(outputShapes(*plugin.build, inputs, shapes) != 0, "a missing dimension is refused");
        checkLogged(library, {"query has 3 dimensions", "4"});
    }
}

void testFormats(Library& library) {
    std::string const op = "FocalAttention";
    Plugin plugin = make(library, op);
    auto profiles = profilesOf(op, {});
    auto const numInputs = static_cast<int32_t>(inputsOf(op, {}).size());
    auto const numOutputs = static_cast<int32_t>(profiles.size()) - numInputs;
    auto const supported = [&](int32_t position) {
        return plugin.build->supportsFormatCombination(position, profiles.data(), numInputs, numOutputs);
    };
    for (int32_t i = 0; i < numInputs + numOutputs; ++i) {
        check(supported(i), "supported as it is: " + std::to_string(i));
        nvinfer1::PluginTensorDesc const kept = profiles[i].desc;
        profiles[i].desc.format = nvinfer1::TensorFormat::kCHW4;
        check(!supported(i), "not linear: " + std::to_string(i));
        profiles[i].desc = kept;
        profiles[i].desc.type = DataType::kINT8;
        check(!supported(i), "INT8: " + std::to_string(i));
        profiles[i].desc.type = DataType::kHALF;
        check(supported(i) == (i == 0), "FP16, mixed for all but the first: " + std::to_string(i));
        profiles[i].desc = kept;
    }
    check(library.logger().lines.empty(), "asking is no error");
}

void testConfigure(Library& library) {
    for (std::string const op : kOps) {
        Plugin plugin = make(library, op);
        auto profiles = profilesOf(op, {});
        check(configure(plugin, op, profiles) == 0, "configurePlugin");
        check(workspaceOf(plugin, op, profiles) > 0, "workspace");

        // A profile that leaves batch, rows and k open needs what its largest call would.
        Sizes large{};
        large.batch = 3;
        large.rows = 5;
        size_t const needed = workspaceOf(plugin, op, profilesOf(op, large));
        auto open = profilesOf(op, large);
        for (auto& profile : open) {
            for (int32_t d = 0; d < profile.desc.dims.nbDims; ++d) {
                int64_t const size = profile.desc.dims.d[d];
                profile.desc.dims.d[d] = size == large.batch || size == large.rows ? -1 : size;
            }
        }
        check(configure(plugin, op, open) == 0, "configurePlugin of an open profile");
        check(workspaceOf(plugin, op, open) >= needed, "workspace of an open profile");

        profiles[3].desc.dims.d[0] = 3;
        check(configure(plugin, op, profiles) != 0, "unequal batch is refused");
        checkLogged(library, {"past_visual_key has batch 3", "query has 2"});
        Sizes odd{};
        odd.headDim = 70;
        check(configure(plugin, op, profilesOf(op, odd)) != 0, "head_dim 70 is refused");
        checkLogged(library, {op, "head_dim", "70"});
        Sizes twoStatus{};
        auto longer = profilesOf(op, twoStatus);
        longer[inputsOf(op, {}).size() - 1].desc.dims.d[0] = 2;
        check(configure(plugin, op, longer) != 0, "a status of 2 entries is refused");
        checkLogged(library, {"status has 2 entries", "1"});
    }
}

void testSerialisationCloneAliases(Library& library) {
    Fields fields = goodFields();
    fields.integer("per_kv_head", 0).integer("alias_banks", 1).integer("tune_splits", 1);
    std::unique_ptr<StoredFields> stored;
    std::string described;
    {
        Plugin built = make(library, "FocalAttention", fields);
        stored = std::make_unique<StoredFields>(*built.runtime->getFieldsToSerialize());
        described = built.build->getMetadataString();
    }
    Plugin loaded(library.creator("FocalAttention").createPlugin("l", stored->collection(), TensorRTPhase::kRUNTIME));
    Plugin cloned(loaded.plugin->clone());
    Plugin attached(cloned.runtime->attachToContext(nullptr));
    check(described.find("per_kv_head=0 alias_banks=1 tune_splits=1") != std::string::npos, described);
    for (Plugin* const each : {&loaded, &cloned, &attached}) {
        check(each->build->getMetadataString() == described, "the attributes survive");
        int32_t const aliases[] = {-1, 3, 4, 5, 6, -1, -1}; // output, four present_*, fixation, next_status
        for (int32_t i = 0; i < 7; ++i) {
            check(each->build->getAliasedInput(i) == aliases[i], "alias of output " + std::to_string(i));
        }
    }
    Plugin plain = make(library, "FocalAttention");
    for (int32_t i = 0; i < 7; ++i) {
        check(plain.build->getAliasedInput(i) == -1, "nothing is aliased unless asked for");
    }
}

void testTactics(Library& library) {
    Plugin plain = make(library, "DenseAttention");
    check(plain.build->getNbTactics() == 0, "no tactics unless asked for");
    Plugin tuned = make(library, "DenseAttention", goodFields().integer("tune_splits", 1));
    std::vector<int32_t> tactics(tuned.build->getNbTactics());
    check(tactics.size() > 2, "several tactics");
    check(tuned.build->getValidTactics(tactics.data(), static_cast<int32_t>(tactics.size())) == 0, "getValidTactics");
    check(std::set<int32_t>(tactics.begin(), tactics.end()).size() == tactics.size(), "tactics differ");
    for (int32_t const tactic : tactics) {
        check(tactic > 0, "TensorRT keeps tactic 0");
        check(tuned.runtime->setTactic(tactic) == 0, "setTactic");
    }
    check(tuned.runtime->setTactic(99) != 0, "an unknown tactic is refused");
    checkLogged(library, {"tactic is 99", "0 to " + std::to_string(tactics.size())});
    check(workspaceOf(tuned, "DenseAttention", profilesOf("DenseAttention", {}))
            >= workspaceOf(plain, "DenseAttention", profilesOf("DenseAttention", {})),
        "workspace covers every tactic");
}

// One decode step of one page by a plain loop: rows 0 to visual-1 of the visual bank and 0 to text of the text bank,
// whose last is the new row.
std::vector<float> decodeByLoop(Call& call, Sizes const& s, float scale, int64_t visual, int64_t text) {
    std::vector<float> output(s.heads * s.headDim);
    for (int64_t h = 0; h < s.heads; ++h) {
        int64_t const g = h / (s.heads / s.kvHeads);
        auto const row = [&](char const* bank, int64_t r) {
            return call.values(bank) + (g * s.capacity + r) * s.headDim;
        };
        std::vector<float const*> keys;
        std::vector<float const*> values;
        for (int64_t r = 0; r < visual; ++r) {
            keys.push_back(row("past_visual_key", r));
            values.push_back(row("past_visual_value", r));
        }
        for (int64_t r = 0; r < text; ++r) {
            keys.push_back(row("past_text_key", r));
            values.push_back(row("past_text_value", r));
        }
        keys.push_back(call.values("key") + g * s.headDim);
        values.push_back(call.values("value") + g * s.headDim);
        std::vector<double> weights;
        double sum = 0;
        for (float const* const key : keys) {
            double score = 0;
            for (int64_t d = 0; d < s.headDim; ++d) {
                score += static_cast<double>(key[d]) * call.values("query")[h * s.headDim + d];
            }
            weights.push_back(std::exp(score * scale));
            sum += weights.back();
        }
        for (std::size_t i = 0; i < keys.size(); ++i) {
            for (int64_t d = 0; d < s.headDim; ++d) {
                output[h * s.headDim + d] += static_cast<float>(weights[i] / sum) * values[i][d];
            }
        }
    }
    return output;
}

void testDecodeStep(Library& library) {
    Sizes sizes{};
    sizes.batch = 1;
    for (std::string const op : {"DenseAttention", "FocalAttention"}) {
        Plugin plugin = make(library, op, goodFields(), TensorRTPhase::kRUNTIME);
        std::vector<char> workspace(workspaceOf(plugin, op, profilesOf(op, sizes)) + 256);
        for (bool const inPlace : {false, true}) {
            Call call(op, sizes);
            if (inPlace) {
                call.shareBanks();
            }
            call.numbers("visual_length")[0] = 7;
            call.numbers("visual_valid")[0] = 7;
            call.numbers("text_length")[0] = 4;
            call.numbers("text_valid")[0] = 5;
            std::vector<float> const wanted = decodeByLoop(call, sizes, 0.125F, 7, 4);
            for (int32_t repeat = 0; repeat < 2; ++repeat) { // the second finds its row written already
                check(call.enqueue(plugin, workspace) == 0, "enqueue");
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    check(std::fabs(call.values("output")[i] - wanted[i]) < 1e-5, op + ": output " + std::to_string(i));
                }
            }
            check(call.numbers("next_status")[0] == 0, "status");
            float const* const written = call.values("present_text_key") + 4 * sizes.headDim;
            check(written[5] == call.values("key")[5], "the new row is in the bank");
            if (inPlace) {
                check(library.logger().lines.empty(), "nothing to warn of in place");
            } else {
                checkLogged(library, {"W: ", "present_visual_key", "past_visual_key", "6144 bytes", "one buffer"});
            }
        }
    }
}

void testCallsRefused(Library& library) {
    std::vector<char> workspace(256);
    for (std::string const op : kOps) {
        Plugin plugin = make(library, op, goodFields(), TensorRTPhase::kRUNTIME);
        Sizes empty{};
        empty.rows = 0;
        Call call(op, empty);
        check(call.enqueue(plugin, workspace) != 0, "no rows are refused");
        checkLogged(library, {op, "query has rows 0", "1 to"});
    }
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: plugin_test LIBRARY\n");
        return 2;
    }
    Library library(argv[1]);
    std::pair<char const*, std::function<void(Library&)>> const tests[] = {{"identity", testIdentity},
        {"fields refused", testFieldsRefused}, {"fields accepted", testFieldsAccepted},
        {"shapes and types", testShapesAndTypes}, {"formats", testFormats}, {"configure", testConfigure},
        {"serialisation, clone, aliases", testSerialisationCloneAliases}, {"tactics", testTactics},
        {"decode step", testDecodeStep}, {"calls refused", testCallsRefused}};
    int failures = 0;
    for (auto const& [name, test] : tests) {
        library.logger().lines.clear();
        try {
            test(library);
            std::printf("ok      %s\n", name);
        } catch (std::exception const& error) {
            std::printf("FAILED  %s: %s\n", name, error.what());
            ++failures;
        }
    }
    return failures == 0 ? 0 : 1;
}
