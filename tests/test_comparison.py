"""The comparison with other libraries: how sides are run and how rows become tables."""

import json
import math
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts" / "comparison"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    import compare
    import jobs
    import page

    yield compare, jobs, page
    sys.path.remove(str(SCRIPTS))


def result(page, jobs, library, wall, cpu=(1.0, 1.0, 1.0, 1.0), **figures):
    answers = [{"work": 10.0, "score": float(i)} for i in range(len(wall))]
    base = {"wall": list(wall), "cpu": list(cpu), "answers": answers, "first_s": 2.0, "peak_mb": 1.0, "processes": 1}
    name, job = next(iter(jobs.JOBS.items()))
    side = job.sides[0] if library == "evorl" else jobs.Side(library, "x")
    return page.Result(name, job.sizes[0], side, base | figures)


def test_a_ratio_is_that_of_paired_rounds_after_the_second(scripts):
    _, jobs, page = scripts
    own, peer = result(page, jobs, "evorl", (9.0, 1.0, 2.0, 4.0)), result(page, jobs, "brax", (1.0, 2.0, 4.0, 8.0))
    found = page.compare_speed([own, peer], peer)
    assert found == page.Ratio(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))
    assert page.compare_speed([own, peer], own) is None


def test_the_interval_is_students_of_the_logarithm(scripts):
    _, _, page = scripts
    found = page.Ratio.from_pairs([1.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    reach = 4.302653 * math.log(2) / math.sqrt(3)  # t quantile of 2 degrees of freedom; the standard deviation is log 2
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 * math.exp(-reach), 2 * math.exp(reach)))


def test_a_failed_side_is_listed_and_not_compared(scripts):
    _, jobs, page = scripts
    own, peer = result(page, jobs, "evorl", (1.0,) * 4), result(page, jobs, "brax", (1.0,) * 4, error="no | module")
    assert page.compare_speed([own, peer], peer) is None
    assert any("no / module" in line for line in page.format_missing([own, peer]))


def test_rounds_that_miss_the_goal_have_no_speed(scripts):
    """Pairs with both: 2 and 4 s, 1 and 4 s, 1 and 1 s: the geometric mean of 2, 4 and 1 is 2."""
    _, jobs, page = scripts
    name = "CMA-ES on Rosenbrock's function"
    ours, theirs = (result(page, jobs, library, wall).figures for library, wall in (
        ("evorl", (2.0, 9.0, 1.0, 1.0)), ("pycma", (4.0, 1.0, 4.0, 1.0))))  # fmt: skip
    ours["answers"] = [{"work": 10, "score": 1e-7}] * 4
    theirs["answers"] = [{"work": 20, "score": score} for score in (1e-7, 4.0, 1e-7, 1e-7)]
    evorl, _, pycma, evox = jobs.JOBS[name].sides
    own, peer = page.Result(name, 10, evorl, ours), page.Result(name, 10, pycma, theirs)
    assert page.compare_speed([own, peer], peer).mean == pytest.approx(2)
    never = page.Result(name, 10, evox, theirs | {"answers": [{"work": 20, "score": 4.0}] * 4})
    rows = [*page.format_job([own, peer, never], jobs.JOBS[name], [own, peer, never])]
    assert rows[2].startswith("| pycma, 4 of 8 seeds | 10 | 3 of 4 | 4 s | 20 | 2 [")
    assert rows[3].startswith("| EvoX, 4 of 8 seeds | 10 | 0 of 4 | never |  |  |")


def test_the_cpu_time_of_short_rounds_is_not_compared(scripts):
    _, jobs, page = scripts
    own, peer = result(page, jobs, "evorl", (1.0,) * 4), result(page, jobs, "brax", (1.0,) * 4, cpu=(2.0,) * 4)
    assert page.compare_cpu(own, peer) == "2"
    assert not page.compare_cpu(own, result(page, jobs, "brax", (1.0,) * 4, cpu=(0.0, 0.0, 0.02, 0.01)))


