"""A dataset class as in torchvision, and a table of files."""

import shutil

import numpy as np
import pytest

import nbpipe

from .page import both_executors, run_recipe

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("pandas")


@pytest.fixture
def classes(photos, folder):
    """Copy the photographs into one folder for each class; give the classes."""
    shutil.copytree(photos[0].parents[1], folder / "photos")
    return sorted({path.parent.name for path in photos})


def right_pixels(path):
    """Give the pixels that the recipe's transform makes of an image."""
    return np.asarray(Image.open(path).resize((128, 128)), np.float32) / 255


def count_right(found, photos, classes):
    """Count the photographs whose pixels came with the label of their folder."""
    return sum(
        found.get(right_pixels(path).tobytes()) == classes.index(path.parent.name)
        for path in photos
    )


@both_executors
def test_every_image_comes_with_its_label(photos, classes, executor):
    """Every photograph comes once, transformed, with the number of its class."""
    batches = list(run_recipe("Dataset classes", executor)["pipe"])
    found = {
        image_HWC.tobytes(): int(label)
        for batch in batches
        for image_HWC, label in zip(batch["image"], batch["label"], strict=True)
    }
    expected = (len(photos), len(photos))
    assert expected == (count_right(found, photos, classes), sum(len(b["label"]) for b in batches))


def test_dataset_counts_its_classes(photos, classes):
    """The dataset knows its length and classes, and gives an image without a transform."""
    names = run_recipe("Dataset classes")
    dataset = names["ImageFolder"]("photos")
    image, label = dataset[len(dataset) - 1]
    expected = (len(photos), classes, (192, 192), len(classes) - 1)
    assert expected == (len(dataset), dataset.classes, image.size, label)


def test_two_ranks_share_the_samples(photos, classes):
    """Two ranks read every index once between them."""
    names = run_recipe("Dataset classes")
    ranks = [
        names["order"].shard(rank, 2).map(names["dataset"].__getitem__, name="load")
        for rank in range(2)
    ]
    found = {image_HWC.tobytes(): label for pipe in ranks for image_HWC, label in pipe}
    expected = (len(photos), [len(photos) // 2] * 2)
    assert expected == (count_right(found, photos, classes), [len(pipe) for pipe in ranks])


def test_rows_of_a_table(photos, classes):
    """Every row of the table gives its image and keeps its other columns."""
    batches = list(run_recipe("Dataset classes")["batches"])
    found = {
        image_HWC.tobytes(): classes.index(label)
        for batch in batches
        for image_HWC, label in zip(batch["image"], batch["label"], strict=True)
    }
    assert len(photos) == count_right(found, photos, classes)


def test_torch_dataset_in_its_place(torch, photos, classes):
    """A torch `Dataset` that gives tensors takes the class's place unchanged."""
    images = run_recipe("Dataset classes")["ImageFolder"]("photos", right_tensor)

    class Tensors(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return images[index]

    dataset = Tensors()
    pipe = nbpipe.source(range(len(dataset))).map(dataset.__getitem__, name="load").batch(32)
    images_BHWC, labels = next(iter(pipe))
    expected = (torch.Size([32, 128, 128, 3]), [label for _, label in images.samples[:32]])
    assert expected == (images_BHWC.shape, labels.tolist())


def right_tensor(image):
    """Make a tensor of an image, as a torchvision transform does."""
    import torch

    return torch.from_numpy(np.asarray(image.resize((128, 128))).copy())
