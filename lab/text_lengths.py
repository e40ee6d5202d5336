"""Counts of prompt and output lengths of recorded conversations: `python -m lab.text_lengths ROWS.npy --write`.

ROWS.npy holds (prompt, output) tokens of the first question and answer of each conversation. ShareGPT's are those of
ShareGPT_V3_unfiltered_cleaned_split.json (the first fifth of the file, 15,491 conversations that are left), in tokens
of a vocabulary of 131,072 (tekken_240911 of mistral_common), kept as `vllm bench serve` and SGLang's client keep them:
4 tokens and more each, prompts to 1,024, both together to 2,048. Only counts are shipped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import manifest
from pipewave.simulate.traffic import LENGTHS_FILE as FILE

FEWEST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048
EDGES = (
    4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 896, 1025, 1280, 1536,
    2049,
)  # fmt: skip
SOURCE = (
    "ShareGPT_V3_unfiltered_cleaned_split.json (huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered, "
    "Apache 2.0), its first fifth: tekken tokens of first questions and answers, filtered as vllm bench serve does"
)


def counts(rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The histogram of rows that a client would send, and their means."""
    prompt, output = rows.T
    kept = rows[(rows.min(axis=1) >= FEWEST) & (prompt <= LONGEST_PROMPT) & (prompt + output <= LONGEST)]
    prompts = [edge for edge in EDGES if edge <= LONGEST_PROMPT + 1]
    found, _, _ = np.histogram2d(kept[:, 0], kept[:, 1], bins=[np.array(prompts), np.array(EDGES)])
    return {
        "source": SOURCE,
        "mean_tokens": [round(float(mean), 1) for mean in kept.mean(axis=0)],
        "prompt_edges": prompts,
        "output_edges": list(EDGES),
        "counts": found.astype(int).tolist(),
    }


def main() -> None:
    """Print the means, or store the histogram with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--name", default="sharegpt")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = counts(np.load(given.rows))
    print(json.dumps({name: found[name] for name in ("source", "mean_tokens")}))
    if given.write:
        kept = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
        lines = ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in (kept | {given.name: found}).items())
        FILE.write_text("{\n" + lines + "\n}\n", "utf-8")
        manifest.write()


if __name__ == "__main__":
    main()
