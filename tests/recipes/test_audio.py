"""Audio decoded by libsndfile."""

from pathlib import Path

import numpy as np
import pytest

from .page import run_recipe

soundfile = pytest.importorskip("soundfile")

RATE = 8000
STEP = 1 / 2**15  # of 16-bit samples


@pytest.fixture
def recordings(folder):
    """Write five recordings of different lengths, mono and stereo; give their samples."""
    rng = np.random.default_rng(0)
    Path("audio").mkdir()
    written = {}
    for number in range(5):
        shape = (RATE + 1500 * number, 1 + number % 2)
        wave_TC = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        soundfile.write(f"audio/{number}.flac", wave_TC, RATE)
        written[str(Path("audio", f"{number}.flac"))] = wave_TC
    return written


def clips_of(run):
    """Give every clip of an epoch: path, start, samples, spectrogram."""
    return [
        clip
        for batch in run
        for clip in zip(batch["path"], batch["start_s"], batch["wave"], batch["power"], strict=True)
    ]


def test_clips_are_what_was_written(recordings):
    """Every clip has the samples of its place in its recording."""
    close = [
        np.allclose(
            wave_T, recordings[path].mean(axis=1)[round(start_s * RATE) :][: len(wave_T)], atol=STEP
        )
        for path, start_s, wave_T, _ in clips_of(run_recipe("Audio")["pipe"])
    ]
    count = sum(len(wave_TC) // (RATE // 2) for wave_TC in recordings.values())
    assert (count, {True}) == (len(close), set(close))


def test_every_place_comes_once(recordings):
    """Clips follow one another without a gap, in an order of their own in each epoch."""
    with run_recipe("Audio")["pipe"].start() as run:
        first, second = ([clip[:2] for clip in clips_of(run)] for _ in range(2))
    expected = sorted(
        (path, number / 2)
        for path, wave_TC in recordings.items()
        for number in range(len(wave_TC) // (RATE // 2))
    )
    assert (expected, expected, False) == (sorted(first), sorted(second), first == second)


def test_spectrogram_shows_the_pitch(folder):
    """A tone of 1 kHz is the strongest in the band of 1 kHz."""
    Path("audio").mkdir()
    tone_T = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE)
    soundfile.write("audio/tone.flac", tone_T, RATE)
    bands = {
        int(frame_K.argmax()) * RATE / 512
        for *_, power_FK in clips_of(run_recipe("Audio")["pipe"])
        for frame_K in power_FK
    }
    assert {1000.0} == bands


def test_whole_files_are_padded(recordings):
    """Files of different lengths become one array, zero behind their end."""
    mono = run_recipe("Audio")
    files = mono["files"].filter(lambda path: path.stem in "024").map(mono["read_file"])
    (batch,) = files.batch(8, pad=0.0)
    lengths = {len(recordings[f"audio/{number}.flac"]) for number in (0, 2, 4)}
    tails = [
        float(np.abs(wave_T[length:]).max(initial=0.0))
        for wave_T, length in zip(batch["wave"], batch["length"], strict=True)
    ]
    expected = ((3, max(lengths)), lengths, [0.0] * 3)
    assert expected == (batch["wave"].shape, set(batch["length"].tolist()), tails)
