"""Vidur on our tables: `python studies/vidur_check.py FOLDER`, in an environment with `pip install vidur` (0.0.26).

FOLDER is what `pipewave export vidur --model Meta-Llama-3-8B --gpu H100 --out FOLDER` wrote. Vidur's own random forests
are trained on them, and what they answer is compared with the tables: mean error of each product over all token counts.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path

import pandas as pd
from vidur import config
from vidur.execution_time_predictor import sklearn_execution_time_predictor as reading
from vidur.execution_time_predictor.random_forrest_execution_time_predictor import RandomForrestExecutionTimePredictor

ABOUT = {"model": "meta-llama/Llama-3-8B", "device_sku": "h100", "sku": "h100_dgx"}
PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def packed(source: Path, target: Path) -> None:
    """The tables as Vidur downloads them; without tensor parallelism it only opens the one of all-reduces."""
    for name in ("mlp", "attention", "all_reduce", "send_recv"):
        table = source / f"{name}.csv" if (source / f"{name}.csv").exists() else source / "send_recv.csv"
        (target / f"{name}.csv.xz").write_bytes(lzma.compress(table.read_bytes()))
    (target / "config.json").write_text(json.dumps(ABOUT))


def main() -> int:
    """Print the errors; 1 where one is above 5 %."""
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        packed(source, Path(folder))
        reading.snapshot_download = lambda **_: folder  # nothing is downloaded
        settings = config.RandomForrestExecutionTimePredictorConfig(
            no_cache=True, prediction_max_tokens_per_request=8192, prediction_max_batch_size=64, num_estimators=[100],
            max_depth=[16], min_samples_split=[2], k_fold_cv_splits=2, num_training_job_threads=1, cache_dir=folder,
        )  # fmt: skip
        replica = config.ReplicaConfig(ABOUT["model"], tensor_parallel_size=1, num_pipeline_stages=1, device="h100")
        answered = RandomForrestExecutionTimePredictor(settings, replica, config.CacheConfig())._predictions
    table = pd.read_csv(source / "mlp.csv")
    errors = {}
    for name in PRODUCTS:
        times = zip(table["num_tokens"], table[f"time_stats.{name}.median"], strict=True)
        off = [abs(answered[name][(tokens,)] / time - 1) for tokens, time in times if (tokens,) in answered[name]]
        errors[name] = sum(off) / len(off)
        print(f"{name}: {100 * errors[name]:.1f} % over {len(off)} token counts")
    print("attention:", {name: len(answered[name]) for name in ("attn_prefill", "attn_decode")}, "batches answered")
    return 1 if max(errors.values()) > 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
