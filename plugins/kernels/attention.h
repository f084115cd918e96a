// The three attention ops of the engine form, as one call: shapes, pointers, workspace, run.
//
// Framework-free and C-compatible (plain structs), so that the TensorRT plugin, the tests and the PyTorch checks use
// the same entry points. `fastocr_trt/reference.py` (`engine_form`) is the definition of what they compute, and
// docs/architecture.md the contract. Tensors are dense and row-major; letters as in the contract: B batch, H
// num_attention_heads, KV num_key_value_heads, n rows, D head_dim, VCAP and TCAP bank rows, k fixation_size.
#ifndef FASTOCR_KERNELS_ATTENTION_H
#define FASTOCR_KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FASTOCR_KERNELS_API __declspec(dllexport)
#elif defined(FASTOCR_EXPORT_KERNELS)
#define FASTOCR_KERNELS_API __attribute__((visibility("default")))
#else
#define FASTOCR_KERNELS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { FASTOCR_DENSE = 0, FASTOCR_FOCAL = 1, FASTOCR_GATHERED = 2 };     // FastocrShape.op
enum { FASTOCR_FLOAT32 = 0, FASTOCR_FLOAT16 = 1, FASTOCR_BFLOAT16 = 2 }; // FastocrShape.dtype

// Bits of `status`: what a kernel found on the device. Nothing is clamped silently and nothing is read or written out
// of bounds: the row or entry is left out, and its bit is set.
enum {
    FASTOCR_STATUS_VISUAL_BANK_FULL = 1,
    FASTOCR_STATUS_TEXT_BANK_FULL = 2,
    FASTOCR_STATUS_FIXATION_OUT_OF_RANGE = 4,
    FASTOCR_STATUS_VALID_OUT_OF_RANGE = 8
};

typedef struct FastocrShape {
    int32_t op;
    int32_t dtype; // of query, key, value, output and banks; sums are float32
    int32_t batch;
    int32_t num_attention_heads;
    int32_t num_key_value_heads;
    int32_t rows; // n: 1 in decode, more in prefill, where every op is dense
    int32_t head_dim;
    int32_t visual_capacity;
    int32_t text_capacity;
    int32_t fixation_size; // k; 0 for DENSE
    int32_t per_kv_head;   // FOCAL: 1 selects for each KV head, 0 once for all
    int32_t num_splits;    // of the keys, in decode; 0 lets the library choose
    float scale;
} FastocrShape;

typedef struct FastocrTensors {
    void const* query; // [B,H,n,D]
    void const* key;   // [B,KV,n,D]
    void const* value; // [B,KV,n,D]
    // Banks [B,KV,VCAP,D] and [B,KV,TCAP,D]. present == past is written in place; otherwise past is copied first.
    void const* past_visual_key;
    void const* past_visual_value;
    void const* past_text_key;
    void const* past_text_value;
    void* present_visual_key;
    void* present_visual_value;
    void* present_text_key;
    void* present_text_value;
    int64_t const* visual_length;  // [B]
    int64_t const* text_length;    // [B]
    int64_t const* visual_valid;   // [B,n]
    int64_t const* text_valid;     // [B,n]
    int64_t const* num_fixations;  // [B], FOCAL
    int64_t const* fixation_in;    // [B,KV,k], GATHERED
    int64_t const* attend_all;     // [1], GATHERED: not 0 makes it dense
    int64_t const* status_in;      // [1]
    void* output;                  // [B,H,n,D]
    int64_t* fixation_out;         // [B,KV,k], FOCAL: ascending, unused places -1 and last
    int64_t* status_out;           // [1], status_in and what was found; may be status_in
} FastocrTensors;

// 0 where the kernels can run `shape`; otherwise 1, and `message` (size bytes) says what is wrong, the value and the
// limit in one sentence.
FASTOCR_KERNELS_API int fastocr_check(FastocrShape const* shape, char* message, size_t size);

// Bytes of device memory that fastocr_run needs; never falls when batch, rows, capacities, k or num_splits rise
// (num_splits 0 needs as much as any choice the library would make).
FASTOCR_KERNELS_API size_t fastocr_workspace_size(FastocrShape const* shape);

// Queues one op on `stream` (a cudaStream_t). No allocation, no synchronisation, no host read of device memory: it can
// be captured in a CUDA graph. Returns 0, or the cudaError_t of a launch; cudaErrorInvalidValue for a shape that
// fastocr_check refuses or a workspace that is too small.
FASTOCR_KERNELS_API int fastocr_run(
    FastocrShape const* shape, FastocrTensors const* tensors, void* workspace, size_t workspace_size, void* stream);

#ifdef __cplusplus
}
#endif
#endif
