"""policy.json, as fastocr-calibrate writes it or by hand."""

from __future__ import annotations

from pathlib import Path

from .errors import FastOCRError
from .fixation import FixationPolicy
from .records import parse_json


def read_policy(path: Path) -> tuple[FixationPolicy, dict | None]:
    """The policy in a JSON file, and the record of its calibration where fastocr-calibrate wrote it.

    FastOCRError where the file holds neither a policy's fields nor {"policy": ..., "calibration": ...}.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FastOCRError(f"there is no policy file {path}") from None
    except (OSError, ValueError) as error:
        raise FastOCRError(f"the policy file {path} is not readable JSON ({error})") from None
    if not isinstance(data, dict) or "policy" not in data:
        return FixationPolicy.from_dict(data), None
    unknown = sorted(set(data) - {"policy", "calibration"})
    record = data.get("calibration")
    if unknown or not isinstance(record, dict | None):
        what = f"has unknown fields {unknown}" if unknown else "has a calibration that is no JSON object"
        raise FastOCRError(f"the policy file {path} {what}; give the file as fastocr-calibrate wrote it")
    return FixationPolicy.from_dict(data["policy"]), record
