"""The report: groups and numbers, what a browser may do with it, and what foreign folders put into it."""

import base64
import hashlib
import html
import json
import re
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from scipy import stats as scipy_stats

from evorl import stats
from evorl.cli import report
from evorl.errors import OptionError
from evorl.plots.chart import Chart, Table, render, save_charts
from evorl.plots.lineage import plot_population, thin_generations
from evorl.population.lineage import ancestry
from evorl.reports import build
from evorl.reports.page import Grid, Picture, Report, Section, Text, render_page
from evorl.reports.tables import format_latex, format_markdown
from evorl.training.records import fit_display, rows
from tests.test_curve import CFG, write

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\"'"


@pytest.fixture(scope="module", autouse=True)
def small_library():
    """Bundling the plotting library takes seconds, so only one test does it."""
    patch = pytest.MonkeyPatch()
    patch.setattr("vl_convert.javascript_bundle", lambda: "window.vegaEmbed = () => 0; // </script>")
    yield
    patch.undo()


def agent(name, **options):
    return {"agent": {"name": name, "workflow": options}}


def built(*paths, **options):
    damages = []
    return build.build_report([str(path) for path in paths], damages, policies=False, **options), damages


def chart_data(found, title):
    (chart,) = (part for one in found.sections for part in one.parts if isinstance(part, Chart) and part.title == title)
    return chart.tables["rows"].columns


def grid(found, title):
    (section,) = (one for one in found.sections if one.title == title)
    return next(part.rows for part in section.parts if isinstance(part, Grid))


def test_runs_are_grouped_by_what_differs_and_seeds_of_folders_are_joined(tmp_path):
    for i in range(3):
        write(tmp_path / "runs" / f"slow{i}", returns=((0,), (1,), (2 + i,)), seed=i, **agent("ppo", lr=0.1, size=8))
        write(tmp_path / "runs" / f"fast{i}", returns=((0,), (1,), (5 + i,)), seed=i, **agent("ppo", lr=0.5, size=8))
    write(tmp_path / "runs" / "other", returns=((0,) * 4, (1,) * 4, (9, 8, 9, 8)), **agent("td3", size=8))
    found, damages = built(tmp_path / "runs")
    assert damages == []
    assert list(found.groups) == ["td3", "ppo lr=0.5", "ppo lr=0.1"]  # the best first
    rows = grid(found, "Final evaluations")
    assert [row[:2] for row in rows[1:]] == [["td3", "4"], ["ppo lr=0.5", "3"], ["ppo lr=0.1", "3"]]
    assert rows[2][4] == "6.00 [3.52, 8.48]"  # 6 +- t_2(0.975) / sqrt(3)
    mean = chart_data(found, "CartPole-v1")
    at = [i for i, group in enumerate(mean["group"]) if group == "ppo lr=0.5"][-1]
    assert (mean["y"][at], mean["seeds"][at]) == (6, 3)
    np.testing.assert_allclose([mean["low"][at], mean["high"][at]], scipy_stats.t.interval(0.95, 2, 6, 1 / np.sqrt(3)))
    assert [row[0] for row in grid(found, "Differences of the configurations")] == ["option", "agent.workflow.lr"]


def test_two_tasks_are_compared_by_normalized_scores(tmp_path):
    other = CFG["env"] | {"name": "Acrobot-v1"}
    for task, env in (("a", CFG["env"]), ("b", other)):
        write(tmp_path / f"{task}1", returns=((0,) * 3, (1,) * 3, (9, 10, 11)), env=env, **agent("ppo"))
        write(tmp_path / f"{task}2", returns=((0,) * 4, (1,) * 4, (4, 5, 6, 5)), env=env, **agent("td3"))
        write(tmp_path / f"{task}3", returns=((0,), (1,), (20,)), env=env, **agent("few"))  # one seed is no sample
    found, _ = built(*sorted(tmp_path.iterdir()))
    mean = chart_data(found, "Mean")
    assert (mean["group"], mean["value"]) == (["ppo", "td3"], [1.0, 0.5])
    assert chart_data(found, "Optimality gap (lower is better)")["group"] == ["td3", "ppo"]
    iqm = chart_data(found, "Interquartile mean")
    assert (iqm["group"], iqm["value"]) == (["ppo", "td3"], [pytest.approx(1.0), pytest.approx(0.5)])
    better = chart_data(found, "Probability of improvement")
    assert (better["name"], better["value"], better["high"]) == (["ppo > td3"], [1.0], [1.0])
    assert 0.5 < better["low"][0] < 1


