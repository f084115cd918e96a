"""Write examples/page-1.png to page-3.png and their texts: the pages of seeds 1 to 3, in three sizes.

Run from the repository root: python tools/make_examples.py
"""

from __future__ import annotations

from pathlib import Path

from fastocr_trt.demo.pages import generate_page

EXAMPLES = {1: 768, 2: 384, 3: 128}
"""seed, which is also the page's number -> visual tokens."""


def main(folder: Path = Path("examples")) -> None:
    folder.mkdir(exist_ok=True)
    for seed, visual_tokens in EXAMPLES.items():
        page = generate_page(seed, visual_tokens=visual_tokens)
        page.image.save(folder / f"page-{seed}.png", optimize=True)
        (folder / f"page-{seed}.txt").write_text(page.text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
