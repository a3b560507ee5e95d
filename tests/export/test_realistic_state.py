"""Notebooks whose objects change: registries, counters, settings, names that are bound again."""

from tests.export.notebooks import Notebook, contents

EXPORT = """
# ---- next cell
pipe = nbpipe.source(range(5)).map(decode)
report = pipe.export("loader.py")
"""


def test_settings_in_namespaces(notebook: Notebook):
    """Parsed arguments and namespaces that were changed are written with their values."""
    exported = notebook.exported(
        """
        import argparse
        import nbpipe
        from types import SimpleNamespace
        # ---- next cell
        parser = argparse.ArgumentParser()
        parser.add_argument("--size", type=int, default=3)
        args = parser.parse_args([])
        # ---- next cell
        cfg = SimpleNamespace(root="x", deep=SimpleNamespace(k=1))  # settings
        cfg.deep.k = 4
        # ---- next cell
        def decode(x):
            return x * args.size + cfg.deep.k, cfg.root
        """
        + EXPORT
    )
    assert "Namespace(size=3)\n" in exported.text
    assert "cfg = SimpleNamespace(root='x', deep=SimpleNamespace(k=4))  # settings\n" in (
        exported.text
    )
    assert "ArgumentParser" not in exported.text


def test_registry_of_functions(notebook: Notebook):
    """What decorators have put into a registry comes along."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        READERS = {}  # by file type

        def reader(function):
            READERS[function.__name__] = function
            return function
        # ---- next cell
        @reader
        def jpg(x):
            return x

        @reader
        def png(x):
            return -x
        # ---- next cell
        def decode(x):
            return READERS["png" if x % 2 else "jpg"](x)
        """
        + EXPORT
    )
    assert {"READERS", "jpg", "png", "decode"} <= set(exported.names)
    assert "# by file type\n" in exported.text


def test_registry_of_classes(notebook: Notebook):
    """Classes that a base has registered come along."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        class Augmentation:
            kinds = {}

            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                Augmentation.kinds[cls.__name__.lower()] = cls
        # ---- next cell
        class Flip(Augmentation):
            def __call__(self, x):
                return -x

        class Shift(Augmentation):
            def __call__(self, x):
                return x + 1
        # ---- next cell
        def decode(x):
            return [Augmentation.kinds[name]()(x) for name in ("flip", "shift")]
        """
        + EXPORT
    )
    assert {"Augmentation", "Flip", "Shift", "decode"} <= set(exported.names)


def test_instance_that_counts(notebook: Notebook):
    """An instance that its own calls have changed begins anew, and the report says so."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        class Scale:
            def __init__(self, by):
                self.by = by
                self.calls = 0
                self.cache = {}

            def __call__(self, x):
                self.calls += 1
                self.cache[x] = x * self.by
                return self.cache[x]
        # ---- next cell
        decode = Scale(3)  # thrice
        # ---- next cell
        decode(1), decode(2)
        """
        + EXPORT
    )
    assert "decode = Scale(3)  # thrice\n" in exported.text
    assert any("decode" in note for note in exported.notes)


def test_name_bound_several_times(notebook: Notebook):
    """The comment of the last statement that binds a name stays with its value."""
    exported = notebook.exported(
        """
        import nbpipe
        K = 1  # first
        def decode(x):
            return x + K
        # ---- next cell
        K = 5  # second
        K = K + 1  # third
        """
        + EXPORT
    )
    assert "K = 6  # third\n" in exported.text


def test_stages_from_loops(notebook: Notebook):
    """Stages that a loop has made keep the values they were made with."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def shifted(by):
            def shift(x):
                return x * 10 + by
            return shift

        pipe = nbpipe.source(range(5))
        for k in (1, 2, 3):
            pipe = pipe.map(shifted(k))
        report = pipe.export("loader.py")
        """,
        spawn=True,
    )
    assert exported.known["items"][0] == ["int", 123]
    assert exported.found["spawned"] == exported.known["items"]


