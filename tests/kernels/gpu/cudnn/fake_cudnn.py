"""A fake of the part of cuDNN's front end that the kernels use. The fake records all calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

NOTES = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "WINOGRAD")


class NotSupportedError(Exception):
    """A fake ``cudnn.cudnnGraphNotSupportedError``; like the original, it is not a RuntimeError."""


@dataclass(frozen=True)
class Engine:
    """A plan that a graph offers. compiled: whether it is compiled at run time. fails: whether building it fails."""

    name: str
    notes: tuple[str, ...] = ()
    workspace: int = 0
    compiled: bool = False
    fails: bool = False


@dataclass
class FakeGraph:
    """A graph with given plans. refused_in: name of the call that refuses the graph, or ""."""

    offered: Sequence[Engine]
    target: dict[str, Any]
    executed: list[tuple[str, dict[int, int], int, Any]]
    refused_in: str = ""
    forbidden: set[str] = field(default_factory=set)
    built: list[int] = field(default_factory=list)
    dtypes: tuple[str, ...] = ()
    tensors: "list[FakeTensor]" = field(default_factory=list)

    def tensor(self, **settings: Any) -> "FakeTensor":
        return self._made(settings)

    def __getattr__(self, name: str) -> Any:
        """Return an operation with one result, or a call that may refuse the graph."""
        if name in ("conv_fprop", "conv_dgrad", "conv_wgrad", "add", "relu"):
            return lambda *inputs, **geometry: self._made({"made_by": (name, *inputs), "geometry": geometry})
        if name in ("validate", "build_operation_graph"):
            return lambda: self._refuse_in(name)
        raise AttributeError(name)

    def _made(self, settings: dict[str, Any]) -> "FakeTensor":
        self.tensors.append(FakeTensor(settings))
        return self.tensors[-1]

    def create_execution_plans(self, modes: Sequence[str]) -> None:
        assert modes == ["A", "FALLBACK"]
        self._refuse_in("create_execution_plans")
        if not self.offered:
            raise NotSupportedError("no engine")

    def _refuse_in(self, call: str) -> None:
        if call == self.refused_in:
            raise NotSupportedError(call)

    def deselect_numeric_notes(self, notes: Sequence[str]) -> None:
        self.forbidden.update(notes)

    def get_execution_plan_count(self) -> int:
        return len(self.offered)

    def build_plan_at_index(self, index: int) -> None:
        engine = self.offered[index]
        if engine.fails or self.forbidden & set(engine.notes):
            raise NotSupportedError("Deselecting execution plan")
        self.built.append(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.offered[index].workspace

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[str]:
        return ["RUNTIME_COMPILATION"] if self.offered[index].compiled else []

    def get_plan_name_at_index(self, index: int) -> str:
        return self.offered[index].name

    def execute_plan_at_index(self, addresses: Mapping[int, int], workspace: int, index: int, handle: Any) -> None:
        assert index in self.built
        self.executed.append((self.offered[index].name, dict(addresses), workspace, handle))


@dataclass
class FakeTensor:
    """A tensor and its attributes."""

    settings: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_"):
            raise AttributeError(name)

        def tell(value: Any) -> FakeTensor:
            self.settings[name.removeprefix("set_")] = value
            return self

        return tell


@dataclass
class FakeCudnn:
    """A fake of the module ``cudnn``. offered: the plans of every graph. refused_in: see :class:`FakeGraph`."""

    offered: Sequence[Engine] = ()
    refused_in: str = ""
    graphs: list[FakeGraph] = field(default_factory=list)
    streams: list[tuple[Any, int]] = field(default_factory=list)
    executed: list[tuple[str, dict[int, int], int, Any]] = field(default_factory=list)

    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815 - the name that cuDNN gives it
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    behavior_note = SimpleNamespace(RUNTIME_COMPILATION="RUNTIME_COMPILATION")
    numerical_note = SimpleNamespace(**{note: note for note in NOTES})
    data_type = SimpleNamespace(FLOAT="FLOAT", DOUBLE="DOUBLE", BFLOAT16="BFLOAT16")

    def pygraph(self, *, io_data_type: str, intermediate_data_type: str, compute_data_type: str, **target: Any) -> Any:
        graph = FakeGraph(self.offered, target, self.executed, self.refused_in)
        graph.dtypes = (io_data_type, intermediate_data_type, compute_data_type)
        self.graphs.append(graph)
        return graph

    def set_stream(self, *, handle: Any, stream: int) -> None:
        self.streams.append((handle, stream))
