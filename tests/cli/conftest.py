"""What the tests of the command share."""

from types import SimpleNamespace

import pytest

from nbpipe.cli import main


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Give a function that calls the command in this process: for what ends before it begins."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return called
