"""Built-in models have the parameters that are published for them. Nothing is allocated or run."""

from __future__ import annotations

import pytest
from tools.sizes import parameters

from partita import models

# Counts of checkpoints are those that Hugging Face shows for their safetensors.
PUBLISHED = {
    "llama3-8b": 8_030_261_248,  # meta-llama/Llama-3.1-8B
    "llama3-70b": 70_553_706_496,  # meta-llama/Llama-3.1-70B
    "llama3-405b": 405_853_388_800,  # meta-llama/Llama-3.1-405B
    "gemma2-2b": 2_614_341_888,  # google/gemma-2-2b
    "gemma2-9b": 9_241_705_984,  # google/gemma-2-9b
    "gemma2-27b": 27_227_128_320,  # google/gemma-2-27b
    "gemma3-1b": 999_885_952,  # google/gemma-3-1b-pt
    # google/gemma-3-4b-pt without its vision tower and the projection from there.
    "gemma3-4b": 4_300_079_472 - 416_866_032 - 2_950_272,
    "mixtral-8x7b": 46_702_792_704,  # mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x22b": 140_620_634_112,  # mistralai/Mixtral-8x22B-v0.1
    "qwen3-0.6b": 596_049_920,  # Qwen/Qwen3-0.6B, the tied output once
    "qwen3-8b": 8_190_735_360,  # Qwen/Qwen3-8B
    "qwen3-32b": 32_762_123_264,  # Qwen/Qwen3-32B
    "qwen3-30b-a3b": 30_532_122_624,  # Qwen/Qwen3-30B-A3B
    "qwen3-235b-a22b": 235_093_634_560,  # Qwen/Qwen3-235B-A22B
    # openai/whisper-tiny and -large-v3 without the waves for positions, 1,500 rows.
    "whisper-tiny": 37_760_640 - 1500 * 384,
    "whisper-large-v3": 1_543_490_560 - 1500 * 1280,
    "sdxl": 2_567_463_684,  # stabilityai/stable-diffusion-xl-base-1.0, unet
    # facebook/DiT-XL-2-256 without the waves for positions, 256 rows, and the keys' biases.
    "dit-xl2": 675_129_632 - 256 * 1152 - 28 * 1152,
}

ROUNDED = {
    "gpt-oss-20b": (20.91, 1e9),  # arXiv 2508.10925, table 1
    "gpt-oss-120b": (116.83, 1e9),
    "deepseek-v3": (671, 1e9),  # arXiv 2412.19437, abstract
    "gemma3-12b": (10.759 + 1.012, 1e9),  # arXiv 2503.19786, table 1; embeddings of 262,144 rows
    "gemma3-27b": (25.600 + 1.416, 1e9),
    "vit-22b": (21743, 1e6),  # arXiv 2302.05442, table 1: the layers
    "whisper-small": (244, 1e6),  # arXiv 2212.04356, table 1
    "dit-b2": (130, 1e6),  # arXiv 2212.09748, table 1
    "vit-b16": (86, 1e6),  # arXiv 2010.11929, table 1
    "vit-l16": (307, 1e6),
    "resnet50": (25.6, 1e6),  # arXiv 1512.03385
    "t5-3b": (2.8, 1e9),  # arXiv 1910.10683, section 3.7
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_has_the_published_parameters(preset):
    assert parameters(models.build(preset)) == PUBLISHED[preset]


@pytest.mark.parametrize("preset", ROUNDED)
def test_a_preset_is_as_large_as_its_paper_says(preset):
    published, unit = ROUNDED[preset]
    # Papers round, and leave biases, embeddings or positions out.
    assert parameters(models.build(preset)) / unit == pytest.approx(published, rel=0.02)


def test_the_list_of_sizes_is_that_of_the_presets():
    sizes = models.sizes.load()
    assert list(sizes) == list(models.names())
    known = PUBLISHED | {name: parameters(models.build(name)) for name in ROUNDED}
    assert {name: sizes[name].parameters for name in known} == known
