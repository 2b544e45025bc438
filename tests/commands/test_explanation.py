"""The numbers that ``runner explain`` prints match the networks and the plans."""

from dataclasses import replace

import pytest

from runner import nn
from runner.commands.explain import explain
from runner.commands.explanation import sent_text, training_plans
from runner.config.schema import Config
from runner.engine.compile.transfer_times import TimedTransfer
from runner.engine.graph import NetworkBuilder, Tensor
from runner.models import Model
from runner.training.build import build
from runner.training.layers import LayerRow, layer_rows
from tests.small_runs import small_config

IMAGENET = ("data=synthetic", "data.classes=1000")
PHOTOGRAPHS = ("data=synthetic", "data.shape=[3,32,32]", "data.classes=10")


@pytest.mark.parametrize(
    ("overrides", "parameters", "multiply_adds"),
    [
        (("model=lenet", "data=mnist"), 431_080, 24 * 24 * 20 * 25 + 8 * 8 * 50 * 20 * 25 + 800 * 500 + 500 * 10),
        # Moving averages are not counted as parameters.
        (("model=cifar_convnet", "data=cifar10"), 551_146, None),
        (("model=alexnet", *IMAGENET), 61_100_840, 714_188_480),
        (("model=googlenet", *IMAGENET), 6_998_552, 1_582_671_872),
        (("model=resnet_cifar", *PHOTOGRAPHS), 269_722, 40_551_040),
    ],
)
def test_networks_have_the_known_counts(overrides: tuple[str, ...], parameters: int, multiply_adds: int | None) -> None:
    rows = layer_rows(build(small_config(*overrides)))
    assert sum(row.parameters for row in rows) == parameters
    assert multiply_adds in (None, sum(row.multiply_adds for row in rows))


def test_rows_describe_one_example_for_every_batch_size_and_strategy() -> None:
    model = ("model=alexnet", *IMAGENET)
    rows = layer_rows(build(small_config(*model)))
    shared = ("parallelism=sync_data", "parallelism.workers=3", "train.batch_size=7", "train.eval_batch_size=5")
    assert layer_rows(build(small_config(*model, *shared))) == rows
    assert [row.name for row in rows[:4]] == ["conv1", "norm1", "relu1", "pool1"]
    assert rows[0] == LayerRow("conv1", "conv", "64x55x55", 23_296, 70_276_800, 64 * 55 * 55 * 4)
    assert rows[-2] == LayerRow("fc8", "dense", "1000", 4_097_000, 4_096_000, 1000 * 4)


