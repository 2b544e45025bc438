"""The parts of ``runner explain`` on the devices of a run, their work in a step, and the placement of layers."""

from collections import Counter
from collections.abc import Sequence

from runner.config.devices import device_texts, reason, sums_text
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import GPU
from runner.engine.run.kernel_table import kernels_for
from runner.kernels.gpu.discovery import Found
from runner.system.text import mean_number, number, text_table
from runner.training.comparison import predicted_step_s, verdict
from runner.training.devices import sums_over_workers
from runner.training.experiment import Experiment
from runner.training.placement import placement_text


def plans_of(experiment: Experiment) -> ProgramPlans:
    """Return an object that makes the plans of an experiment when they are requested."""
    return ProgramPlans(experiment.program, experiment.cluster, kernels_for(experiment.cluster.devices))


def training_plans(experiment: Experiment, planned: ProgramPlans) -> dict[str, list[tuple[DevicePlan, float]]]:
    """Return device -> the plans that it runs, each with the average number of runs per training step."""
    plans: dict[str, list[tuple[DevicePlan, float]]] = {}
    for client in experiment.program.training:
        for device, plan in planned.plans(client.signature).items():
            plans.setdefault(device, []).append((plan, client.per_update))
    return plans


def device_lines(experiment: Experiment, found: Found) -> list[str]:
    """Return lines on the devices, why they are used, and whether they share a process. found: the local GPUs."""
    cluster = experiment.config.cluster
    texts = device_texts({device.name: device.gpu for device in experiment.cluster.devices}, found)
    counts = Counter(texts.values())
    own = experiment.program.one_process is not None
    plans = "the fastest, by trial" if cluster.compare_plans else "the first that cuDNN proposes"
    use = [f"float32 products        {'TF32' if cluster.tf32 else 'float32'}", f"plans of convolutions   {plans}"]
    sums = [f"sums of all_reduce      {sums_text(experiment.config, found, own)}"]
    return [
        f"devices                 {', '.join(f'{count} on {what}' for what, count in counts.items())}; "
        f"{'in one process' if own else 'one process each'}",
        f"chosen because          {reason(cluster, found)}",
        *(use if cluster.device_taken == GPU else []),
        *(sums if cluster.device_taken == GPU and sums_over_workers(experiment.program) else []),
    ]


def device_table(experiment: Experiment, planned: ProgramPlans, per: str) -> str:
    """Return a table with a row for each device. per: the word after "bytes sent per": "step" or "evaluation"."""
    plans = training_plans(experiment, planned)
    return text_table(
        ("device", "nodes", "planned peak bytes", "variable bytes", f"bytes sent per {per}", "messages"),
        [_device_row(device, own) for device, own in sorted(plans.items())],
    )


def placed_lines(experiment: Experiment) -> list[str]:
    """Return lines on the placement of layers and on predicted step times of strategies; [] without a placement."""
    if experiment.placed is None:
        return []
    predicted = predicted_step_s(experiment)
    return [
        "",
        *placement_text(experiment.placed.placement).splitlines(),
        "",
        text_table(("strategy", "predicted ms per step"), [(name, f"{1e3 * s:,.3f}") for name, s in predicted.items()]),
        "",
        f"{verdict(predicted, 'predicted by the cost model')}.",
    ]


def _device_row(device: str, plans: Sequence[tuple[DevicePlan, float]]) -> tuple[str, ...]:
    """Return the row of a device. plans: as in :func:`training_plans`."""
    variables = {name: slot.layout.nbytes for plan, _ in plans for name, slot in plan.variables.items()}
    return (
        device,
        number(sum(len(plan.instructions) for plan, _ in plans)),
        number(max(plan.arena_bytes for plan, _ in plans)),
        number(sum(variables.values())),
        number(round(sum(times * plan.sent_bytes for plan, times in plans))),
        mean_number(sum(times * sum(each.op == "send" for each in plan.instructions) for plan, times in plans)),
    )