def test_what_a_run_contains_is_text(tmp_path):
    run = write(tmp_path / "runs" / EVIL.replace("/", "|"), **agent(EVIL, lr=EVIL))
    write(tmp_path / "runs" / "b", **agent(EVIL, lr="x"))
    found, _ = built(tmp_path / "runs", title=EVIL)
    found = Report(found.title, [*found.head, Text(EVIL, "warning")], found.groups, found.sections)
    page = render_page(found)
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 3
    assert html.escape(EVIL) in page
    assert run
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert any(EVIL in value for value in data["charts"][0]["tables"]["rows"]["group"]["values"])


def test_a_browser_runs_the_two_scripts_of_the_page_alone():
    page = render_page(Report("title", sections=[Section("one", [Picture("dot", "image/png", b"x")])]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src "
        f"'sha256-{hashes[0]}' 'sha256-{hashes[1]}'"
    )
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []


def test_damaged_and_foreign_folders_are_named_and_the_rest_is_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sound")
    cut = tmp_path / "cut"
    write(cut, seed=1)
    with (cut / "metrics.jsonl").open("a") as file:
        file.write("{]\n")
    write(tmp_path / "link", seed=2)
    (tmp_path / "link" / "more").symlink_to("/etc/passwd")
    write(tmp_path / "tagged", seed=3)
    (tmp_path / "tagged" / "config.yaml").write_text("agent: !!python/object/apply:os.system ['touch hacked']")
    (tmp_path / "empty").mkdir()
    (tmp_path / "unevaluated").mkdir()
    (tmp_path / "unevaluated" / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit) as ended:
        report.main(["sound", "cut", "link", "tagged", "unevaluated", "policies=false"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "report.html\n"
    assert err.count("\n") == 1
    for told in ("run=cut: 1 of 4 lines", "run=link: its more is a symbolic", "run=tagged: its config.yaml cannot be"):
        assert told in err
    assert "run=unevaluated: has no evaluation yet" in err
    page = (tmp_path / "report.html").read_text()
    assert "run=link: its more is a symbolic" in page
    assert not (tmp_path / "hacked").exists()
    for given, told in ((["empty"], "run=empty: has no metrics.jsonl and contains no runs"), ([], "give runs: ")):
        with pytest.raises(SystemExit):
            report.main(given)
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        report.main(["sound", "out=page.txt"])
    assert "out=page.txt: must end with .html" in capsys.readouterr().err


@pytest.mark.program
def test_the_policy_of_a_foreign_class_is_not_built(tmp_path):
    env = {"_target_": "os.system", "command": "true"}
    run = write(tmp_path / "run", env=env)
    found = build.build_report([run], [])
    (section,) = (one for one in found.sections if one.title == "Best policies")
    assert "names os.system, which is not part of evorl" in section.parts[0].text


def test_a_population_has_lanes_in_the_colors_of_its_founders(tmp_path):
    source = [[[[0, 0], [1, 1]]]]
    members = {"source": source, "fitness": [[[[1.0, 2.0], [3.0, None]]]], "lr": [[[[1e-4, 1e-2], [1e-3, 1e-1]]]]}
    members = {name: values[0] for name, values in members.items()}
    run = tmp_path / "run"
    write(run)
    row = {"kind": "train", "iteration": 1, "seconds": 1.0, "env_steps": 1, "return": 1.0, "members": members}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    found, _ = built(run)
    (section,) = (one for one in found.sections if one.title == "Population of td3")
    lanes, fitness, searched = (part for part in section.parts if isinstance(part, Chart))
    colors = lanes.tables["rows"].columns["color"]
    assert colors[2] == colors[3] == colors[0] != colors[1]
    assert list(lanes.tables["lines"].columns["y"]) == [0, 0]
    assert fitness.tables["ends"].columns["y"] == [2.0, 3.0, 1.5, 3.0, 1.0, 3.0]
    assert searched.spec["layer"][-1]["encoding"]["y"]["scale"]["type"] == "log"


def test_of_the_training_rows_only_those_of_populations_are_parsed(tmp_path):
    run = tmp_path / "run"
    write(run)
    row = {"kind": "train", "iteration": 1, "seconds": 1.0, "env_steps": 1, "return": 1.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(100 * (json.dumps(row) + "\n"))
    with patch.object(rows, "_parse_row", wraps=rows._parse_row) as parse:
        built(run)
    assert sum(b'"kind": "train"' in call.args[0] for call in parse.call_args_list) == 1


def test_thinned_generations_keep_their_ancestors():
    rng = np.random.default_rng(0)
    source = rng.integers(0, 5, (37, 5))
    found = {"source": source, "fitness": rng.normal(size=(37, 5))}
    thinned, numbers = thin_generations(found, 50)
    assert numbers.tolist() == [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
    np.testing.assert_array_equal(ancestry(thinned["source"])[:-1], ancestry(source)[numbers - 1])
    np.testing.assert_array_equal(thinned["fitness"], found["fitness"][numbers - 1])


def test_charts_are_pictures_of_every_kind_and_others_are_refused(tmp_path):
    (fitness,) = plot_population({"fitness": np.array([[1.0, np.nan], [2.0, 3.0]])})
    for kind, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")):
        save_charts([fitness, fitness], tmp_path / f"x.{kind}", columns=2)
        assert (tmp_path / f"x.{kind}").read_bytes().startswith(begins)
    assert b"median" in render([fitness], "svg")
    with pytest.raises(OptionError, match=r"out=.*x.bmp: must end with .png, .svg or .pdf"):
        save_charts([fitness], tmp_path / "x.bmp")
    with pytest.raises(OptionError, match=r"cannot be written"):
        save_charts([fitness], tmp_path / "nowhere" / "x.png")
    assert Table({"x": [np.float32(0.1), np.nan, 3]}).to_rows() == [{"x": 0.1}, {"x": None}, {"x": 3}]


def test_tables_are_escaped_for_their_language():
    rows = [["a|b", "50 %"], ["x_1", "$2 & {3}\\"]]
    assert format_markdown(rows) == "| a\\|b | 50 % |\n|---|---|\n| x_1 | $2 & {3}\\ |"
    assert r"x\_1 & \$2 \& \{3\}\textbackslash{} \\" in format_latex(rows)


def test_a_thousand_runs_make_a_page_below_ten_megabytes(tmp_path):
    """The size alone; docs/howto/report.md has the time of a thousand runs of a thousand rows."""
    for i in range(1000):
        folder = tmp_path / "runs" / f"{i:04}"
        folder.mkdir(parents=True)
        row = {"kind": "evaluation", "iteration": 0, "seconds": 1.0, "env_steps": 0, "return": 1.0}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row | {"env_steps": n}) + "\n" for n in range(20)))
        (folder / "config.yaml").write_text(json.dumps(CFG | agent("ppo", lr=i)))
    found, _ = built(tmp_path / "runs")
    assert len(found.groups) == 1000
    assert len(render_page(found)) < 9 * 10**6


def test_the_profile_and_the_probability_of_improvement_are_those_of_their_definitions():
    x, y = [np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0])], [np.array([0.0, 2.0]), np.array([4.0, 5.0, 6.0])]
    counted = [np.mean([(a > b) + 0.5 * (a == b) for a in s for b in t]) for s, t in zip(x, y, strict=True)]
    assert stats.probability_of_improvement(x, y) == pytest.approx(np.mean(counted))
    u = scipy_stats.mannwhitneyu(x[0], y[0]).statistic
    assert stats.probability_of_improvement(x[0], y[0]) == pytest.approx(u / 6)
    np.testing.assert_allclose(stats.performance_profile(x, [1.5, 2.0, 5.0]), [(2 / 3 + 1) / 2, (1 / 3 + 1) / 2, 0])
    low, high = stats.improvement_interval([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert low == 0
    assert 0.3 < high < 0.7  # the bootstrap would give 0


@pytest.mark.parametrize(("runs", "tasks", "shift"), [(5, 1, 0.0), (5, 1, 2.0), (8, 3, 1.0), (8, 1, 3.0)])
def test_intervals_of_the_probability_of_improvement_cover_it(runs, tasks, shift):
    rng, true = np.random.default_rng(0), scipy_stats.norm.cdf(shift / np.sqrt(2))
    covered = 0
    for _ in range(400):
        x, y = rng.normal(size=(2, tasks, runs))
        low, high = stats.improvement_interval(list(x + shift), list(y))
        covered += low <= true <= high
    assert covered >= 0.92 * 400


def test_a_notebook_shows_a_curve_that_grows(monkeypatch, capsys):
    display_module, shown = pytest.importorskip("IPython.display"), []
    handle = SimpleNamespace(update=shown.append)
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setattr(display_module, "display", lambda one, display_id: shown.append(one) or handle)
    display = fit_display.NotebookDisplay("env steps", pause=0.0)
    for i in range(3):
        row = {"kind": "evaluation", "iteration": i, "seconds": i, "env_steps": 100 * i, "return": 7.0 * i}
        row |= {"compile_seconds": 0.0, "evaluation_seconds": 0.0, "host_seconds": 0.0}
        display(row | {"progress": i / 2, "seeds": {"return": [5.0 * i, 7.0 * i, 9.0 * i]}})
        display(row | {"progress": i / 2, "kind": "train"})
    display.close()
    assert len(shown) == 3
    assert "greedy return" in shown[2].data
    assert capsys.readouterr().out.count("100%") >= 1
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace())  # IPython in a terminal
    assert not fit_display.NotebookDisplay("env steps")._can_draw


def test_a_config_with_yaml_of_another_kind_is_a_run_without_a_name(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "config.yaml").write_text(yaml.dump([1, 2]))
    with pytest.raises(OptionError, match="is not a training configuration"):
        built(tmp_path / "a")