@pytest.mark.parametrize(("precision", "factor"), [("bfloat16", 0.5), ("float64", 2)])
def test_the_bytes_of_activations_are_those_of_the_precision(
    precision: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.config.devices.bfloat16_flags", lambda: ("avx512_bf16",))
    plain, other = (layer_rows(build(small_config("model=lenet", f"precision={p}"))) for p in ("float32", precision))
    layers = [row for row in plain if row.kind != "loss"]  # with bfloat16, losses are float32
    assert [factor * row.activation_bytes for row in layers] == [row.activation_bytes for row in other][: len(layers)]


def test_layers_that_return_their_input_take_no_memory() -> None:
    rows = {row.name: row for row in layer_rows(build(small_config("model=vgg_a_benchmark", *IMAGENET)))}
    assert (rows["flatten"].output, rows["flatten"].activation_bytes) == ("25088", 0)
    assert "fc1_dropout" not in rows
    trained = {row.name: row for row in layer_rows(build(small_config("model=vgg_a", *IMAGENET)))}
    assert trained["fc1_dropout"].activation_bytes == 4096 * 4


def test_sums_and_concatenations_have_rows() -> None:
    resnet = {row.name: row for row in layer_rows(build(small_config("model=resnet_cifar", *PHOTOGRAPHS)))}
    assert resnet["stage2_unit1_shortcut"] == LayerRow("stage2_unit1_shortcut", "shape", "32x16x16", 0, 0, 32768)
    assert resnet["stage2_unit1_add"] == LayerRow("stage2_unit1_add", "merge", "32x16x16", 0, 0, 32768)
    assert (resnet["last_norm"].parameters, resnet["last_norm"].output) == (128, "64x8x8")
    googlenet = {row.name: row for row in layer_rows(build(small_config("model=googlenet", *IMAGENET)))}
    name = "inception_3a_concat"
    assert googlenet[name] == LayerRow(name, "merge", "256x28x28", 0, 0, 256 * 28 * 28 * 4)


def test_sent_bytes_equal_those_of_the_plans() -> None:
    config = small_config("parallelism=sync_data", "parallelism.workers=2")
    experiment = build(config)
    text = explain(config)
    plans = training_plans(experiment, experiment.plans())
    assert len(plans) == 2
    for ((plan, _),) in plans.values():
        assert plan.sent_bytes > 0
        assert f"{plan.sent_bytes:,}" in text
        assert f"{plan.arena_bytes:,}" in text


def test_parameter_servers_are_devices_besides_the_workers() -> None:
    servers = ("parallelism.combine=parameter_server", "parallelism.servers=2")
    text = explain(small_config("parallelism=sync_data", "parallelism.workers=3", *servers))
    assert "parallelism sync_data with 3 worker(s) and 2 parameter server(s)" in text
    assert all(f"/job:ps/task:{server}/device:cpu:0" in text for server in range(2))


def test_transfers_are_listed_by_link_and_layer_and_in_total() -> None:
    sent = [
        (TimedTransfer("b", "a", None, 4, 0.5e-3, 0.0), 1.0),
        (TimedTransfer("a", "b", "fc2", 1_000, 1e-3, 1e-3), 1.0),
        (TimedTransfer("a", "c", "fc2", 1_000, 1e-3, 0.0), 1.0),
        (TimedTransfer("a", "b", "fc1", 20_000, 2.0, 0.25e-3), 1.0),
        (TimedTransfer("a", "b", "fc2", 500, 0.75e-3, 0.5e-3), 1.0),
    ]
    assert sent_text(sent, "step") == "\n".join(
        [
            "from  to  layer  messages  bytes per step",
            "a     b   fc2           2           1,500",
            "a     b   fc1           1          20,000",
            "a     c   fc2           1           1,000",
            "b     a   -             1               4",
            "",
            "from  to  messages  bytes per step  transfer ms  hidden ms",
            "a     b          3          21,500    2,001.750      1.750",
            "a     c          1           1,000        1.000      0.000",
            "b     a          1               4        0.500      0.000",
            "",
            "Milliseconds are estimated by the cost model, summed over messages. Hidden milliseconds are those "
            "in which the receiver",
            "computes between the send and the first node that needs the message. Messages can overlap the same "
            "computation.",
        ]
    )


def test_transfers_are_weighted_by_their_average_frequency() -> None:
    sent = [
        (TimedTransfer("a", "b", "fc1", 1_000, 1e-3, 0.5e-3), 1 / 3),
        (TimedTransfer("a", "b", "fc1", 1_000, 1e-3, 0.5e-3), 1 / 3),
        (TimedTransfer("a", "b", "fc2", 100, 1e-3, 0.0), 4.5),
        (TimedTransfer("a", "b", "fc2", 100, 1e-3, 0.0), 4.5),
    ]
    assert sent_text(sent, "evaluation").splitlines()[:6] == [
        "from  to  layer  messages  bytes per evaluation",
        "a     b   fc1        0.67                   667",
        "a     b   fc2           9                   900",
        "",
        "from  to  messages  bytes per evaluation  transfer ms  hidden ms",
        "a     b       9.67                 1,567        9.667      0.333",
    ]


def sent_rows(config: Config) -> list[tuple[str, str, str]]:
    """Return (layer, messages, bytes) of each row of the table of messages by link and layer."""
    lines = [line.split() for line in explain(config).splitlines()]
    return [(cells[2], cells[3], cells[4]) for cells in lines if len(cells) == 5 and cells[0].startswith("/job:")]


@pytest.mark.parametrize(("compression", "bytes_per_value"), [("none", 4), ("high16", 2)])
def test_rows_have_the_bytes_of_the_formula_in_the_order_of_sends(compression: str, bytes_per_value: int) -> None:
    one_by_one = ("parallelism.bucket_bytes=0", f"cluster.compression={compression}")
    config = small_config("parallelism=sync_data", "parallelism.workers=2", *one_by_one)
    # A worker sends the gradient of the weights and that of the biases.
    counts = {"fc2": 8 * 10 + 10, "fc1": 64 * 8 + 8}
    gradients = [(layer, "2", f"{count * bytes_per_value:,}") for layer, count in counts.items()]
    scores = [("-", "2", "8")]
    assert sent_rows(config) == [*gradients, *scores, *gradients]


def test_a_single_device_sends_nothing() -> None:
    assert explain(small_config()).endswith("\n\nNothing is sent between devices.")


def test_the_text_describes_the_run() -> None:
    text = explain(small_config("train.steps=7", "train.batch_size=16"))
    assert "model mlp on digits, float32, optimizer momentum, parallelism single" in text
    assert "7 of 16 examples" in text
    # (64*8 + 8) + (8*10 + 10).
    assert "parameters              610" in text
    assert "multiply-adds/example   592 (forward)" in text
    # 4 * (8 + 8 + 10 + 1) bytes for fc1, relu1, fc2 and the loss; flatten returns its input and takes no memory.
    assert "activations/example     108 bytes (outputs of all layers)" in text


PARAMETERS, VALUE = 610, 4
"""Parameters of the small network on digits, and bytes per value."""


def sent_by(text: str, job: str) -> int:
    """Return the bytes that all devices of a job together send per step, from the table of devices."""
    rows = [line.split() for line in text.splitlines() if line.startswith(f"/job:{job}/")]
    return sum(int(row[4].replace(",", "")) for row in rows if len(row) == 6 and not row[1].startswith("/"))


@pytest.mark.parametrize(
    ("loop", "n_fetch", "n_push"), [("overlapped", 1, 1), ("overlapped", 5, 2), ("sequential", 2, 4), ("direct", 1, 1)]
)
def test_replicas_with_rare_fetches_send_the_bytes_of_the_formula(loop: str, n_fetch: int, n_push: int) -> None:
    workers, servers = 4, 2
    rhythm = (f"parallelism.loop={loop}", f"parallelism.n_fetch={n_fetch}", f"parallelism.n_push={n_push}")
    several = (f"parallelism.workers={workers}", f"parallelism.servers={servers}")
    text = explain(small_config("parallelism=async_data", *several, *rhythm))
    whole = PARAMETERS * VALUE + 8 * servers
    assert sent_by(text, "ps") == pytest.approx(workers * whole / n_fetch, abs=servers)
    assert sent_by(text, "worker") == pytest.approx(workers * whole / n_push, abs=workers)


@pytest.mark.parametrize("batch", [96, 71])
def test_an_evaluation_of_sandblaster_sends_the_bytes_of_the_formula(batch: int) -> None:
    """The 24 portions of a batch have equal sizes for 96 examples, and two different sizes for 71 examples."""
    workers, servers, portions = 3, 2, 8
    several = (f"parallelism.workers={workers}", f"parallelism.servers={servers}")
    minimised = ("optimizer=lbfgs", "schedule=constant", f"train.batch_size={batch}")
    text = explain(small_config("parallelism=sandblaster", *several, *minimised))
    assert "for one evaluation of the batch. An update needs two or more evaluations." in text
    assert "bytes sent per evaluation" in text
    assert "per step" not in text
    assert sent_by(text, "ps") == workers * PARAMETERS * VALUE
    assert sent_by(text, "worker") == workers * portions * PARAMETERS * VALUE


def test_backup_workers_send_the_bytes_of_the_formula() -> None:
    backed = ("parallelism.combine=parameter_server", "parallelism.workers=2", "parallelism.backup_workers=1")
    text = explain(small_config("parallelism=sync_data", *backed))
    assert sent_by(text, "ps") == 3 * PARAMETERS * VALUE
    assert sent_by(text, "worker") == 3 * (PARAMETERS + 2) * VALUE


class Enlarging(Model):
    """A transposed convolution, and the mean of each of its channels."""

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        h = nn.conv_transpose(net, x, outputs, 3, stride=2, name="up")
        return nn.global_avg_pool(net, h, name="mean")


def test_multiply_adds_of_a_transposed_convolution_are_those_of_its_adjoint() -> None:
    built = build(small_config("model=lenet", "data=mnist"))
    up, _, *_ = layer_rows(replace(built, config=replace(built.config, model=Enlarging())))
    assert up == LayerRow("up", "conv", "10x57x57", 10 * 9 + 10, 28 * 28 * 10 * 9, 10 * 57 * 57 * 4)
