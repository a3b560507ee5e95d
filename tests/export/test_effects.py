"""Side effects of the notebook that are not in the module: they are noted."""

from tests.export.notebooks import Notebook


def test_what_acts_on_the_module_is_noted(notebook: Notebook):
    """Seeds and settings of what the module uses are noted; what only shows something is not."""
    exported = notebook.exported(
        """
        import random
        import nbpipe
        import numpy as np
        # ---- next cell
        def seed_everything(seed=1):
            random.seed(seed)
            np.random.seed(seed)

        def show(x):
            print(x)
        # ---- next cell
        seed_everything(7)
        np.seterr(all="ignore")
        np.set_printoptions(precision=3)
        show(np.arange(3))
        np.arange(3).sum()
        # ---- next cell
        def decode(x):
            return np.float32(x) / 2
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert [note.partition(" acts")[0] for note in exported.notes] == [
        "`seed_everything(7)` in In[3]",
        "`np.seterr(all='ignore')` in In[3]",
    ]
    assert all(note.endswith("with the line `#| nbpipe: setup`") for note in exported.notes)
    assert exported.names == ["decode"]


def test_seed_of_what_the_module_does_not_use(notebook: Notebook):
    """A function that seeds is not noted where the module draws nothing at random."""
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        def set_seed(seed):
            np.random.seed(seed)

        set_seed(7)
        # ---- next cell
        def decode(x):
            return x / 2
        # ---- next cell
        pipe = nbpipe.source(range(5)).map(decode)
        report = pipe.export("loader.py")
        """
    )
    assert exported.notes == []