def test_a_stopped_job_says_how_many_of_its_seeds_there_are(scripts):
    _, jobs, page = scripts
    name = "SAC on HalfCheetah-v5 to a return of 1,000"
    base = result(page, jobs, "evorl", (1.0,) * 4).figures
    rows = [page.Result(name, 0, side, base) for side in jobs.JOBS[name].sides]
    table = [*page.format_job(rows, jobs.JOBS[name], rows)]
    assert table[1].startswith("| evorl, 4 of 8 seeds |")


def test_slower_jobs_are_named(scripts):
    _, jobs, page = scripts
    own, peer = result(page, jobs, "evorl", (4.0, 4.0, 4.1, 4.2)), result(page, jobs, "brax", (2.0,) * 4)
    assert own.job in [*page.format_summary([own, peer])][-1]
    assert own.job not in [*page.format_summary([own, result(page, jobs, "brax", (8.0,) * 4)])][-1]


def test_every_side_has_a_file_and_a_library(scripts):
    _, jobs, _ = scripts
    for job in jobs.JOBS.values():
        assert job.topic in jobs.TOPICS
        for side in job.sides:
            assert (SCRIPTS / "sides" / f"{job.topic}_{side.library}.py").is_file()
            assert side.library in jobs.LIBRARIES
        assert job.sides[0].library == "evorl"
        assert len({side.label for side in job.sides}) == len(job.sides)


def test_pages_have_the_tables_of_the_rows(scripts):
    _, _, page = scripts
    results = page.read_results()
    docs = page.DOCS
    for one in (page.ROOT / "README.md", docs / "comparison.md", *(docs / "coming_from").glob("*.md")):
        assert page.write_page(one, results) == one.read_text(encoding="utf-8")


def test_rows_are_whole(scripts):
    compare, jobs, _ = scripts
    rows = compare.read_rows()
    assert len(rows) > 20
    for (name, size), row in rows.items():
        assert size in jobs.JOBS[name].sizes
        for figures in row["sides"].values():
            if "error" not in figures:
                assert len(figures["wall"]) == len(figures["cpu"]) == len(figures["answers"]) > 0
                assert all(0 < seconds < math.inf for seconds in figures["wall"])


SIDE = """
import sys, time
from side import serve
print("a library prints")

def make(size):
    if size == 13:
        raise ValueError("unlucky")
    def one(i):
        sum(range(200_000))
        if size == 7 and i == 1:
            sys.exit(1)
        if size == 5:
            time.sleep(60)
        return {"work": size * (i + 1)}
    return one

serve({"count": make})
"""


@pytest.mark.program
def test_sides_take_turns_and_failures_are_recorded(scripts, tmp_path, monkeypatch):
    compare, jobs, _ = scripts
    (tmp_path / "sides").mkdir()
    (tmp_path / "sides" / "try_evorl.py").write_text(SIDE)
    (tmp_path / "sides" / "try_brax.py").write_text(SIDE.replace("count", "other"))
    monkeypatch.setattr(compare, "HERE", tmp_path)
    job = jobs.Job("try", "counts", "numbers", (jobs.Side("evorl", "count"), jobs.Side("brax", "count")))

    def measure(size, sides, rounds, row=None, end=math.inf):
        row = {} if row is None else row
        compare.measure(job, size, sides, rounds, row, end)
        return row

    row = measure(3, job.sides, 2)
    assert [answer["work"] for answer in row["sides"]["evorl"]["answers"]] == [6, 9]
    assert row["sides"]["evorl"]["first"] == {"work": 3}
    assert len(row["sides"]["evorl"]["wall"]) == 2
    assert row["sides"]["evorl"]["peak_mb"] > 1
    assert "KeyError: 'count'" in row["sides"]["Brax"]["error"]
    assert "unlucky" in measure(13, job.sides, 2)["sides"]["evorl"]["error"]
    assert json.loads(json.dumps(row)) == row
    assert "exit code" in measure(7, job.sides[:1], 3)["sides"]["evorl"]["error"]
    monkeypatch.setattr(compare, "ROUND_SECONDS", 1)
    assert "exit code -9" in measure(5, job.sides[:1], 1)["sides"]["evorl"]["error"]


