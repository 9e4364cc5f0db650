"""The command `evorl.play`: the newest run, and what it opens in a web browser."""

import os
from pathlib import Path

import pytest

from evorl.cli import play
from evorl.errors import OptionError


def test_without_a_run_the_one_written_last_is_played(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="run=runs: has no runs"):
        play.parse_play_options([])
    for i, name in enumerate(("old", "new", "middle", "unwritten")):
        run = Path("runs") / name
        run.mkdir(parents=True)
        if name != "unwritten":
            (run / "metrics.jsonl").touch()
            os.utime(run / "metrics.jsonl", times=(i % 2, i % 2))
    assert play.parse_play_options(["episodes=3"]).run == "runs/new"
    assert capsys.readouterr().err == "runs/new: the newest run of runs\n"


@pytest.mark.parametrize(
    ("files", "opened"),
    [
        (["episode.gif", "viewer.html", "episode.png"], "viewer.html"),
        (["a.png", "a.gif"], "a.gif"),
        (["front.csv"], None),
    ],
)
def test_the_browser_gets_the_viewer_or_else_a_moving_picture(tmp_path, monkeypatch, capsys, files, opened):
    asked = []
    monkeypatch.setattr(play.webbrowser, "open", lambda uri: asked.append(uri))
    play.open_browser([tmp_path / name for name in files])
    assert asked == ([(tmp_path / opened).as_uri()] if opened else [])
    # open gives False where there is no browser
    told = (
        f"no web browser found; open {tmp_path / opened}" if opened else "this environment has no viewer and no picture"
    )
    assert capsys.readouterr().err.startswith(told)
