"""FastOCR: read documents with a vision-language model that looks at a few per cent of the page at each step.

The method is in `reference.py` (the oracle) and `fixation.py` (the policy). `fastocr_trt.export` turns a
checkpoint into an engine directory and needs torch; `fastocr_trt.runtime` runs one and does not.
"""

import os

__version__ = "0.1.0"

# ONNX Runtime's telemetry begins when it is imported: it writes into the home folder, and reports over the network.
# Every part of this package that imports it comes after this line; a user's own setting stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
