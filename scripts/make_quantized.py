"""Write qrun/ops/quantized.txt, the operators with scales or zero points, from their declarations:
python scripts/make_quantized.py

With it, the rules about them name them all without importing them.
"""

from __future__ import annotations

from pathlib import Path

from qrun.ops._quantized import quantized_index

TARGET = Path(__file__).parents[1] / "qrun" / "ops" / "quantized.txt"

if __name__ == "__main__":
    TARGET.write_text(quantized_index(), encoding="ascii")