def test_pipeline_made_in_a_function(notebook: Notebook):
    """A pipeline that a function has built of local values is written without it."""
    exported = notebook.exported(
        """
        import nbpipe
        # ---- next cell
        def build(size):
            data = [1, 2, size]
            def decode(x):
                return x + data[-1]  # the last
            return nbpipe.source(data).map(decode).batch(size)

        pipe = build(2)
        pipe["decode"].concurrency = 3
        report = pipe.export("loader.py")
        """,
    )
    assert exported.parameters == "*, decode_concurrency: int=3, batch_size: int=2"
    assert "    return x + data[-1]  # the last\n" in exported.text
    assert "build" not in exported.names


def test_functions_under_conditions(notebook: Notebook):
    """A function defined in a branch or a loop is written as it was defined there."""
    exported = notebook.exported(
        """
        import nbpipe
        FAST = True
        # ---- next cell
        if FAST:
            # the quick way
            def decode(x):
                # fast
                return step(x) + 1
        else:
            def decode(x):
                return x
        for n in range(3):
            def step(x, n=n):
                return x * n
        """
        + EXPORT
    )
    assert "def decode(x):\n    # fast\n    return step(x) + 1\n" in exported.text
    assert "def step(x, n=" in exported.text


def test_local_module_that_was_changed(notebook: Notebook):
    """A module whose variable the notebook has set is refused: its file has the old value."""
    text = "FACTOR = 3\n\n\ndef scale(x):\n    return x * FACTOR\n"
    (notebook.folder / "common.py").write_text(text)
    words = notebook.refused(
        """
        import nbpipe
        import common
        # ---- next cell
        common.FACTOR = 10
        # ---- next cell
        def decode(x):
            return common.scale(x)
        # ---- next cell
        nbpipe.source(range(5)).map(decode).export("loader.py")
        """
    )
    assert "`common.FACTOR = 10` in In[2]" in words


def test_older_function_in_a_list(notebook: Notebook):
    """A list that holds a function that was redefined is refused, also without comparing items."""
    words = notebook.refused(
        """
        import nbpipe
        # ---- next cell
        def norm(x):
            return x + 1
        STEPS = [norm]
        # ---- next cell
        def norm(x):
            return x + 2
        # ---- next cell
        def decode(x):
            return STEPS[0](x)
        # ---- next cell
        nbpipe.source(range(5)).map(decode).export("loader.py", check_items=0)
        """
    )
    first, chain = words.split("\n")
    assert "'norm'" in first
    assert chain.endswith("decode() [In[4]] <- stage 'decode'")


def test_executor_that_lives(notebook: Notebook):
    """A pool given as an executor is refused by its name."""
    words = notebook.refused(
        """
        import nbpipe
        from concurrent.futures import ThreadPoolExecutor
        # ---- next cell
        pool = ThreadPoolExecutor(2)
        def decode(x):
            return x
        # ---- next cell
        nbpipe.source(range(5)).map(decode, executor=pool).export("loader.py")
        """
    )
    first, chain = words.split("\n")
    assert first.startswith("variable 'pool' is a live ThreadPoolExecutor; ")
    assert chain == "  used by: stage 'decode'"


def test_functions_of_other_arguments(notebook: Notebook):
    """Lambdas that collate, cost and route become functions named after their stages."""
    exported = notebook.exported(
        """
        import nbpipe
        import numpy as np
        # ---- next cell
        def name_of(x):
            return "odd" if x % 2 else "even"
        # ---- next cell
        pipe = (
            nbpipe.source(range(6))
            .route(lambda x: name_of(x), {"odd": lambda c: c.map(abs), "even": lambda c: c})
            .batch(2, collate=np.stack)
            .batch(3, collate=lambda items: sum(items), cost=lambda x: 1)
        )
        report = pipe.export("loader.py")
        """
    )
    assert exported.names == ["name_of", "route_key", "batch_2_collate", "batch_2_cost"]
    assert "collate=np.stack)" in exported.chain
    assert exported.imports == ["import numpy as np"]


def test_nothing_but_the_module_is_left(notebook: Notebook):
    """An export leaves one file in the folder, and no temporary file anywhere."""
    notebook.exported("import nbpipe\ndef decode(x):\n    return x\n" + EXPORT)
    assert list(contents(notebook.folder)) == ["loader.py"]
    assert list(contents(notebook.temp)) == []
