"""The kernels that TensorRT-RTX compiles when it loads an engine, kept from one run to the next."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from ..atomic import whole_file
from ..backends import BackendRecord
from ..cache_folder import cache_folder

DIGEST_SIZE = hashlib.sha256().digest_size

log = logging.getLogger("fastocr_trt.tensorrt")


def kernel_cache_file(record: BackendRecord, version: str, capability: str) -> Path:
    """In the user's cache folder: a file for these engines, this version of the library and a GPU of `capability`."""
    engines = "".join(file.sha256 for _, file in sorted(record.engines.items()))
    name = f"{hashlib.sha256(engines.encode()).hexdigest()[:32]}-{version}-sm{capability}.cache"
    return cache_folder() / "tensorrt_rtx" / name


class KernelCache:
    """One runtime cache of TensorRT-RTX, for all contexts of a session; in `file`, behind the SHA-256 of its content.

    Whatever is wrong with the file, its folder or its content costs the time to compile, and nothing else: the library
    itself refuses kernels of another GPU, driver or version. For one thread; outlives the contexts made with it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._cache: Any = None
        self._stored = b""  # what the file holds, where that was taken

    def attach(self, config: Any) -> None:
        """Let contexts that are made from `config`, an IRuntimeConfig, take kernels from the cache and add theirs."""
        try:
            if self._cache is None:
                self._cache = config.create_runtime_cache()
                self._fill()
            if not config.set_runtime_cache(self._cache):
                log.info("TensorRT-RTX takes no runtime cache; it compiles its kernels")
        except Exception as error:
            log.info("kernels are not kept: %s", error)

    def save(self) -> None:
        """Write the file where kernels came to it, and let go of the cache. The contexts must be gone."""
        cache, self._cache = self._cache, None
        if cache is None:
            return
        try:
            content = bytes(cache.serialize())
            # A relative path is a home folder that is not known: nothing is put into the folder at hand.
            if content and content != self._stored and self._file.is_absolute():
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(self._file) as part:
                    part.write_bytes(hashlib.sha256(content).digest() + content)
        except Exception as error:
            log.info("kernels are not kept in %s: %s", self._file, error)

    def _fill(self) -> None:
        try:
            data = self._file.read_bytes()
        except OSError:
            return  # the first run, or a folder that is not ours to read
        digest, content = data[:DIGEST_SIZE], data[DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            log.info("%s is damaged; the kernels are compiled again", self._file)
        elif self._cache.deserialize(content):
            self._stored = content
        else:
            log.info("%s is of another GPU, driver or library; the kernels are compiled again", self._file)
