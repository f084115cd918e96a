// The plugin library used as no one should: fields that lie badly, no logger finder, and several threads at once.
//
//   plugin_abuse libfastocr_plugin_cpu.so
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "plugin_calls.h"

namespace {

using namespace fastocr::harness;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::TensorRTPhase;

void check(bool holds, std::string const& what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

// As in an engine file that packs values one after the other: neither is aligned.
void testFieldsThatAreNotAligned(Library& library, std::string const&) {
    alignas(8) char packed[16] = {};
    float const scale = 0.25F;
    int64_t const form = 1;
    std::memcpy(packed + 1, &scale, sizeof(scale));
    std::memcpy(packed + 6, &form, sizeof(form));
    PluginField const fields[] = {
        {"scale", packed + 1, PluginFieldType::kFLOAT32, 1}, {"dense_prefill", packed + 6, PluginFieldType::kINT64, 1}};
    nvinfer1::PluginFieldCollection const collection{2, fields};
    Plugin const made(library.creator("DenseAttention").createPlugin("l", &collection, TensorRTPhase::kRUNTIME));
    StoredFields const stored(*made.runtime->getFieldsToSerialize());
    float kept = 0;
    std::memcpy(&kept, stored.collection()->fields[0].data, sizeof(kept));
    check(kept == scale, "the scale is read from where it lies");
}

void testHostileFields(Library& library, std::string const&) {
    float const scale = std::numeric_limits<float>::quiet_NaN();
    int64_t const huge = std::numeric_limits<int64_t>::max();
    int64_t const wraps = (int64_t{1} << 32) + 1; // 1 in 32 bits
    PluginField const cases[] = {{nullptr, &huge, PluginFieldType::kINT64, 1},
        {"scale", &scale, PluginFieldType::kFLOAT32, 1}, {"scale", nullptr, PluginFieldType::kFLOAT32, 1},
        {"scale", &huge, PluginFieldType::kFLOAT32, -1}, {"dense_prefill", &huge, PluginFieldType::kINT64, 1},
        {"dense_prefill", &wraps, PluginFieldType::kINT64, 1}, {"", &huge, PluginFieldType::kINT64, 1},
        {"alias_banks", &huge, PluginFieldType::kDIMS, 1},
        {"tune_splits", &huge, PluginFieldType::kINT64, std::numeric_limits<int32_t>::max()}};
    for (PluginField const& field : cases) {
        nvinfer1::PluginFieldCollection const collection{1, &field};
        for (char const* const layer : {"layer", static_cast<char const*>(nullptr)}) {
            check(library.creator("FocalAttention").createPlugin(layer, &collection, TensorRTPhase::kBUILD) == nullptr,
                "a hostile field is refused");
        }
    }
    nvinfer1::PluginFieldCollection const nowhere{3, nullptr};
    check(library.creator("FocalAttention").createPlugin("l", &nowhere, TensorRTPhase::kBUILD) == nullptr,
        "fields that are nowhere are refused");
    check(library.logger().lines.size() == 2 * std::size(cases) + 1, "each refusal is one line");
}

// The workspace was asked for the tactics that were offered: another one would run beyond it.
void testTacticsThatWereNotOffered(Library& library, std::string const&) {
    Plugin const plain(
        library.creator("DenseAttention").createPlugin("l", goodFields().collection(), TensorRTPhase::kBUILD));
    check(plain.runtime->setTactic(0) == 0, "no tactic");
    check(plain.runtime->setTactic(6) != 0, "a tactic that was not offered is refused");
    check(plain.runtime->setTactic(-1) != 0, "a tactic below 0 is refused");
}

size_t workspaceOf(Plugin& plugin, std::string const& op, Sizes const& sizes) {
    std::vector<nvinfer1::DynamicPluginTensorDesc> in;
    std::vector<nvinfer1::DynamicPluginTensorDesc> out;
    for (NamedTensor const& entry : inputsOf(op, sizes)) {
        in.push_back(fixedProfile(entry.tensor));
    }
    for (NamedTensor const& entry : outputsOf(op, sizes)) {
        out.push_back(fixedProfile(entry.tensor));
    }
    return plugin.build->getWorkspaceSize(
        in.data(), static_cast<int32_t>(in.size()), out.data(), static_cast<int32_t>(out.size()));
}

// Contexts of one engine run in threads of their own, each on its clone.
void testThreads(Library& library, std::string const&) {
    Fields fields = goodFields();
    nvinfer1::PluginFieldCollection const* const good = fields.collection();
    Plugin const engine(library.creator("DenseAttention").createPlugin("l", good, TensorRTPhase::kRUNTIME));
    std::atomic<int> failures{0};
    std::mutex machine; // the CPU runs one kernel at a time
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] {
            for (int32_t turn = 0; turn < 20; ++turn) {
                Plugin context(engine.runtime->attachToContext(nullptr));
                Sizes sizes{};
                sizes.batch = 1 + i;
                std::vector<char> workspace(workspaceOf(context, "DenseAttention", sizes) + 256);
                Call call("DenseAttention", sizes);
                call.shareBanks();
                std::fill_n(call.numbers("text_valid"), sizes.batch, 1);
                std::lock_guard<std::mutex> const running(machine);
                failures += call.enqueue(context, workspace) != 0;
                failures += call.numbers("next_status")[0] != 0;
                // One row is seen, so its value is the output.
                failures += call.values("output")[1] != call.values("value")[1];
            }
        });
    }
    for (std::thread& each : threads) {
        each.join();
    }
    check(failures == 0, "threads that use clones of one plugin do not disturb each other");
    check(library.logger().lines.empty(), "nothing is logged");
}

void testNoLoggerFinder(Library& library, std::string const& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); // the same library, once more
    auto const setFinder
        = reinterpret_cast<void (*)(nvinfer1::ILoggerFinder*)>(dlsym(handle, "setLoggerFinder"));
    auto const creators
        = reinterpret_cast<nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(handle, "getCreators"));
    int32_t counts[2] = {};
    check(creators(counts[0]) == creators(counts[1]) && counts[0] == 3 && counts[1] == 3, "creators are listed twice");
    setFinder(nullptr);
    check(library.creator("DenseAttention").createPlugin("l", nullptr, TensorRTPhase::kBUILD) == nullptr, "refused");
    check(library.logger().lines.empty(), "without a finder it is told on stderr");
    dlclose(handle);
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: plugin_abuse LIBRARY\n");
        return 2;
    }
    Library library(argv[1]);
    std::pair<char const*, std::function<void(Library&, std::string const&)>> const tests[]
        = {{"fields that are not aligned", testFieldsThatAreNotAligned}, {"hostile fields", testHostileFields},
            {"tactics that were not offered", testTacticsThatWereNotOffered}, {"threads", testThreads},
            {"no logger finder", testNoLoggerFinder}};
    int failures = 0;
    for (auto const& [name, test] : tests) {
        library.logger().lines.clear();
        try {
            test(library, argv[1]);
            std::printf("ok      %s\n", name);
        } catch (std::exception const& error) {
            std::printf("FAILED  %s: %s\n", name, error.what());
            ++failures;
        }
    }
    return failures == 0 ? 0 : 1;
}
