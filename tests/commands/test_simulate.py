"""``runner simulate``: run directory, summary and comparison like those of a real run; sweeps; refusals."""

import json
import re
import shlex
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.recommend import candidates
from runner.plugin.installing import PLUGINS
from runner.records.summary import Summary
from runner.tracing.parts import PARTS
from runner.training.simulation import hardware_of, simulate
from tests.refusal import Capture, refused
from tests.small_runs import composed_config, typed

CLUSTER = typed("cluster=ethernet model=mlp model.hidden=[8] parallelism=sync_data tracking=none simulate.updates=2")


def simulated(folder: Path, *overrides: str) -> Summary:
    assert main(["simulate", *CLUSTER, *overrides, f"hydra.run.dir={folder}"]) == 0
    return Summary.read(folder / "summary.json")


def test_a_simulated_run_is_stored_and_compared_like_a_real_one(tmp_path: Path, capsys: Capture) -> None:
    slow = simulated(tmp_path / "slow", "cluster.hardware.links.workers.gbyte_per_s=0.01")
    shown = capsys.readouterr().out
    assert "simulated: nothing was trained" in shown
    assert "worker0 -> switch" in shown
    assert "machine" in shown
    assert (slow.status, slow.steps, slow.monitor) == ("simulated", 2, "simulated/examples_per_s")
    assert slow.simulation is not None
    assert slow.weights_sha256 is None
    assert sum(slow.simulation.parts_s.values()) == pytest.approx(slow.step_time_s["median"], rel=1e-3)
    assert list(slow.simulation.devices) == list(slow.peak_memory_bytes) == ["worker-0", "worker-1"]
    assert all(set(parts) == set(PARTS) for parts in slow.simulation.devices.values())
    assert slow.simulation.costs["links.workers"] == "assumed"
    assert slow.headline["simulated/speedup"] == slow.simulation.speedup != 1.0
    sent = slow.simulation.links["worker0 -> switch"].bytes
    assert slow.bytes_sent_per_worker[0] == pytest.approx(2 * sent)
    fast = simulated(tmp_path / "fast")
    assert fast.step_time_s["median"] < slow.step_time_s["median"]
    assert fast.bytes_sent_per_worker == slow.bytes_sent_per_worker
    assert main(["compare", str(tmp_path / "slow"), str(tmp_path / "fast")]) == 0
    shown = capsys.readouterr().out
    assert "cluster.hardware.links.workers.gbyte_per_s" in shown
    assert "headline.simulated/hours" in shown
    assert "simulation.parts_s.communication" in shown
    assert "The predicted times do not depend on" not in shown
    simulated(tmp_path / "same", "cluster.hardware.links.servers.gbyte_per_s=9")
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "fast"), str(tmp_path / "same")]) == 0
    expected = "The predicted times do not depend on cluster.hardware.links.servers.gbyte_per_s."
    assert expected in capsys.readouterr().out


def test_a_timeline_has_rows_of_links_and_the_parts_of_the_summary(tmp_path: Path) -> None:
    simulated(tmp_path, "trace=true")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"worker0 -> switch", "switch -> worker1", "critical path"} <= rows
    slices = [event for event in events if event["ph"] == "X" and event["cat"] == "transfer"]
    by_row: dict[int, float] = {}
    for event in sorted(slices, key=lambda event: event["ts"]):  # slices of one row do not overlap
        assert event["ts"] >= by_row.get(event["tid"], 0.0) - 1e-6
        by_row[event["tid"]] = event["ts"] + event["dur"]
    steps = json.loads((tmp_path / "trace_summary.json").read_text())["steps"]
    summary = Summary.read(tmp_path / "summary.json")
    mean_s = 1e-9 * sum(step["ns"] for step in steps) / len(steps)
    assert mean_s == pytest.approx(summary.step_time_s["median"], rel=1e-3)
    assert (tmp_path / "plots" / "timeline.png").stat().st_size > 1000


def test_each_device_is_shown_with_its_kind(tmp_path: Path, capsys: Capture) -> None:
    simulated(tmp_path, "cluster=servers_k40", "parallelism.combine=parameter_server")
    found = re.findall(r"^ *((?:worker|ps)-\d+) +(\w+)", capsys.readouterr().out, re.M)
    assert found == [("worker-0", "k40"), ("worker-1", "k40"), ("ps-0", "ivy_bridge_8")]


@pytest.mark.parametrize("cluster", ["ethernet", "k20x8_delayed"])
def test_one_worker_is_as_fast_as_itself(cluster: str, tmp_path: Path) -> None:
    found = simulated(tmp_path / "run", "parallelism=single", f"cluster={cluster}")
    assert found.simulation is not None
    assert found.simulation.speedup == pytest.approx(1.0)


@pytest.mark.parametrize("keys", [["cluster.one_process=false"], ["cluster.emulate=true", "cluster.latency_ms=1"]])
def test_settings_of_processes_and_links_leave_the_speedup_known(tmp_path: Path, keys: list[str]) -> None:
    assert "simulated/speedup" in simulated(tmp_path, *keys).headline


