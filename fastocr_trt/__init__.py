"""FastOCR: read documents with a vision-language model that looks at a few per cent of the page at each step.

The method is in `reference.py` (the oracle) and `fixation.py` (the policy). `fastocr_trt.export` turns a
checkpoint into an engine directory and needs torch; `fastocr_trt.runtime` runs one and does not.
"""

__version__ = "0.1.0"