@pytest.mark.program
def test_a_stopped_job_keeps_its_rounds_and_is_continued(scripts, tmp_path, monkeypatch):
    compare, jobs, _ = scripts
    (tmp_path / "sides").mkdir()
    for library in ("evorl", "brax"):
        (tmp_path / "sides" / f"try_{library}.py").write_text(SIDE)
    monkeypatch.setattr(compare, "HERE", tmp_path)
    sides = jobs.Side("evorl", "count"), jobs.Side("brax", "count")
    monkeypatch.setattr(compare, "JOBS", {"Counts": jobs.Job("try", "", "", sides, (3,), rounds=4, score="sum")})
    rows, run = tmp_path / "rows.jsonl", compare.Process.run

    def interrupted(process, i):
        if i == 3 and process.side.library == "brax":
            raise KeyboardInterrupt
        run(process, i)

    monkeypatch.setattr(sys, "argv", ["compare.py", "--rows", str(rows)])
    monkeypatch.setattr(compare.Process, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare.main()
    works = lambda label: [x["work"] for x in compare.read_rows(rows)["Counts", 3]["sides"][label]["answers"]]  # noqa: E731
    assert works("evorl") == works("Brax") == [6, 9]
    began = []
    monkeypatch.setattr(compare.Process, "run", lambda process, i: (began.append(i), run(process, i)))
    compare.main()
    assert began == [0, 0, 3, 3, 4, 4]
    assert works("evorl") == works("Brax") == [6, 9, 12, 15]
    compare.main()
    assert len(rows.read_text().splitlines()) == 2
    began.clear()
    monkeypatch.setattr(sys, "argv", ["compare.py", "--rows", str(rows), "--only", "Counts", "--minutes", "0"])
    compare.main()
    assert began == []


def test_a_row_that_lacks_sides_or_rounds_does_not_replace_a_complete_one(scripts, tmp_path, monkeypatch):
    compare, jobs, _ = scripts
    sides = jobs.Side("evorl", "count"), jobs.Side("brax", "count")
    monkeypatch.setattr(compare, "JOBS", {"Counts": jobs.Job("try", "", "", sides, (3,), rounds=2)})
    whole = {"wall": [1.0, 1.0]}
    base = {"job": "Counts", "size": 3, "sides": {"evorl": whole, "Brax": whole}} | compare.describe_machine()
    lacks = [{"evorl": whole}, {"evorl": {"wall": [1.0]}, "Brax": whole}, {"evorl": whole, "Brax": {"wall": [2.0]}}]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(base | {"sides": x}) + "\n" for x in lacks))
    assert [name for name, *_ in compare.choose((), (), rows, 0)] == ["Counts"]
    rows.write_text("".join(json.dumps(base | {"sides": x}) + "\n" for x in (base["sides"], *lacks)))
    assert compare.read_rows(rows)["Counts", 3] == base
    assert [*compare.choose((), (), rows, 0)] == []
    rows.write_text(json.dumps(base) + "\n" + json.dumps(base | {"version": 1}) + "\n")
    assert compare.read_rows(rows)["Counts", 3] == base  # of another version of the job
    failed = base | {"sides": {"evorl": whole, "Brax": {"error": "no"}}}
    rows.write_text(json.dumps(base) + "\n" + json.dumps(failed) + "\n")
    assert compare.read_rows(rows)["Counts", 3] == failed


def test_parts_of_a_job_do_not_reach_the_page(scripts, monkeypatch, capsys):
    compare, _, _ = scripts
    monkeypatch.setattr(sys, "argv", ["compare.py", "--peers", "brax"])
    with pytest.raises(SystemExit):
        compare.main()
    assert "--rows" in capsys.readouterr().err
