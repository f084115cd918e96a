"""Build a backend's engines for an engine directory, and add them to its manifest. No torch here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..atomic import whole_file
from ..backends import FOLDERS, BackendName, BackendRecord
from ..counts import plural
from ..errors import ExportError, MissingDependencyError
from ..gpus import compute_capabilities
from ..machine import memory
from ..manifest import Manifest
from ..plugin_library import BUILD as BUILD_PLUGIN
from ..plugin_library import find_plugin
from . import build_graph as graphs
from .build_directory import only_build, swap
from .build_engine import EnginePlan, Settings, build_engine
from .build_library import BuilderLibrary, capability_member, import_builder, load_plugin_for_building
from .vision_bodies import Form

Progress = Callable[[str, float | None], None]
PluginChoice = Literal["auto", "none"] | Path

DEFAULT_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0")  # of TensorRT-RTX, where no GPU is here
LEAST_BUILDER_MEMORY = 64 << 20
TIMING_CACHE = "timing.cache"
HASHED_FILES = 64 << 20  # graphs up to this size are hashed before they are built from; larger files have a size
# Measured with TensorRT-RTX 1.7: a builder alone takes about half a gigabyte, and an engine's weights are held twice
# while it is built (as read, and as written).
BUILDER_BYTES = 600 << 20
COPIES_IN_MEMORY = 2
ENGINE_BYTES = 16 << 20  # of code, for each engine


@dataclass(frozen=True)
class Estimate:
    """Bytes, before anything is built: peak memory of the build, and all engines on the disk."""

    memory: int
    disk: int


@dataclass(frozen=True)
class Prepared:
    """A backend that can be built here: its library, what to build for, and the plugin (None: bodies)."""

    library: BuilderLibrary
    compute_capabilities: tuple[str, ...]
    plugin: Path | None
    plugin_version: str | None
    note: str | None


def prepare(
    backend: BackendName,
    plugin: PluginChoice = "auto",
    capabilities: Sequence[str] | None = None,
    builder_memory: int | None = None,
) -> Prepared:
    """Everything that can be refused before an export begins: ExportError or MissingDependencyError says what.

    capabilities: such as `8.9`; None means the GPUs of this machine, and DEFAULT_CAPABILITIES where it has none.
    """
    if builder_memory is not None and builder_memory < LEAST_BUILDER_MEMORY:
        raise ExportError(
            f"the builder memory is {plural(builder_memory, 'byte')}; kernels find no workspace in less than "
            f"{LEAST_BUILDER_MEMORY >> 20} MiB: give more, or leave it out"
        )
    library = import_builder(backend)
    local = compute_capabilities()
    if backend == "tensorrt":
        chosen = _of_this_gpu(capabilities, local)
    else:
        chosen = tuple(capabilities or local or DEFAULT_CAPABILITIES)
        for capability in chosen:
            capability_member(library.trt, capability)
    path, note = _plugin(plugin)
    version = None if path is None else load_plugin_for_building(library, path)
    return Prepared(library, chosen, path, version, note)


def build_engines(
    directory: Path,
    prepared: Prepared,
    builder_memory: int | None = None,
    timing_cache: Path | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> BackendRecord:
    """Build the engines and put them into `directory` and its manifest, in the place of those that are there.

    All of them appear or none. builder_memory: workspace of a kernel, in bytes. timing_cache: TensorRT's, default:
    beside the engines; TensorRT-RTX has none. announce(text): told the estimate before the work begins. Raises
    ExportError, also where another process builds in the directory or it cannot be written; EngineError for a
    directory that is none or whose files were changed.
    """
    report = progress or (lambda stage, share: None)
    library = prepared.library
    manifest = Manifest.read(directory)
    check_timing_cache(timing_cache)
    try:
        with only_build(directory):
            plans = _plans_of_whole_files(directory, manifest, prepared)
            expected = estimate(plans)
            announce(
                f"{library.name} {library.version} for {', '.join(prepared.compute_capabilities)}: engines of about "
                f"{expected.disk / 1e9:.2f} GB, building them takes about {expected.memory / 1e9:.1f} GB of memory"
            )
            check_room(expected, directory)
            return _build_all(directory, manifest, prepared, plans, builder_memory, timing_cache, report)
    except BrokenPipeError:  # of who reads the progress
        raise
    except OSError as error:
        raise ExportError(
            f"the engines cannot be written to {directory} ({error.strerror or error}: {error.filename or directory}); "
            "make room, or build for an engine directory that you may write to"
        ) from None


def _build_all(
    directory: Path,
    manifest: Manifest,
    prepared: Prepared,
    plans: Sequence[EnginePlan],
    builder_memory: int | None,
    timing_cache: Path | None,
    report: Progress,
) -> BackendRecord:
    library = prepared.library
    folder = directory / FOLDERS[library.name]
    kept = timing_cache or folder / TIMING_CACHE
    cache = (kept.read_bytes() if kept.is_file() else b"") if library.name == "tensorrt" else None
    settings = Settings(prepared.compute_capabilities, builder_memory, cache)
    work = Path(tempfile.mkdtemp(prefix=".engines.", suffix=".partial", dir=directory))
    try:
        new = work / folder.name
        new.mkdir()
        engines = {}
        for plan in plans:
            stage = f"building {folder.name}/{plan.name}.engine"
            report(stage, None)
            built = build_engine(
                library, plan, settings, new / f"{plan.name}.engine", lambda share, stage=stage: report(stage, share)
            )
            _check_plugin_layers(manifest, plan, built.plugin_layers)
            engines[plan.name] = built.file
            settings = replace(settings, timing_cache=built.timing_cache)
        if settings.timing_cache is not None:
            with whole_file(new / TIMING_CACHE if timing_cache is None else timing_cache) as part:
                part.write_bytes(settings.timing_cache)
        record = BackendRecord(library.version, prepared.compute_capabilities, prepared.plugin_version, engines)
        now = Manifest.read(directory)  # a build takes minutes, in which the directory may have been exported again
        if now.files != manifest.files:
            raise ExportError(f"{directory} was exported again while its engines were built; build them again")
        with swap(folder, new, work / "old"):
            replace(now, backends={**now.backends, library.name: record.to_dict()}).write(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return record


def check_timing_cache(path: Path | None) -> None:
    """ExportError where a timing cache cannot be written to `path`, which else shows after the minutes of a build."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ExportError(f"the timing cache cannot be written to {path}: give a file in a folder that is there")


