"""The plans of a program's clients on the workers: made and loaded on first use, and kept after a recovery."""

from collections.abc import Collection

from runner.engine.cluster.assignment import messages_of, peer_of
from runner.engine.cluster.remote_plan import RemotePlan
from runner.engine.cluster.transport import messages
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.compile.program import Client, InputSlot, Program, Signature
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import Cluster, DeviceName
from runner.kernels.registry import Registry

_Key = tuple[Signature, tuple[InputSlot, ...], bool]


class RemotePlans:
    """The plans of one program on its workers, one for each client. libraries: device type -> libraries of kernels.

    rings: see :class:`~runner.engine.cluster.remote_plan.RemotePlan`. prepared: the workers whose plans are sent to the
    spare processes in advance.
    """

    def __init__(
        self, program: Program, cluster: Cluster, registry: Registry, *, rings: bool, prepared: Collection[str]
    ) -> None:
        self.libraries: dict[str, set[str]] = {device.type: set() for device in cluster.devices}
        self._program = program
        self._planned = ProgramPlans(program, cluster, registry)
        self._rings = rings
        self._prepared = prepared
        self._needed = {_key(each) for each in program.needed_after_recovery}
        self._plans: dict[_Key, RemotePlan] = {}
        self._unloaded: list[RemotePlan] = []  # not loaded by all workers, some of which may still open the arenas
        self._loads = 0

    def client(self, name: str) -> Client:
        """Return a client by name; raises RunnerError listing the clients if there is none."""
        return self._planned.client(name)

    def participants(self, client: Client) -> set[str]:
        """Return the names of the processes that run a part of a client."""
        return {peer_of(device) for device in self._planned.plans(client.signature)}

    def loaded(self, client: Client) -> RemotePlan | None:
        """Return the plan of a client if all participating workers have been sent their parts of it, else None."""
        plan = self._plans.get(_key(client))
        return None if plan is None or plan.unsent else plan

    def load(self, client: Client, group: WorkerGroup) -> RemotePlan:
        """Return the plan of a client after all participating workers, which must be present, have loaded it."""
        key = _key(client)
        is_new = key not in self._plans
        plan = self._new_plan(client, group) if is_new else self._plans[key]
        try:
            plan.load(group)
        except BaseException:
            self._unloaded.append(plan)
            self._plans.pop(key, None)
            raise
        if is_new:
            self._plans[key] = plan
            of_spares = [each for each in plan.assignments if each in self._prepared]
            for worker in of_spares if key in self._needed else of_spares[:1]:
                group.spares.prepare(messages.Load(plan.name), plan.document(worker))
            for device_plan in plan.plans.values():
                self.libraries[DeviceName.parse(device_plan.device).type or ""] |= device_plan.libraries
        return plan

    def _new_plan(self, client: Client, group: WorkerGroup) -> RemotePlan:
        # Each attempt has its own name: after a recovery, some workers may hold a plan that others did not load.
        name, self._loads = f"{client.name}-{self._loads}", self._loads + 1
        compiled, plans = self._planned.compiled(client.signature), self._planned.plans(client.signature)
        shared = (self._planned.layouts, group.directory, group.joined.sharing)
        plan = RemotePlan(name, client, compiled, plans, *shared, rings=self._rings)
        plan.expect_fetches(group.arrivals)
        return plan

    def restart(self) -> None:
        """Prepare the plans for workers that have dropped all steps."""
        self._close_unloaded()
        for plan in self._plans.values():
            plan.begun = 0

    def send_needed(self, group: WorkerGroup) -> None:
        """Send the absent workers the plans that are needed after a recovery; ``group.loading`` then has their names.

        Other plans, such as that of an evaluation, are sent before their next run.
        """
        for key, plan in self._plans.items():
            plan.unsent |= plan.assignments.keys() & group.absent
            if key in self._needed:
                group.loading |= {(worker, plan.name) for worker in plan.send(group)}

    def close(self) -> None:
        """Drop all plans with their mappings of shared memory, which is freed when its last mapping is closed."""
        self._close_unloaded()
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()

    def _close_unloaded(self) -> None:
        while self._unloaded:
            self._unloaded.pop().close()

    def most_unread_messages(self) -> int:
        """Return the largest number of unread messages from one process to another: the messages of two steps.

        Without shared memory, a message has at most ``PART_BYTES`` bytes of tensors. The messages of a step are those
        of all training clients together, which may run at the same time, or of one client that has more messages.
        """
        plans = {name: self._planned.plans(client.signature) for name, client in self._program.clients.items()}
        sends = {name: max(map(messages_of, own.values())) for name, own in plans.items()}
        at_once = sum(sends[client.name] for client in self._program.training)
        return 2 * max(at_once, *sends.values(), 0)


def _key(client: Client) -> _Key:
    return client.signature, client.inputs, client.deferred
