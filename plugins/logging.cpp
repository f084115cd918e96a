#include "logging.h"

#include <atomic>
#include <cstdio>

namespace fastocr::plugin {

namespace {

std::atomic<nvinfer1::ILoggerFinder*> gFinder{nullptr};

nvinfer1::ILogger* findLogger() {
    nvinfer1::ILoggerFinder* const finder = gFinder.load();
    return finder == nullptr ? nullptr : finder->findLogger();
}

} // namespace

void setFinder(nvinfer1::ILoggerFinder* finder) noexcept {
    gFinder.store(finder);
}

void log(nvinfer1::ILogger::Severity severity, char const* who, char const* message) noexcept {
    try {
        std::string const line = std::string("fastocr ") + who + ": " + message;
        if (nvinfer1::ILogger* const logger = findLogger()) {
            logger->log(severity, line.c_str());
        } else {
            std::fprintf(stderr, "%s\n", line.c_str());
        }
    } catch (...) {
        std::fprintf(stderr, "fastocr %s: %s\n", who, message);
    }
}

} // namespace fastocr::plugin
