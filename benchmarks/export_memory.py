"""Peak memory of an export, as a multiple of the checkpoint's size in the export dtype.

A random Qwen2.5-VL-shaped checkpoint of 1.5 billion parameters is written in shards and exported in a process of its
own, whose peak resident memory the system reports. Pages of the checkpoint that are mapped while a shard is read count.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import arguments, header, markdown_table, report, run
from _models import random_checkpoint

LIMIT = 2.2
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
EXPORT = """
import sys
from pathlib import Path
from fastocr_trt.export.engine_directory import export_engine
folder, output, dtype, weights = sys.argv[1:]
export_engine(folder, Path(output), dtype=dtype, weights=weights or None)
"""


def split_into_shards(folder: Path, shard_bytes: int) -> int:
    """Replace model.safetensors by shards of at most about `shard_bytes` and an index; gives the parameter count."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    source, weight_map, parameters = folder / "model.safetensors", {}, 0
    part: dict = {}

    def flush() -> None:
        name = f"model-{len(set(weight_map.values())):05d}.safetensors"
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
        part.clear()

    with safe_open(source, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (not a dict)
            tensor = file.get_tensor(key).clone()
            parameters += tensor.numel()
            if part and sum(t.nbytes for t in part.values()) + tensor.nbytes > shard_bytes:
                flush()
            part[key] = tensor
    flush()
    source.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return parameters


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=BYTES, default="fp16")
    parser.add_argument("--weights", choices=["int4", "int8"])
    args = parser.parse_args()
    layers, blocks = (2, 2) if args.quick else (12, 12)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder = random_checkpoint(root / "checkpoint", layers, blocks, small=args.quick)
        parameters = split_into_shards(folder, 1 << 30)
        size = parameters * BYTES[args.dtype]
        started = time.perf_counter()
        command = [sys.executable, "-c", EXPORT, str(folder), str(root / "engine"), args.dtype, args.weights or ""]
        subprocess.run(command, check=True)
        elapsed = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        engine = sum(path.stat().st_size for path in (root / "engine").iterdir())
    ratio = peak / size
    row = [
        f"{parameters / 1e9:.2f} B parameters, {args.dtype}" + (f", {args.weights}" if args.weights else ""),
        f"{size / 1e9:.2f} GB",
        f"{engine / 1e9:.2f} GB",
        f"{peak / 1e9:.2f} GB",
        f"{math.ceil(ratio * 100) / 100:.2f} (at most {LIMIT})",
        f"{elapsed:.0f} s",
    ]
    columns = ["checkpoint", "size in the export dtype", "engine", "peak memory", "ratio", "time"]
    report(
        args,
        f"export-memory-{args.dtype}",
        header(1, "torch"),
        markdown_table(columns, [row]),
    )
    if ratio > LIMIT and not args.quick:
        sys.exit(f"the peak is {ratio:.2f} times the size; the limit is {LIMIT}")


if __name__ == "__main__":
    run(main)
