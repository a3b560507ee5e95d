"""Video decoded by FFmpeg; a frame tells its number by its brightness."""

from pathlib import Path

import numpy as np
import pytest

from .page import both_executors, run_recipe

av = pytest.importorskip("av")

RATE, FRAMES, KEYFRAME_EVERY = 24, 40, 12
CODECS = ["mpeg4", "libx264", "mpeg4"]


RAMP = np.linspace(-20, 20, 64)[None, :, None]  # so that no frame looks like a new scene


def brightness(video, number):
    """Give the mean grey of a frame: the steps are larger than what compression changes."""
    return 25 + 5 * number + video


def write_video(path, video):
    """Write 40 frames with a keyframe every twelve; H.264 stores some after later ones."""
    with av.open(path, "w") as container:
        stream = container.add_stream(CODECS[video], rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.bit_rate = KEYFRAME_EVERY, 2_000_000
        for number in range(FRAMES):
            image_HWC = np.broadcast_to(brightness(video, number) + RAMP, (48, 64, 3))
            frame = av.VideoFrame.from_ndarray(image_HWC.astype(np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.fixture
def videos(folder):
    """Write three videos; give their paths."""
    Path("videos").mkdir()
    paths = [str(Path("videos", f"{video}.mp4")) for video in range(len(CODECS))]
    for video, path in enumerate(paths):
        write_video(path, video)
    return paths


def decoded(path):
    """Give the frames of a video by the plainest way: from the first to the last."""
    with av.open(path) as container:
        return [
            frame.to_ndarray(format="rgb24", width=112, height=112)
            for frame in container.decode(video=0)
        ]


@pytest.mark.slow
@both_executors
def test_every_frame_comes_once(videos, executor):
    """Frames come in the order of the videos, as a decoder that never seeks gives them."""
    batches = list(run_recipe("Video", executor)["pipe"])
    places = [
        (path, round(time_s * RATE))
        for batch in batches
        for path, time_s in zip(batch["path"], batch["time_s"], strict=True)
    ]
    expected = np.stack([image_HWC for path in videos for image_HWC in decoded(path)])
    same = np.array_equal(expected, np.concatenate([batch["image"] for batch in batches]))
    assert ([(path, n) for path in videos for n in range(FRAMES)], True) == (places, same)


def test_stretches_begin_at_keyframes(videos):
    """A video of 40 frames with a keyframe every twelve has four stretches."""
    names = run_recipe("Video")
    lengths = [len(list(names["frames"](s))) for s in names["stretches"](videos[0])]
    assert lengths == [12, 12, 12, 4]


@both_executors
def test_clips_are_neighbours_from_the_place_drawn(videos, executor):
    """A clip is eight frames that follow one another, from the one that its time names."""
    batches = list(run_recipe("Video", executor)["batches"])
    off = [
        np.abs(
            clip_FHWC.mean(axis=(1, 2, 3))
            - [brightness(videos.index(path), round(time_s * RATE) + n) for n in range(8)]
        ).max()
        for batch in batches
        for path, time_s, clip_FHWC in zip(
            batch["path"], batch["time_s"], batch["clip"], strict=True
        )
    ]
    assert (len(off), max(off) < 2) == (4 * len(CODECS), True)


@both_executors
def test_clips_depend_on_the_seed_alone(videos, executor):
    """The same seed draws the same clips again, the next epoch and another seed others."""
    batches = run_recipe("Video", executor)["clips"]

    def places(seed):
        with batches.start(seed=seed) as run:
            return [sorted((clip["path"], clip["time_s"]) for clip in run) for _ in range(2)]

    first, again, other = places(0), places(0), places(1)
    assert (first == again, first[0] == first[1], first == other) == (True, False, False)
