#!/usr/bin/env bash
# Check and time the kernels on a CUDA machine; see docs/verification.md. Needs a CUDA compiler, cmake and PyTorch with
# CUDA; TensorRT is used where it is installed. Prints a Markdown report; ends with 1 where anything differs.
#   tools/gpu_check.sh | tee gpu_check.md
#   tools/gpu_check.sh --dry-run      # tiny shapes on the CPU: tests the program itself
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d fastocr_trt ] || ! python -c 'import torch, numpy' 2>/dev/null; then
    echo "python here has no torch: activate an environment with PyTorch for CUDA and this project (pip install -e .)" >&2
    exit 2
fi
exec python -m tools.gpu_check "$@"