def _plans_of_whole_files(directory: Path, manifest: Manifest, prepared: Prepared) -> list[EnginePlan]:
    """`plan_engines`, once the files are known to be those of the manifest: a cut one would end the process."""
    if manifest.weights is None:
        manifest.check_files(directory, HASHED_FILES)
    return plan_engines(directory, manifest, prepared.plugin is not None, _vision_form(prepared.library))


def plan_engines(directory: Path, manifest: Manifest, with_plugin: bool, form: Form = "standard") -> list[EnginePlan]:
    """The engines of a backend: vision, and the decoder as one (with the plugin) or two. form: of the vision bodies."""
    if manifest.weights is not None:
        raise ExportError(
            f"{directory} has {manifest.weights} weights, whose matrix products only ONNX Runtime has; engines are "
            "built from an export without --weights"
        )
    max_visual = manifest.capacities.max_visual_tokens
    max_fixation = max_visual if with_plugin else min(max_visual, graphs.MAX_TOPK)
    ranges = {
        "prefill": graphs.decoder_ranges(manifest, False, max_fixation),
        "decode": graphs.decoder_ranges(manifest, True, max_fixation),
        "vision": graphs.vision_ranges(manifest),
    }
    if with_plugin and "decoder_plugin" not in manifest.files:
        raise ExportError(
            f"{directory} has no decoder_plugin.onnx: it was exported by an older fastocr-trt; export the checkpoint "
            "again, or build without the plugin: --plugin none"
        )
    wanted = [("vision", "vision", ("vision",))]
    if with_plugin:
        wanted.append(("decoder", "decoder_plugin", ("prefill", "decode")))
    else:
        wanted += [("dense", "dense", ("prefill", "decode")), ("fast", "fast", ("decode",))]
    plans = []
    for name, file, profiles in wanted:
        path = directory / manifest.files[file].file
        model = graphs.load_graph(path)
        if name == "vision":
            graphs.use_vision_bodies(model, form)
        graphs.fix_sizes(model, graphs.bank_rows(manifest))
        shapes = {profile: graphs.profile_shapes(model, ranges[profile]) for profile in profiles}
        plans.append(EnginePlan(name, model, path, shapes))
    return plans


