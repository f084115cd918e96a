"""The Triton kernels: run by Triton's interpreter, and compiled ahead of time for every GPU generation we name.

Neither needs a GPU; that they are right and fast on one is what tools/gpu_check.sh shows.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="the package triton is not installed (extra `torch`)")
pytest.importorskip("torch")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from fastocr_trt.export import triton_kernels as kernels  # noqa: E402

CASES = Path(__file__).with_name("triton_cases.py")
TARGETS = (80, 86, 89, 90, 100, 120)

POINTERS = {
    "query": "*{t}",
    **dict.fromkeys(("visual_key", "visual_value", "text_key", "text_value"), "*{t}"),
    **dict.fromkeys(("visual_valid", "text_valid", "fixation"), "*i64"),
    **dict.fromkeys(("partial", "partial_lse", "raw_scores"), "*fp32"),
    "scale": "fp32",
    **dict.fromkeys(("n", "visual_rows", "text_rows", "visual_capacity", "text_capacity", "num_splits"), "i32"),
}


def test_the_kernels_equal_the_oracle_in_the_interpreter():
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "100%" in done.stdout


def compile_for(target, kernel, signature, constants):
    arguments = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    return triton.compile(ASTSource(kernel, arguments, constexprs=constants), target=GPUTarget("cuda", target, 32))


@pytest.mark.parametrize("target", TARGETS)
def test_attention_compiles_to_machine_code_for(target):
    constants = {"group": 8, "kv_heads": 2, "head_dim": 128, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_D": 128}
    for dtype, gathered in (("fp16", False), ("bf16", True)):
        signature = {name: kind.format(t=dtype) for name, kind in POINTERS.items()}
        choices = {"GATHERED": gathered, "SCORES": not gathered, "UPCAST": False}
        built = compile_for(target, kernels.attend, signature, constants | choices)
        assert f"sm_{target}" in built.asm["ptx"] and len(built.asm["cubin"]) > 0


def test_the_other_kernels_compile_too():
    row = {"new": "*fp16", "bank": "*fp16", "length": "*i64", "new_rows": "i32", "capacity": "i32"}
    merge = {"partial": "*fp32", "partial_lse": "*fp32", "output": "*fp16", "merged_lse": "*fp32"}
    merge |= {"count": "i32", "num_splits": "i32"}
    mass = {"raw_scores": "*fp32", "merged_lse": "*fp32", "mass": "*fp32", "n": "i32", "visual_rows": "i32"}
    for kernel, signature, constants in (
        (kernels.append_rows, row, {"head_dim": 80, "kv_heads": 2, "BLOCK_D": 128}),
        (kernels.merge_splits, merge, {"head_dim": 80, "BLOCK_S": 32, "BLOCK_D": 128}),
        (kernels.visual_mass, mass, {"group": 8, "BLOCK_N": 256}),
    ):
        assert len(compile_for(89, kernel, signature, constants).asm["cubin"]) > 0
