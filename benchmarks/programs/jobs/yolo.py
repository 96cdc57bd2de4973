"""Ultralytics' own training of a small detector, from a generated data set."""

from pathlib import Path

import generated
import numpy as np
from ultralytics import YOLO


def main():
    root = Path("data").resolve()
    for part in ("train", "val"):
        generated.image_folder(root / "images" / part, per_class=8, size=64, classes_count=1)
        labels = root / "labels" / part / "class0"
        labels.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for number in range(8):
            box = " ".join(f"{value:.3f}" for value in rng.uniform(0.3, 0.5, 4))
            (labels / f"{number}.txt").write_text(f"0 {box}\n")
    (root / "data.yaml").write_text(
        f"path: {root}\ntrain: images/train\nval: images/val\nnames:\n  0: thing\n"
    )
    model = YOLO("yolov8n.yaml")
    model.train(
        data=str(root / "data.yaml"),
        epochs=3,
        imgsz=64,
        batch=4,
        nbs=4,
        workers=0,
        device="cpu",
        plots=False,
        seed=0,
        amp=False,
        project="out",
        exist_ok=True,
        verbose=False,
        optimizer="SGD",
    )


if __name__ == "__main__":
    main()
