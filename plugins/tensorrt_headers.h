// TensorRT's headers, and the oldest version of them that the plugin compiles against.
#ifndef FASTOCR_PLUGIN_TENSORRT_HEADERS_H
#define FASTOCR_PLUGIN_TENSORRT_HEADERS_H

#include <NvInferRuntime.h>
#include <NvInferVersion.h>

// IPluginV3OneBuildV2, in which an output may be declared an alias of an input, came with 10.3. TensorRT-RTX counts its
// own versions from 1 and has had it from the start.
static_assert(NV_TENSORRT_MAJOR < 5 || NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 3),
    "the fastocr plugin needs TensorRT 10.3 or newer; set TENSORRT_ROOT to such a version");

#endif