def estimate(plans: Sequence[EnginePlan]) -> Estimate:
    """From the weights alone: engines are built one after the other, so the largest decides the memory."""
    weights = [sum(graphs.external_weights(plan.model).values()) for plan in plans]
    memory = BUILDER_BYTES + COPIES_IN_MEMORY * max(weights)
    return Estimate(memory, sum(weights) + ENGINE_BYTES * len(plans))


def check_room(expected: Estimate, directory: Path) -> None:
    """ExportError where this machine has less memory or disk free than the estimate."""
    free = shutil.disk_usage(directory).free
    if free < expected.disk:
        raise ExportError(
            f"the engines need about {expected.disk / 1e9:.1f} GB and the disk of {directory} has {free / 1e9:.1f} GB "
            "free; make room, or move the engine directory to another disk"
        )
    available = memory("MemAvailable")
    if 0 < available < expected.memory:
        raise ExportError(
            f"building needs about {expected.memory / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are "
            "available; end other programs, or build on a larger machine"
        )


def _of_this_gpu(capabilities: Sequence[str] | None, local: tuple[str, ...]) -> tuple[str, ...]:
    """TensorRT builds for the GPU it runs on, and for no other."""
    if not local:
        raise ExportError(
            "TensorRT builds for the GPU that it runs on and nvidia-smi finds none; build on the machine that will run "
            "the engines, or use --backend tensorrt-rtx, which builds without a GPU"
        )
    foreign = [capability for capability in capabilities or () if capability not in local]
    if foreign:
        raise ExportError(
            f"TensorRT builds for the GPU that it runs on, of compute capability {', '.join(local)}, not for "
            f"{', '.join(foreign)}; leave --compute-capability out, or use --backend tensorrt-rtx"
        )
    return tuple(capabilities or local[:1])


def _plugin(choice: PluginChoice) -> tuple[Path | None, str | None]:
    """The plugin library to use, and what to say where it is not there."""
    if choice == "none":
        return None, None
    if choice != "auto":
        return find_plugin(choice), None
    try:
        return find_plugin(), None
    except MissingDependencyError:
        return None, (
            "no plugin library is here, so the engines are built from function bodies: they read at most "
            f"{graphs.MAX_TOPK} visual tokens a fixation and hold the decoder's weights twice; {BUILD_PLUGIN}"
        )


def _vision_form(library: BuilderLibrary) -> Form:
    """The vision bodies that the library reads best: one without attention layers has no importer for Attention."""
    return "standard" if hasattr(library.trt, "IAttentionInputLayer") else "plain"


def _check_plugin_layers(manifest: Manifest, plan: EnginePlan, count: int) -> None:
    expected = manifest.decoder.num_layers if plan.name == "decoder" else 0
    if count != expected:
        raise ExportError(
            f"{plan.name} has {plural(count, 'plugin layer')} in place of {expected}: the library did not use the "
            "plugin for every layer; update it, or give --plugin none"
        )
