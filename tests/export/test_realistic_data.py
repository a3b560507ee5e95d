"""Notebooks that load data: images, tables, text, sound, data sets of torch."""

import pytest

from tests.export.notebooks import Notebook, lacking

pytestmark = pytest.mark.slow

IMAGES = """
# Fine-tuning data: one folder for each class.
from pathlib import Path

import matplotlib.pyplot as plt
import nbpipe
import numpy as np
from PIL import Image
%matplotlib inline
# ---- next cell
from skimage import data as samples

for label, picture in {"cat": samples.cat(), "coffee": samples.coffee()}.items():
    folder = Path("photos") / label
    folder.mkdir(parents=True)
    for n in range(3):
        Image.fromarray(picture[n * 20:, n * 20:]).resize((64, 48)).save(folder / f"{n}.jpg")
# ---- next cell
DATA = Path("photos")  # relative to the working directory
CLASSES = ["cat", "coffee"]
SIDE = 32
# ImageNet statistics
MEAN = np.array([0.485, 0.456, 0.406], dtype="float32")
STD = np.array([0.229, 0.224, 0.225], dtype="float32")
# ---- next cell
def load(path):
    # the folder is the label
    with Image.open(path) as image:
        image_HWC = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    return image_HWC, CLASSES.index(path.parent.name)


def normalise(sample):
    image_HWC, label = sample
    return (image_HWC / np.float32(255) - MEAN) / STD, label  # [0, 1], then ImageNet
# ---- next cell
plt.imshow(load(next(DATA.rglob("*.jpg")))[0])
plt.show()
# ---- next cell
pipe = (
    nbpipe.source(sorted(DATA.glob("*/*.jpg")), name="files")
    .map(load, concurrency=2)
    .map(normalise)
    .batch(4, names=("image", "label"))
)
# ---- next cell
pipe["load"].concurrency = 6
pipe["load"].prefetch = 12
report = pipe.export("loader.py")
"""


@pytest.mark.parametrize(
    "notebook", [("PIL.Image", "matplotlib.pyplot", "skimage.data")], indirect=True
)
def test_images(notebook: Notebook):
    """The values tuned are defaults; plots and samples stay behind."""
    pytest.importorskip("skimage")
    exported = notebook.exported(IMAGES)
    assert exported.tuned == {"load_concurrency": 6, "load_prefetch": 12, "batch_size": 4}
    assert exported.has('DATA = Path("photos")  # relative to the working directory')
    assert exported.has(
        '# ImageNet statistics\nMEAN = np.array([0.485, 0.456, 0.406], dtype="float32")'
    )
    assert [word for word in ("plt", "skimage", "samples", "0.jpg") if word in exported.text] == []


TABLE = """
import nbpipe
import numpy as np
import pandas as pd
# ---- next cell
frame = pd.DataFrame({"length": [5.0, 6.0, 7.0, 9.0], "width": [1.0, 3.0, 2.0, 2.0]})
frame["species"] = ["setosa", "virginica", "setosa", "virginica"]
frame.to_csv("iris.csv", index=False)
# ---- next cell
table = pd.read_csv("iris.csv")
FEATURES = ["length", "width"]
# computed on the training split
mean, std = table[FEATURES].mean().to_numpy(), table[FEATURES].std(ddof=0).to_numpy()
table.describe()
# ---- next cell
SPECIES = {name: n for n, name in enumerate(sorted(table["species"].unique()))}
del frame
# ---- next cell
def encode(row):
    features = np.array([row[name] for name in FEATURES])
    return (features - mean) / std, SPECIES[row["species"]]
# ---- next cell
def rows():
    return pd.read_csv("iris.csv").to_dict("records")

pipe = nbpipe.source(rows).shuffle(seed=3, buffer_size=4).map(encode).batch(2)
report = pipe.export("loader.py")
"""


@pytest.mark.parametrize("notebook", [("pandas",)], indirect=True)
def test_table(notebook: Notebook):
    """Constants that were computed from a table have the notebook's values in the module."""
    pytest.importorskip("pandas")
    exported = notebook.exported(TABLE)
    assert {"FEATURES", "mean", "std", "SPECIES", "encode", "rows"} <= set(exported.found["names"])
    assert exported.tuned == {"batch_size": 2}
    assert [word for word in ("describe", "to_csv", "ddof") if word in exported.text] == []


