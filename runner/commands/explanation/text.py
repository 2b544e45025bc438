"""The text of ``runner explain``, from its parts."""

from runner.commands.explanation.devices import device_lines, device_table, placed_lines, plans_of
from runner.commands.explanation.layers import layer_rows, layer_table, totals
from runner.commands.explanation.memory import gpu_memory_lines, memory_text
from runner.commands.explanation.wires import sent_of, sent_text
from runner.config.devices import look_at
from runner.config.schema import Config
from runner.kernels.gpu.discovery import Found
from runner.optimizers.lbfgs import Lbfgs
from runner.system.text import number
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.memory import GpuMemory, ProcessMemory, planned_gpu_memory, planned_memory

_PEAK = """\
Planned peak: largest sum of activations, gradients and inputs alive at once in a training step; variables come on top.\
"""

_OVERLAPPING = """\
Clients of this strategy overlap: each is counted as often as it runs on average when all workers are equally fast, and
the overlap is not estimated."""

_EVALUATION = "Bytes and messages are those of one evaluation of the batch; an update makes two or more."


def explain(config: Config) -> str:
    """Return layers, totals, devices, planned memory and transfers of a training step as text."""
    return explain_with_memory(config, look_at(config.cluster))[0]


def explain_with_memory(config: Config, found: Found) -> tuple[str, list[ProcessMemory], list[GpuMemory]]:
    """Return the same text, and the planned memory of every process and GPU. found: the GPUs of this machine."""
    experiment = build(config)
    planned = plans_of(experiment)
    rows = layer_rows(experiment)
    memory = planned_memory(experiment, planned)
    on_gpus = planned_gpu_memory(experiment, planned)
    per = "evaluation" if isinstance(config.optimizer, Lbfgs) else "step"
    lines = [
        _title(experiment),
        "",
        layer_table(rows, experiment),
        "",
        *totals(rows),
        *_length_lines(experiment),
        *device_lines(experiment, found),
        *placed_lines(experiment),
        "",
        device_table(experiment, planned, per),
        "",
        _PEAK,
        *([_OVERLAPPING] if any(client.deferred for client in experiment.program.training) else []),
        *([_EVALUATION] if per == "evaluation" else []),
        "",
        memory_text(memory),
        *gpu_memory_lines(on_gpus, found.gpus),
        "",
        sent_text(sent_of(experiment, planned), per),
    ]
    return "\n".join(lines), memory, on_gpus


def _title(experiment: Experiment) -> str:
    config, program = experiment.config, experiment.program
    servers = f" and {program.servers} parameter server(s)" if program.servers else ""
    return (
        f"model {config.model.name} on {config.data.name}, {config.precision}, "
        f"optimizer {config.optimizer.name}, parallelism {config.parallelism.name} "
        f"with {program.workers} worker(s){servers}"
    )


def _length_lines(experiment: Experiment) -> list[str]:
    """Return lines on the length of the run and its network."""
    steps = (
        f"steps                   {number(experiment.total_steps)} of {experiment.config.train.batch_size} examples, "
        f"{experiment.steps_per_epoch:.1f} steps per epoch"
    )
    return [steps, *([f"network                 emulated: {experiment.emulation}"] if experiment.emulation else [])]
