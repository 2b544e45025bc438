"""The verb ``explain``: print parameters, cost, placement and memory of a configuration without training it."""

from collections.abc import Sequence

from runner.commands import explanation
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.config.devices import found_gpus
from runner.config.error_text import unknown_command_line_option
from runner.config.schema import Config
from runner.data.inspection import stage_lines
from runner.data.own_files import OwnFiles
from runner.kernels.gpu.discovery import Found
from runner.kernels.gpu.driver import GpuFacts
from runner.optimizers.lbfgs import Lbfgs
from runner.system.console import add_yaml_options, verb_parser
from runner.system.machine import available_memory, process_room, usable_cores, usable_memory
from runner.system.text import number, text_table
from runner.training import memory
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.layers import layer_rows
from runner.training.memory import GpuMemory, ProcessMemory

_PEAK = "Planned peak: largest total size of activations, gradients and inputs during a step, without variables."

_OVERLAPPING = """\
The clients of this strategy run at the same time. The table counts the average number of runs of each client if all
workers are equally fast. The time saved by the overlap is not estimated."""

_MEASURED_BATCH = 64  # largest number of examples in each batch that is read to measure the input stages
_EVALUATION = "Bytes and messages are for one evaluation of the batch. An update needs two or more evaluations."


def explain(config: Config) -> str:
    """Return a text on the layers, the devices, the planned memory and the transfers of a training step.

    If the data are streamed, a few batches are read to measure the stages of the input pipeline.
    """
    return explain_with_memory(config, found_gpus(config.cluster))[0]


def explain_with_memory(config: Config, found: Found) -> tuple[str, list[ProcessMemory], list[GpuMemory]]:
    """Return the text of :func:`explain`, and the planned memory of each process and GPU. found: the local GPUs."""
    experiment = build(config)
    planned = experiment.plans()
    rows = layer_rows(experiment)
    on_host = memory.planned_memory(experiment, planned)
    on_gpus = memory.planned_gpu_memory(experiment, planned)
    per = "evaluation" if isinstance(config.optimizer, Lbfgs) else "step"
    lines = [
        _title(experiment),
        "",
        explanation.layer_table(rows, experiment),
        "",
        *explanation.totals(rows),
        *_length_lines(experiment),
        *_rate_lines(experiment),
        *_input_lines(experiment),
        *explanation.device_lines(experiment, found),
        *explanation.placed_lines(experiment),
        "",
        explanation.device_table(experiment, planned, per),
        "",
        _PEAK,
        *([_OVERLAPPING] if any(client.deferred for client in experiment.program.training) else []),
        *([_EVALUATION] if per == "evaluation" else []),
        "",
        memory_text(on_host),
        *gpu_memory_lines(on_gpus, found.gpus),
        "",
        explanation.sent_text(explanation.sent_of(experiment, planned), per),
    ]
    return "\n".join(lines), on_host, on_gpus


def _title(experiment: Experiment) -> str:
    config, program = experiment.config, experiment.program
    servers = f" and {program.servers} parameter server(s)" if program.servers else ""
    return (
        f"model {config.model.name} on {config.data.name}, {config.precision}, "
        f"optimizer {config.optimizer.name}, parallelism {config.parallelism.name} "
        f"with {program.workers} worker(s){servers}"
    )


def _length_lines(experiment: Experiment) -> list[str]:
    """Return lines on the length of the run and on the emulated network, if there is one."""
    steps = (
        f"steps                   {number(experiment.total_steps)} of {experiment.config.train.batch_size} examples, "
        f"{experiment.steps_per_epoch:.1f} steps per epoch"
    )
    return [steps, *([f"network                 emulated: {experiment.emulation}"] if experiment.emulation else [])]


def _rate_lines(experiment: Experiment) -> list[str]:
    """Return a line on the learning rate if it is scaled with the batch, and a line for each parameter rule."""
    config, optimizer = experiment.config, experiment.optimizer
    base, scaling = config.optimizer, config.optimizer.batch_scaling
    lines = []
    if scaling.active:
        lines.append(
            f"learning rate           {optimizer.lr:.6g} and weight decay {optimizer.weight_decay:.6g} for batches of "
            f"{config.train.batch_size}, from {base.lr:.6g} and {base.weight_decay:.6g} for {scaling.base_batch}"
        )
    return [*lines, *(f"rule                    {rule}" for rule in optimizer.parameter_rules)]


def _input_lines(experiment: Experiment) -> list[str]:
    """Return lines on the measured times of the input stages if the data are streamed and their path is known."""
    data, batch = experiment.config.data, min(experiment.config.train.batch_size, _MEASURED_BATCH)
    if not data.streamed or (isinstance(data, OwnFiles) and not data.path):
        return []
    return [f"input                   {line}" for line in stage_lines(data, experiment.config.seed, batch)]


_MIB = 2**20


def memory_text(planned: Sequence[ProcessMemory]) -> str:
    """Return a table in MiB with a row for each process, and a line on whether the memory of this machine is enough."""
    headers = ("process", "variables", "step", "sent", "data", "checkpoint", "program", "total MiB")
    parts = ((e.variables, e.step, e.sent, e.data, e.checkpoint, memory.PROGRAM_BYTES, e.total) for e in planned)
    table = text_table(headers, [(each.process, *map(_mib, own)) for each, own in zip(planned, parts, strict=True)])
    return f"{table}\n\n{memory.fit_text(planned, usable_memory(), available_memory())}"


def gpu_memory_lines(planned: Sequence[GpuMemory], gpus: Sequence[GpuFacts]) -> list[str]:
    """Return a table in MiB with a row for each used GPU, and lines on whether the run fits; [] without GPUs."""
    if not planned:
        return []
    by_number = {gpu.number: gpu for gpu in gpus}
    headers = ("gpu", "devices", "processes", "variables", "step", "fed and sent", "contexts", "total MiB")
    rows = [
        (
            str(each.gpu),
            number(len(each.devices)),
            number(each.processes),
            *map(_mib, (each.variables, each.step, each.moved, each.processes * memory.CONTEXT_BYTES, each.total)),
        )
        for each in planned
    ]
    return ["", text_table(headers, rows), "", *(memory.gpu_fit_text(each, by_number[each.gpu]) for each in planned)]


def _mib(count: int) -> str:
    """Return a number of bytes as text: whole MiB, rounded up."""
    return number(-(-count // _MIB))


_EXAMPLE = """\
Exit code 4, with the reason, if this machine has too little memory.

examples:
  runner explain model=lenet data=mnist
  runner explain model=vgg_a data=synthetic train.batch_size=64 parallelism=sync_data parallelism.workers=4"""


def main(arguments: Sequence[str]) -> int:
    """Print parameters, cost, placement and memory of a configuration; nothing is trained or written.

    Raises ResourceError, after the text is printed, if this machine or one of its GPUs has too little memory.
    """
    parser = verb_parser(
        "explain",
        "Print parameters, cost, placement and memory of a configuration. Nothing is trained.",
        _EXAMPLE,
        advice=unknown_command_line_option,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for training")
    add_yaml_options(parser, primary=True)
    options = vars(parser.parse_intermixed_args(arguments))
    job = hydra_app.compose(options.pop("overrides"), **options)
    config = fix_machine_values(job.config(), usable_cores())
    found = found_gpus(config.cluster)
    text, on_host, on_gpus = explain_with_memory(config, found)
    print(text, flush=True)
    memory.require_fit(on_host, usable_memory(), process_room())
    memory.require_gpu_fit(on_gpus, found.gpus)
    return 0