def test_a_sweep_of_simulations_has_a_table(tmp_path: Path, capsys: Capture) -> None:
    swept = ["parallelism.workers=1,2", "cluster.hardware.links.workers.latency_us=25,50"]
    assert main(["simulate", "-m", *CLUSTER, *swept, f"hydra.sweep.dir={tmp_path}"]) == 0
    header, *rows = (tmp_path / "jobs.csv").read_text().splitlines()
    assert header.startswith("job,parallelism_workers,cluster_hardware_links_workers_latency_us,simulated_examples_per")
    assert [row.split(",")[1] for row in rows] == ["1", "1", "2", "2"]
    assert all(",simulated," in row for row in rows)
    header, *rows = (tmp_path / "speedup.csv").read_text().splitlines()
    assert header == "settings,workers,speedup,ideal"
    pairs = [tuple(row.split(",")[::3]) for row in rows]
    assert pairs == [(f"cluster.hardware.links.workers.latency_us={us}", k) for us in ("25", "50") for k in ("1", "2")]
    assert [float(row.split(",")[2]) for row in rows][::2] == pytest.approx([1.0, 1.0], rel=0.01)
    assert (tmp_path / "speedup.png").stat().st_size > 1000
    assert main(["sweep", "best", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "0")


def test_strategies_are_recommended_by_time_with_commands(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS, "mine.py", "0" * 64)
    overrides = ["cluster=ethernet", "model=mlp", "model.hidden=[8]", "cluster.hardware.step_us=100"]
    assert main(["recommend", *overrides, "--workers", "2,3"]) == 0
    ranked, commands, unusable = capsys.readouterr().out.split("\n\n")
    rows = [re.split(r"  +", line.strip()) for line in ranked.splitlines()[1:]]
    times = [float(row[2].replace(",", "")) for row in rows]
    assert times == sorted(times)
    updates = [float(row[3].replace(",", "")) for row in rows]
    ranks = [int(row[4]) for row in rows]
    assert [update for _, update in sorted(zip(ranks, updates, strict=True))] == sorted(updates)
    assert {row[1].split()[0] for row in rows} == {"single", "sync_data", "async_data", "model", "hybrid"}
    assert "sandblaster workers=2: optimizer=momentum" in unusable
    for row, command in zip(rows, commands.splitlines(), strict=False):
        name, option, plugin, *words = shlex.split(command)
        assert (name, option, plugin) == ("runner", "--plugin", "mine.py")
        settings = [word.removeprefix("parallelism.").removeprefix("parallelism=") for word in words[5:]]
        assert " ".join(settings) == row[1]
        found = simulate(composed_config(*words[1:]), 2)
        assert 1e6 / found.examples_per_s == pytest.approx(float(row[2].replace(",", "")), rel=1e-3)


@pytest.mark.parametrize(
    ("cluster", "workers", "per_host"),
    [
        *(("dgx_pair", 16, 8), ("dgx_pair", 8, None), ("dgx_pair", 12, None), ("dgx_pair", 17, 17)),
        *(("k20x8", 8, 4), ("tpu_v2", 4, 2), ("ethernet", 4, None)),
    ],
)
def test_gradients_are_summed_within_hosts_first_where_several_workers_share_a_switch(
    cluster: str, workers: int, per_host: int | None
) -> None:
    tried = candidates(hardware_of(composed_config(f"cluster={cluster}")), [workers])
    found = [each for settings in tried for each in settings if "workers_per_host" in each]
    assert found == ([] if per_host is None else [f"parallelism.workers_per_host={per_host}"])


def test_what_recommend_chooses_is_refused(capsys: Capture) -> None:
    for chosen in ("parallelism=model", "parallelism.workers=2", "parallelism/staleness=drop"):
        message = refused(["recommend", "cluster=ethernet", "--workers", "2", chosen], capsys)
        assert f"{chosen}: expected no setting of parallelism, because all strategies are compared; leave" in message
    assert "memory" not in refused(["recommend", "cluster=local"], capsys)
    tiny = ["cluster=ethernet", "model=mlp", "cluster.hardware.kinds.machine.memory_gib=1e-6", "--workers", "2"]
    message = refused(["recommend", *tiny], capsys)
    assert "no strategy can be used" in message
    assert "choose other numbers of workers with --workers" in message
    assert "'2,x': expected whole numbers from 1" in refused(["recommend", "--workers", "2,x"], capsys)


def test_wrong_simulations_are_refused(tmp_path: Path, capsys: Capture) -> None:
    place = f"hydra.run.dir={tmp_path / 'run'}"
    forced = ["simulate", *CLUSTER[:-1], "++simulate.updates=0", place]
    assert "simulate.updates=0: expected 1 to" in refused(forced, capsys)
    trained = ["simulate", *CLUSTER[:-1], "simulate.updates=null", place]
    assert "simulate.updates=null: expected a number of updates" in refused(trained, capsys)
    assert "cluster.hardware=null: expected a d" in refused(["simulate", *CLUSTER, "cluster=local", place], capsys)
    assert Summary.read(tmp_path / "run" / "summary.json").status == "failed"
    swept = ["simulate", "-m", *CLUSTER, "cluster=local", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert main(["--debug", *swept]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_training_warns_that_described_hardware_has_no_effect(tmp_path: Path) -> None:
    arguments = [*CLUSTER[:-1], "parallelism=single", "train.steps=1", "tracking.pictures=false"]
    assert main([*arguments, f"hydra.run.dir={tmp_path}"]) == 0
    assert "cluster.hardware has no effect on training" in (tmp_path / "run.log").read_text()
