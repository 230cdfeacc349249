#!/usr/bin/env python3
"""Records how Pillow and `transformers` read and prepare a few pictures, for tests/picture_files.rs.

  pip install numpy pillow transformers      (transformers 5; no torch is needed)
  python3 tests/tools/make_picture_references.py [--out tests/fixtures/pictures]

Writes the pictures and references.npz:
  KIND_rgb      uint8 [height, width, 3]   each picture of KINDS upright and on white, as Pillow reads it
  WxH_scaled    uint8 [H, W, 3]            photo.png scaled by Pillow's BICUBIC
  patches       float32 [n, 3 * 4 * 4]     photo.png prepared by Qwen2VLImageProcessorPil with patches of 4 pixels in groups of 2 x 2
  sizes         int32 [n, 6]               height, width, min_pixels, max_pixels and the two sides that smart_resize makes of them
"""
import argparse
import pathlib
import random

import numpy as np
from PIL import Image, ImageDraw, ImageOps

SCALED = [(93, 61), (32, 32), (128, 96), (93, 40), (17, 61), (8, 200), (1, 1)]
PATCH, MERGE, MEAN, STD = 4, 2, [0.48, 0.45, 0.4], [0.26, 0.25, 0.27]


def photo():
    """Something with edges, soft changes and noise."""
    y, x = np.mgrid[0:61, 0:93]
    rng = np.random.default_rng(7)
    base = np.stack([x * 255 / 92, y * 255 / 60, 128 + 100 * np.sin(x / 9 + y / 5)], axis=-1)
    image = Image.fromarray(np.clip(base + rng.normal(0, 6, base.shape), 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((10, 12, 44, 50), fill=(250, 240, 20), outline=(0, 0, 0))
    draw.rectangle((55, 8, 85, 30), fill=(20, 40, 200))
    draw.line((50, 60, 92, 33), fill=(255, 255, 255), width=2)
    return image


def pictures(image):
    """Every kind of file: name, picture, how it is written."""
    clear = image.convert("RGBA")
    clear.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 93).astype(np.uint8), (61, 1))))
    small = image.resize((40, 30))
    turned = {}
    for orientation in (3, 6, 8):
        turned[orientation] = Image.Exif()
        turned[orientation][0x0112] = orientation
    frames = {"save_all": True, "append_images": [Image.new("RGB", (40, 30), (200, 0, 0))], "duration": 100}
    return [
        ("photo.png", image, {}),
        ("alpha.png", clear, {}),
        ("grey.png", image.convert("L"), {}),
        ("palette.png", image.quantize(64), {}),
        ("photo.jpg", image, {"quality": 92}),
        ("progressive.jpg", image, {"quality": 92, "progressive": True, "subsampling": 0}),
        ("cmyk.jpg", image.convert("CMYK"), {"quality": 95}),
        *((f"turned{n}.jpg", small, {"quality": 95, "subsampling": 0, "exif": exif}) for n, exif in turned.items()),
        ("lossless.webp", image, {"lossless": True}),
        ("alpha.webp", clear, {"lossless": True, "exact": True}),
        ("lossy.webp", image, {"quality": 90}),
        ("frames.gif", small, frames),
    ]


def upright_on_white(path):
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "P" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode in ("RGBA", "P", "LA"):
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return image.convert("RGB")


def sizes():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = random.Random(3)
    cases = [(16, 16), (48, 48), (80, 112), (32, 6400), (1, 200), (1080, 1920), (3024, 4032), (8000, 6000), (1, 1), (33, 31)]
    cases += [(int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))) for _ in range(300)]
    out = []
    for height, width in cases:
        if max(height, width) / min(height, width) > 200:
            continue
        for least, most in [(8, 4096), (64, 1280), (1, 100000)]:
            limits = (least * 1024, most * 1024)
            out.append((height, width, *limits, *smart_resize(height, width, 32, *limits)))
    return np.array(out, np.int32)


def main():
    here = pathlib.Path(__file__).resolve().parent
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=pathlib.Path, default=here.parent / "fixtures" / "pictures")
    out = ap.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    arrays = {"sizes": sizes()}
    for name, image, options in pictures(photo()):
        image.save(out / name, **options)
        arrays[name.replace(".", "_") + "_rgb"] = np.asarray(upright_on_white(out / name))
    image = Image.open(out / "photo.png")
    for width, height in SCALED:
        arrays[f"{width}x{height}_scaled"] = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))

    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    side = PATCH * MERGE
    limits = {"shortest_edge": 4 * side * side, "longest_edge": 60 * side * side}
    processor = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, size=limits, image_mean=MEAN, image_std=STD)
    done = processor(images=image, return_tensors="np")
    values = np.asarray(done["pixel_values"]).reshape(-1, 3, 2, PATCH, PATCH)
    # A still is one frame twice.
    assert (values[:, :, 0] == values[:, :, 1]).all()
    arrays["patches"] = values[:, :, 0].reshape(len(values), -1).astype(np.float32)
    arrays["patches_grid"] = np.asarray(done["image_grid_thw"])[0, 1:].astype(np.int32)
    np.savez_compressed(out / "references.npz", **arrays)


if __name__ == "__main__":
    main()