TORCH = """
import nbpipe
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
# ---- next cell
class Squares(Dataset):
    '''Squares of the first numbers.'''

    def __init__(self, count, *, shift=0.0):
        self.count = count
        self.shift = shift  # added to each

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.tensor([index**2 + self.shift])


class Countdown(IterableDataset):
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        return iter(range(self.start, 0, -1))
# ---- next cell
torch.manual_seed(0)
layer = nn.Linear(1, 2)
# ---- next cell
@torch.jit.script
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""


@pytest.mark.torch
@pytest.mark.parametrize("notebook", [("torch",)], indirect=True)
def test_torch(notebook: Notebook):
    """Data sets and modules without weights are made in the module as in the notebook."""
    exported = notebook.exported(
        TORCH
        + """
# ---- next cell
class Clip(nn.Module):
    def __init__(self, most: float):
        super().__init__()
        self.most = most

    def forward(self, x):
        return x.clamp(max=self.most)  # from above
# ---- next cell
data = Squares(6, shift=0.5)
clip = Clip(5.0)
squares = nbpipe.source(data).shuffle(seed=1).map(twice).map(clip).map(nn.ReLU())
pipe = nbpipe.zip(squares, nbpipe.source(Countdown(6), prefetch=3)).batch(4)
report = pipe.export("loader.py")
"""
    )
    assert exported.has("@torch.jit.script\ndef twice(x: torch.Tensor) -> torch.Tensor:")
    assert exported.has("data = Squares(6, shift=0.5)")
    assert exported.has("clip = Clip(5.0)")
    assert list(exported.tuned.values()) == [3, 4]


@pytest.mark.torch
@pytest.mark.parametrize("notebook", [("torch",)], indirect=True)
def test_torch_module_with_weights_is_refused(notebook: Notebook):
    """A network whose weights no statement of the pipeline gives: the refusal names it."""
    words = notebook.refused(
        TORCH
        + """
# ---- next cell
def predict(x):
    with torch.no_grad():
        return layer(x)
# ---- next cell
pipe = nbpipe.source(Squares(3)).map(predict)
# ---- next cell
pipe.export("loader.py")
"""
    )
    assert lacking(words, "'layer'", "In[3]", "used by", "predict() [In[5]]") == [], words


LOOK_UP = """
import nbpipe
import numpy as np
# ---- next cell
np.save("squares.npy", np.arange(1000.0) ** 2)
{made}
# ---- next cell
def look_up(n):
    return float(table[n])

pipe = nbpipe.source(range(5)).map(look_up)
# ---- next cell
report = pipe.export("loader.py"{options})
"""
LOADED = 'table = np.load("squares.npy")  # look-up'
AWAITED = """async def fetch():
    return np.load("squares.npy")
table = await fetch()"""
TENSOR = """import torch
table = torch.from_numpy(np.load("squares.npy"))"""


@pytest.mark.parametrize(
    ("notebook", "made"),
    [((), AWAITED), pytest.param(("torch",), TENSOR, marks=pytest.mark.torch)],
    ids=("awaited", "tensor"),
    indirect=["notebook"],
)
def test_arrays_saved_beside_the_module(notebook: Notebook, made: str):
    """With `assets="npz"` a large array from a file is saved beside the module."""
    exported = notebook.exported(LOOK_UP.format(made=made, options=', assets="npz"'))
    written = sorted(path.name for path in notebook.folder.iterdir())
    assert written == ["loader.npz", "loader.py", "squares.npy"]
    assert str(notebook.folder) not in exported.text
    assert "squares.npy" not in exported.text


def test_a_large_array_is_refused_without_assets(notebook: Notebook):
    """The refusal names the variable, who uses it, and the way out."""
    words = notebook.refused(LOOK_UP.format(made=LOADED, options=""))
    assert lacking(words, "'table'", "look_up() [In[3]]", 'assets="npz"') == [], words


@pytest.mark.parametrize("count", [4, 0])
def test_two_names_of_one_object(notebook: Notebook, count: int):
    """A list with two names is one object in the module too, with what it holds by now."""
    exported = notebook.exported(
        f"""import nbpipe
a = b = []
c = []
d = c
e, f = [[]] * 2
# ---- next cell
a.append(7)
c.append(7)
e.append(7)
# ---- next cell
def fill(x):
    for box in (a, c, e):
        box[:] = [7]
    return x

def read(x):
    return x, b, d, f
# ---- next cell
pipe = nbpipe.source(range(4)).map(fill).map(read)
report = pipe.export("loader.py", check_items={count})
"""
    )
    namespace: dict[str, object] = {}
    exec(exported.text, namespace)
    assert [namespace[one] is namespace[other] for one, other in ("ab", "cd", "ef")] == [True] * 3
