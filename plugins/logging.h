// Messages of the plugin: through the logger that TensorRT's logger finder names, on stderr where there is none.
#ifndef FASTOCR_PLUGIN_LOGGING_H
#define FASTOCR_PLUGIN_LOGGING_H

#include <exception>
#include <stdexcept>
#include <string>

#include "tensorrt_headers.h"

namespace fastocr::plugin {

// What a caller did wrong, as one sentence: what, the value, the limit. Thrown inside the plugin only.
class PluginError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

void setFinder(nvinfer1::ILoggerFinder* finder) noexcept;

void log(nvinfer1::ILogger::Severity severity, char const* who, char const* message) noexcept;

// The value of body(), or `onFailure` where it threw: TensorRT's virtual methods must not throw, so the message is
// logged as "who: message".
template <typename Result, typename Body>
Result guarded(char const* who, Result onFailure, Body&& body) noexcept {
    try {
        return body();
    } catch (std::exception const& error) {
        log(nvinfer1::ILogger::Severity::kERROR, who, error.what());
    } catch (...) {
        log(nvinfer1::ILogger::Severity::kERROR, who, "an exception of unknown type");
    }
    return onFailure;
}

} // namespace fastocr::plugin

#endif
